"""Calibration block by block: the bits of the whole model, in the memory of one block."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import extra, run_python
from torch import Tensor, nn

from scaled_mm import QuantConfig, Smoothing
from scaled_mm.checkpoint import calibrating, quantize_checkpoint
from scaled_mm.checkpoint.blocks import Walk, blocks_of
from scaled_mm.checkpoint.quantizing import QuantizeReport
from scaled_mm.checkpoint.streaming import NotInParts

extra("compressed_tensors")
transformers = extra("transformers")

BY_BLOCKS = "block by block"
SIZES = {
    "vocab_size": 128,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
}
T5 = {"vocab_size": 128, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 3, "num_heads": 4}
OPT = {**SIZES, "ffn_dim": 80, "word_embed_proj_dim": 24}  # Linears around the blocks

FAMILIES: dict[str, tuple[str, str, dict[str, Any], str]] = {
    # name: class, its config's, sizes, how it is run
    "llama": ("LlamaForCausalLM", "LlamaConfig", SIZES, BY_BLOCKS),
    "opt": ("OPTForCausalLM", "OPTConfig", OPT, BY_BLOCKS),
    "bert": ("BertModel", "BertConfig", SIZES, BY_BLOCKS),  # its pooler lies behind the blocks
    "t5": ("T5EncoderModel", "T5Config", T5, BY_BLOCKS),  # a block puts out two tensors
    "albert": (
        "AlbertModel",
        "AlbertConfig",
        {**SIZES, "embedding_size": 16},
        "the whole model at once: no list of equal blocks holds the layers",
    ),
}
CONFIGS = {
    "static": QuantConfig("static-asymmetric", percentile=99.0),
    "smoothed": QuantConfig("static", smoothing=Smoothing(0.7)),
    "searched": QuantConfig(smoothing=Smoothing(search=(0.25, 0.5, 0.75), folds=2)),
}


def written(folder: Path, family: str, dtype: torch.dtype) -> Path:
    model, config, sizes, _ = FAMILIES[family]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**sizes))
    made.to(dtype).save_pretrained(folder, max_shard_size="60KB")
    return folder


def batches() -> list[Any]:
    """Of several lengths, one with padding."""
    generator = torch.Generator().manual_seed(0)
    ids = [torch.randint(1, 127, (2, length), generator=generator) for length in (7, 12, 5)]
    made = [{"input_ids": x, "attention_mask": torch.ones_like(x)} for x in ids]
    made[1]["attention_mask"][0, 8:] = 0
    return made


def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise NotInParts("so it was asked")

    monkeypatch.setattr(calibrating, "_by_blocks", refuse)


def assert_same_files(one: QuantizeReport, other: QuantizeReport) -> None:
    for shard in one.shards:
        files = [Path(report.out, shard.name).read_bytes() for report in (one, other)]
        assert files[0] == files[1], shard.name


@pytest.mark.filterwarnings("ignore::scaled_mm.CalibrationWarning")
@pytest.mark.parametrize(
    ("family", "config", "dtype"),
    [
        *((family, "static", torch.float32) for family in FAMILIES),
        *((family, "smoothed", torch.bfloat16) for family in ("llama", "opt", "t5", "albert")),
        ("llama", "searched", torch.bfloat16),
        ("opt", "searched", torch.float32),
    ],
)
def test_it_has_the_bits_of_the_whole_model(
    family: str, config: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = written(tmp_path / "float", family, dtype)
    got = quantize_checkpoint(folder, tmp_path / "blocks", CONFIGS[config], batches())
    at_once(monkeypatch)
    wanted = quantize_checkpoint(folder, tmp_path / "whole", CONFIGS[config], batches())
    assert got.calibration == FAMILIES[family][3]
    assert wanted.calibration == "the whole model at once: so it was asked"
    assert got.layers == wanted.layers and got.smoothed == wanted.smoothed
    assert (got.smoothed or 0) > 0 or config == "static"
    assert_same_files(got, wanted)


def test_warnings_are_those_of_the_whole_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each once, and of all blocks."""
    folder = written(tmp_path / "float", "llama", torch.float32)
    config = QuantConfig(
        "static", percentile=60.0, smoothing=Smoothing(search=(0.95, 1.0), folds=1)
    )
    said = []
    for out in ("blocks", "whole"):
        with pytest.warns(UserWarning) as caught:
            quantize_checkpoint(folder, tmp_path / out, config, batches())
        said.append([str(each.message) for each in caught])
        assert {each.filename for each in caught} == {__file__}, "the caller's line"
        at_once(monkeypatch)
    assert said[0] == said[1]
    assert len(said[0]) == 3


PEAK = """
import re, sys
from pathlib import Path
import torch, transformers
import scaled_mm.checkpoint.calibrating as calibrating
from scaled_mm import QuantConfig
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.streaming import NotInParts

def refuse(*_):
    raise NotInParts("so it was asked")

tiny, model, out = sys.argv[1:]
def most():  # resident memory, at its highest since clear_refs was told to forget
    return int(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])

batches = [torch.arange(1, 33).view(1, 32)]
quantize_checkpoint(tiny, out + "-tiny", QuantConfig("static"), batches)  # imports, first buffers
for how in ("blocks", "whole"):
    Path("/proc/self/clear_refs").write_text("5")
    before = most()
    quantize_checkpoint(model, f"{out}-{how}", QuantConfig("static"), batches)
    print((most() - before) * 1024)
    calibrating._by_blocks = refuse
"""


def test_one_block_is_in_memory_at_a_time(tmp_path: Path) -> None:
    tiny, folder = written(tmp_path / "tiny", "llama", torch.float32), tmp_path / "float"
    sizes = {**SIZES, "hidden_size": 384, "intermediate_size": 768, "num_hidden_layers": 10}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes))
    model.save_pretrained(folder, max_shard_size="20MB")
    whole = sum(x.nbytes for x in model.parameters())
    block = sum(x.nbytes for x in model.model.layers[0].parameters())
    assert whole > 10 * block > 50e6
    del model
    out = tmp_path / "out"
    # One arena, and what is freed goes back at once: what is measured is what is in use.
    memory = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    said = run_python(PEAK, *map(str, (tiny, folder, out)), **memory)
    by_blocks, at_once = map(int, said.split())
    assert at_once > 0.9 * whole  # so this way of measuring sees a model
    assert by_blocks < 3 * block, (by_blocks, block)
    for path in Path(f"{out}-whole").glob("*.safetensors"):
        assert path.read_bytes() == Path(f"{out}-blocks", path.name).read_bytes()


class Unloaded:
    """A model of which nothing is loaded or freed."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @contextmanager
    def loaded(self, *_: object, **__: object) -> Iterator[None]:
        yield


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, *more: object) -> Tensor:
        return torch.relu(self.linear(x))


class Run(nn.Module):
    """Three blocks, run as `way` says."""

    def __init__(self, way: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.way = way

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.blocks, x)


def chain(blocks: Any, x: Tensor, *more: Any) -> Tensor:
    for block in blocks:
        x = block(x, *more).to(x.dtype)
    return x


NOT_IN_ORDER = "blocks does not run each block once, in order"
BESIDE = "the output of a block is read beside the next block"
NEITHER = "is neither the first block's nor the output of the one"
WAYS: dict[str, tuple[Callable[[Any, Tensor], Any], str | None]] = {
    "in order": (lambda b, x: chain(b, x) + 1, None),
    "reversed": (lambda b, x: chain(reversed(b), x), NOT_IN_ORDER),
    "twice": (lambda b, x: chain(b, chain(b, x)), NOT_IN_ORDER),
    "not all": (lambda b, x: chain(b[:2], x), "2 of 3 blocks of blocks ran"),
    "something between": (lambda b, x: chain(b[1:], b[0](x) + 1), BESIDE),
    "read again": (lambda b, x: chain(b[1:], y := b[0](x)) + y.sum(), BESIDE),
    "side by side": (lambda b, x: sum(each(x) for each in b), f"{BESIDE}|does not get"),
    "all of the input": (
        lambda b, x: [each(x) for each in b][-1],
        "blocks.1 does not get what the block before put out",
    ),
    "numbered": (lambda b, x: b[2](b[1](b[0](x, 0), 1), 2), f"blocks.1 gets a int that {NEITHER}"),
    "more": (
        lambda b, x: chain(b[1:], b[0](x), None),
        "blocks.1 is called otherwise than blocks.0",
    ),
    "own": (
        lambda b, x: b[2](b[1](b[0](x, torch.ones(1)), torch.ones(1)), torch.ones(1)),
        "blocks.1 gets a Tensor that is neither the first block's nor the output of",
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_which_models_are_run_by_blocks(name: str) -> None:
    way, refusal = WAYS[name]
    model = Run(way)
    walk = Walk(Unloaded(model), "blocks")  # type: ignore[arg-type]
    x = torch.randn(2, 4)
    if refusal is None:
        with walk.watching(), torch.no_grad():
            model(x)
        assert {feeding.slots for feeding in walk.feeding.values()} == {(0,)}
    else:
        with pytest.raises(NotInParts, match=refusal), walk.watching(), torch.no_grad():
            model(x)
    for block in model.blocks:
        assert not block._forward_hooks and not block._forward_pre_hooks


def test_the_list_that_holds_most_layers() -> None:
    model = nn.ModuleDict(
        {
            "few": nn.ModuleList([Block(), Block()]),
            "many": nn.ModuleList([Block(), Block(), Block()]),
            "mixed": nn.ModuleList([Block(), nn.Linear(4, 4), Block(), Block()]),
        }
    )
    layers = [name for name, x in model.named_modules() if isinstance(x, nn.Linear)]
    assert blocks_of(model, layers) == "many"
    assert blocks_of(model, ["few.1.linear"]) == "few"
    with pytest.raises(NotInParts, match="no list of equal blocks"):
        blocks_of(model, ["mixed.0.linear"])


def widened_norms(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    for path in folder.glob("*.safetensors"):
        state = load_file(path)
        wider = {name: x.float() if "layernorm" in name else x for name, x in state.items()}
        save_file(wider, path, {"format": "pt"})


def test_what_the_files_hold_otherwise(tmp_path: Path) -> None:
    """transformers casts what is stored in another dtype; then the model is loaded by it."""
    folder = written(tmp_path / "float", "llama", torch.bfloat16)
    widened_norms(folder)
    report = quantize_checkpoint(folder, tmp_path / "out", QuantConfig("static"), batches())
    assert report.calibration is not None
    said = "the whole model at once: model.layers.0.input_layernorm.weight is F32 [48], the model"
    assert report.calibration == f"{said} has torch.bfloat16 [48]"


def test_an_interrupted_run_remembers_how_it_was_calibrated(tmp_path: Path) -> None:
    folder = written(tmp_path / "float", "llama", torch.float32)

    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        quantize_checkpoint(folder, tmp_path / "out", QuantConfig("static"), batches(), stop)
    report = quantize_checkpoint(folder, tmp_path / "out", QuantConfig("static"), batches())
    assert report.calibration == BY_BLOCKS
    config = json.loads((tmp_path / "out/config.json").read_text())
    assert config["quantization_config"]["quant_method"] == "compressed-tensors"
