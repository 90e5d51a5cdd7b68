"""Files that nobody vouches for: whatever is in them, they are read, or refused in one line."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import Model, encoded, entry, quantization_config, tensors, variant, write
from helpers import Cli, assert_bits, extra, run_python
from int4_cases import FORMS, toy, write_packed_toy, write_toy
from mutated_files import mutate_folder
from safetensors.torch import load_file, save_file
from test_quantize_blocks import batches, written
from torch import nn

from scaled_mm import QuantConfig, load_quantized
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.config import W8A8
from scaled_mm.checkpoint.fields import MAX_CONFIG, MAX_ITEMS, parse_json, read_json
from scaled_mm.checkpoint.files import TensorFile
from scaled_mm.checkpoint.float_model import tokenized
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.targets import Targets
from scaled_mm.precompute import precompute
from scaled_mm.quantization.compressed_tensors import W8A8Scheme
from scaled_mm_cli.main import main

BASES: dict[str, tuple[Callable[[Path], object], Callable[[], nn.Module]]] = {
    "static": (lambda folder: variant(folder, "static-asymmetric", 2), Model),
    "dynamic": (lambda folder: variant(folder, "dynamic-asymmetric"), Model),
    "awq": (lambda folder: write_toy(folder, FORMS["awq"]), toy),
    "gptq": (lambda folder: write_toy(folder, FORMS["gptq-v1-act-order"], 2), toy),
    "gptq-8": (lambda folder: write_toy(folder, FORMS["gptq8-v1-act-order"], 2), toy),
    "packed": (lambda folder: write_packed_toy(folder, act_order=True), toy),
    "packed-8": (lambda folder: write_packed_toy(folder, bits=8, group=None), toy),
}
COUNTS = [pytest.param(500, id="500"), pytest.param(20_000, id="20000", marks=pytest.mark.slow)]


def check_files(folder: Path) -> None:
    """What our reader accepts, the safetensors package reads to the same tensors."""
    for path in folder.glob("*.safetensors"):
        try:
            file = TensorFile(path)
        except ValueError:
            continue
        try:
            state = load_file(path)
        except (KeyError, AttributeError):  # a dtype that the package or torch has not
            continue
        assert state.keys() == file.entries.keys()
        for name, x in state.items():
            assert_bits(file.read(name).view(x.dtype), x, name)


def check_refusal(act: Callable[[], object]) -> bool:
    """Whether it was refused; a refusal is one line that a terminal shows as it is."""
    try:
        act()
    except ValueError as refusal:
        assert str(refusal).isprintable() and len(str(refusal)) < 1000
        return True
    return False


def check_command(folder: Path, out: Path) -> None:
    stdout, stderr = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr):
        code = main(["precompute", str(folder), "-o", str(out), "--json"])
    assert code in (0, 2) and (code == 0) == (stderr.getvalue() == "")
    for line in stdout.getvalue().splitlines() + stderr.getvalue().splitlines():
        assert line.isprintable()
    assert stderr.getvalue().count("\n") <= 1


@pytest.mark.parametrize("count", COUNTS)
def test_mutated_checkpoints(count: int, tmp_path: Path) -> None:
    """No exception but ValueError, on four kinds of checkpoints; no bytes outside the folder."""
    for name, (make, _) in BASES.items():
        make(tmp_path / name)
    folder, out = tmp_path / "mutated", tmp_path / "out"
    refused = 0
    for case in range(count):
        chosen = random.Random(case)
        name = chosen.choice([*BASES])
        shutil.copytree(tmp_path / name, folder)
        changed = mutate_folder(folder, chosen)
        try:
            check_files(folder)
            refused += check_refusal(partial(load_quantized, BASES[name][1](), folder))
            check_command(folder, out)
        except BaseException as error:
            error.add_note(f"case {case}: {name}, {changed}")
            raise
        shutil.rmtree(folder)
        shutil.rmtree(out, ignore_errors=True)
    assert count / 4 < refused < count  # neither all nor none
    assert {path.name for path in tmp_path.iterdir()} == {*BASES}


# ---- The faults that were found, by name ---------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "said"),
    [
        ({"a": ["I8", [4, 4], [0, 16]]}, "a must be an object, got"),
        ({"a": entry() | {"dtype": {"I8": None}}}, "a: dtype must be a string, got"),
        ({"a": entry(0, 0, shape=[0, 2**40, 2**40])}, "sizes, of a product up to 2^62"),
        ({"a": entry(shape=[1] * 65 + [16])}, "must have at most 64 sizes"),
        ({"\x1b]0;x\x07": entry()}, "a tensor name must be"),
        ({"a\u009b": entry()}, "printable characters"),
        ({"a\u202eb": entry()}, "printable characters"),
        ({".".join("a" * 65): entry()}, "in at most 64 parts between dots"),
    ],
)
def test_headers_that_the_package_accepts(header: object, said: str, tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(encoded(header, bytes(0 if "a product" in said else 16)))
    with pytest.raises(ValueError) as refusal:
        TensorFile(path)
    assert said in str(refusal.value) and str(refusal.value).isprintable()


@pytest.mark.parametrize("shape", [(200_000_000, 0), (2**40, 0), (0, 5)])
def test_a_weight_without_elements(shape: tuple[int, int], tmp_path: Path) -> None:
    """It takes no bytes in the file, and its azp term would take any number."""
    state = tensors(True, False) | {"up.weight": torch.empty(shape, dtype=torch.int8)}
    write(tmp_path / "in", state, quantization_config(True, False))
    with pytest.raises(ValueError, match=r"up\.weight must have elements, got shape"):
        precompute(tmp_path / "in", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_shard_name_that_no_disk_takes(tmp_path: Path) -> None:
    variant(tmp_path, "dynamic-symmetric", shards=2)
    index = tmp_path / "model.safetensors.index.json"
    for name, said in [
        ("x" * 300 + ".safetensors", "must have at most 246 bytes, got 312"),
        ("ä" * 130 + ".safetensors", "must have at most 246 bytes, got 272"),
        ("\\u001b[2J.safetensors", "a shard name must be"),
    ]:
        text = index.read_text().replace("model-00001-of-00002.safetensors", name)
        (tmp_path / "other.index.json").write_text(text)
        with pytest.raises(ValueError, match=said) as refusal:
            Checkpoint(tmp_path / "other.index.json")
        assert str(refusal.value).isprintable()


@pytest.mark.parametrize("number", ["1e999", "-1e400", "[[1E309]]"])
def test_numbers_that_are_infinite(number: str, tmp_path: Path) -> None:
    """Python's reader makes infinity of them, which is no JSON when it is written again."""
    variant(tmp_path, "dynamic-asymmetric")
    path = tmp_path / "config.json"
    path.write_text(path.read_text().replace('"toy"', number, 1))
    with pytest.raises(ValueError, match=r"config.json: .* is too large a number"):
        precompute(tmp_path, tmp_path / "out")


def test_json_of_any_size(tmp_path: Path) -> None:
    """The limits hold before anything is made of the text."""
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(10**12)  # of holes
    with pytest.raises(ValueError, match=f"must be at most {MAX_CONFIG:,} bytes"):
        read_json(path)
    path.write_bytes(b'{"a":"' + b"x" * (MAX_CONFIG - 8) + b'"}')
    assert len(read_json(path)["a"]) == MAX_CONFIG - 8
    with pytest.raises(ValueError, match=f"must have at most {MAX_ITEMS:,} members"):
        parse_json(b'{"a":[' + b"[]," * MAX_ITEMS, path)


@pytest.mark.parametrize("depth", [64, 65, 500, 100_000])
def test_depth(depth: int, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"a":' + "[" * (depth - 1) + "]" * (depth - 1) + "}")
    if depth <= 64:
        assert read_json(path)
    else:
        with pytest.raises(ValueError, match="nested too deep"):
            read_json(path)


def test_half_a_character(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(r'{"a": ["\ud800"]}')
    with pytest.raises(ValueError, match="is not Unicode"):
        read_json(path)
    path.write_text(r'{"a": ["\ud83d\ude00"]}')
    assert read_json(path) == {"a": ["\U0001f600"]}


def test_many_names_twice() -> None:
    """Refused in linear time: by comparing each with each, these would take minutes."""
    names = b",".join(b'"%d":0' % i for i in range(300_000))
    started = time.process_time()
    with pytest.raises(ValueError, match="the name '299999' stands twice"):
        parse_json(b"{" + names + b',"299999":0}', Path("x"))
    assert time.process_time() - started < 30


@pytest.mark.parametrize(
    "patterns",
    [
        ["re:" + "a?" * 60 + "a" * 60],
        ["re:.*.*.*.*.*Z"],
        ["re:(a+)+$"],
        ["re:(a|a)*b"],
        ["re:(.*a[^z]{100})?b"],
        [f"re:.*{i}$" for i in range(1000)],
    ],
    ids=lambda patterns: patterns[0][:12],
)
def test_patterns_take_linear_time(patterns: list[str]) -> None:
    """Each would take Python's matcher years, or all together minutes."""
    scheme = W8A8Scheme(True, True, True, True)
    settings = W8A8(((Targets(("Linear",)), scheme),), Targets(tuple(patterns)))
    started = time.process_time()
    for i in range(1000):
        assert settings.scheme_of(f"{'a' * 50}.{i}b") == scheme
    assert time.process_time() - started < 30


def test_a_link_to_a_device_is_no_file(tmp_path: Path) -> None:
    save_file({"a": torch.ones(1)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match=r"config\.json: must be a regular file"):
        Checkpoint(tmp_path)


# ---- Files that change, or are not what they seem ------------------------------------------------


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "quant_config.json"])
@pytest.mark.parametrize("target", ["loop", "nowhere"])
def test_a_link_to_no_file(name: str, target: str, tmp_path: Path) -> None:
    """It is named; a folder with such a config.json is no float checkpoint."""
    variant(tmp_path, "dynamic-symmetric")
    if name == "quant_config.json":
        (tmp_path / "config.json").unlink()
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).symlink_to(name if target == "loop" else "blobs/x")
    said = {"loop": "leads back to itself", "nowhere": "a file that does not exist"}[target]
    with pytest.raises(ValueError, match=rf"{re.escape(name)}: is a link .*{said}"):
        Checkpoint(tmp_path)


def test_a_link_to_itself_in_place_of_a_folder(tmp_path: Path, cli: Cli) -> None:
    variant(tmp_path / "in", "dynamic-asymmetric")
    (tmp_path / "loop").symlink_to("loop")
    for source, out in (("in", "loop"), ("loop", "out")):
        line = f"precompute {tmp_path}/{source} -o {tmp_path}/{out}"
        assert f"{tmp_path}/loop: " in cli(line, code=2)


def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path) -> None:
    """By a rename, with data of other places: never a mixture of the two."""
    save_file({"a": torch.ones(8), "b": torch.zeros(8)}, tmp_path / "x.safetensors")
    save_file({"a": torch.ones(64)}, tmp_path / "other.safetensors")
    file = TensorFile(tmp_path / "x.safetensors")
    file.read("a")
    (tmp_path / "other.safetensors").rename(file.path)
    for read in (partial(file.read, "b"), partial(file.read_part, "b", 0, 2, 5)):
        with pytest.raises(ValueError, match=r"x\.safetensors: was replaced by another file"):
            read()


def test_a_header_cut_off_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.ones(8)}, path)
    fstat = os.fstat

    def cut(descriptor: int) -> os.stat_result:
        found = fstat(descriptor)
        os.truncate(path, 20)
        return found

    monkeypatch.setattr(os, "fstat", cut)
    with pytest.raises(ValueError, match="header: the file ended early"):
        TensorFile(path)


OF_HOLES = """
import json, resource, struct, sys
from pathlib import Path
from scaled_mm.checkpoint.files import TensorFile
path, size = Path(sys.argv[1]), 256 << 30
header = json.dumps({"a": {"dtype": "I8", "shape": [size], "data_offsets": [0, size]}}).encode()
with path.open("wb") as file:
    file.write(struct.pack("<Q", len(header)) + header)
    file.truncate(8 + len(header) + size)
read = TensorFile(path)
print(read.read_part("a", 0, size - 9, size).tolist())
resource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))
for act in (lambda: read.read("a"), lambda: read.read_part("a", 0, 1, size)):
    try:
        act()
    except MemoryError as error:
        print(error)
path.unlink()
"""


def test_a_file_of_holes_that_no_memory_takes(tmp_path: Path) -> None:
    """Its header is read, and any part of it; what does not fit is named, with its size."""
    path = tmp_path / "x.safetensors"
    part, whole, most = run_python(OF_HOLES, str(path)).splitlines()
    assert part == str([0] * 9)
    assert whole == f"{path}: a has 274,877,906,944 bytes"
    assert most == f"{path}: a has 274,877,906,943 bytes"


extra("transformers")

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizer
Path({mark!r}).touch()
class Config(LlamaConfig):
    model_type = "stranger"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizer):
    pass
"""
AUTO = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}


CALLS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "config": (
        lambda x: quantize_checkpoint(x, x.parent / "out", QuantConfig("static"), batches()),
        "config.json",
        {"model_type": "stranger", "auto_map": AUTO},
    ),
    "tokenizer": (
        lambda folder: tokenized(folder, ["a line"]),
        "tokenizer_config.json",
        {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_not_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # If it were, its copy would go here.
    cache = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(cache, str(tmp_path / "modules"))
    call, file, fields = CALLS[name]
    folder, mark = written(tmp_path / "in", "llama", torch.float32), tmp_path / "was-run"
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | fields))
    with pytest.raises(ValueError, match="custom code"):
        call(folder)
    assert not mark.exists()
