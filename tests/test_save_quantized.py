"""`save_quantized`: read back here bit for bit, and by transformers with the same numbers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import tiny
from checkpoint_cases import Model, files_of, state_of
from helpers import assert_bits, assert_same_state, extra, rows
from llamas import IDS, llama, relative
from test_checkpoint_llama import DTYPES
from torch import Tensor, nn

from scaled_mm import QuantConfig, Smoothing, load_quantized, quantize_model, save_quantized
from scaled_mm.checkpoint import saving
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.checkpoint.shards import NewShard, Planned, split
from scaled_mm.lowbit.grouped import GroupedWeight
from scaled_mm.nn import ScaledLinear, WeightOnlyLinear
from scaled_mm.precompute import precompute
from scaled_mm.quantization.schemes import SCHEMES

extra("compressed_tensors")
transformers = extra("transformers")

MIXED = QuantConfig("static-asymmetric", overrides=(("*.down_proj", "dynamic"),))
CONFIGS = {
    **{name: QuantConfig(name) for name in SCHEMES},
    "mixed": MIXED,
    "smoothed": QuantConfig("static-asymmetric", smoothing=Smoothing(0.6)),
}


def from_transformers(folder: Path) -> nn.Module:
    """As transformers reads a folder, after the forward pass in which it decompresses."""
    model: Any = transformers.LlamaForCausalLM.from_pretrained(folder, dtype="auto").eval()
    model(IDS)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CONFIGS)
def test_it_is_read_back_bit_for_bit(name: str, dtype: str, tmp_path: Path) -> None:
    model = quantize_model(llama(DTYPES[dtype]), CONFIGS[name], [IDS])
    save_quantized(model, tmp_path / "out", max_shard_bytes=40_000)
    assert len(Checkpoint(tmp_path / "out").files) > 1
    loaded = load_quantized(llama(DTYPES[dtype]), tmp_path / "out")
    assert_same_state(loaded, model)
    assert_bits(loaded(IDS).logits, model(IDS).logits, name)


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_reads_the_same_model(name: str, tmp_path: Path) -> None:
    """Float32, so that its scales are ours; its weights then are the very products."""
    original = llama(torch.float32)
    model = quantize_model(original, CONFIGS[name], [IDS])
    save_quantized(model, tmp_path / "out")
    theirs = from_transformers(tmp_path / "out")
    layers = {n: m for n, m in model.named_modules() if isinstance(m, ScaledLinear)}
    assert len(layers) == 14
    for layer, own in layers.items():
        module = theirs.get_submodule(layer)
        assert torch.equal(module.weight, own.weight), layer
        if own.input_scale is not None:
            assert torch.equal(module.input_scale, own.input_scale), layer
        if own.input_zero_point is not None:
            assert torch.equal(module.input_zero_point.int(), own.input_zero_point), layer
    got, wanted, exact = (m(IDS).logits for m in (theirs, model, original))
    error = relative(wanted, exact)
    assert 0.02 < error < 0.1
    # Symmetric scales at run time are amax / 127.5 there and amax / 127 here: another grid. On the
    # same grid only the order of float sums differs, and a few inputs round to the other side.
    other_grid = any(m.dynamic and m.symmetric for m in layers.values())
    assert relative(got, wanted) < (1.3 if other_grid else 0.3) * error


def test_one_scheme_is_a_group_of_the_class(tmp_path: Path) -> None:
    config = QuantConfig(ignore=("lm_head", "*.layers.0.*"))
    save_quantized(quantize_model(llama(), config), tmp_path / "out")
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert written["architectures"] == ["LlamaForCausalLM"] and written["dtype"] == "bfloat16"
    groups = written["quantization_config"]["config_groups"]
    assert [group["targets"] for group in groups.values()] == [["Linear"]]
    ignored = written["quantization_config"]["ignore"]
    assert len(ignored) == 8 and "model.layers.0.mlp.up_proj" in ignored


def test_terms_that_follow_are_left_out_and_precompute_adds_them(tmp_path: Path) -> None:
    model = quantize_model(llama(), QuantConfig("static-asymmetric"), [IDS])
    save_quantized(model, tmp_path / "out")
    assert not any("azp_" in name for name in state_of(tmp_path / "out"))
    report = precompute(tmp_path / "out", tmp_path / "with-terms")
    assert sum(term.added for term in report.terms) == 14
    assert_same_state(load_quantized(llama(), tmp_path / "with-terms"), model)


def test_tied_weights_are_written_once(tmp_path: Path) -> None:
    model = quantize_model(llama(tie_word_embeddings=True))
    save_quantized(model, tmp_path / "out")
    state = state_of(tmp_path / "out")
    assert "model.embed_tokens.weight" in state and "lm_head.weight" not in state
    loaded = load_quantized(llama(tie_word_embeddings=True), tmp_path / "out")
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight  # type: ignore[union-attr]
    assert_bits(loaded(IDS).logits, model(IDS).logits, "tied")
    theirs: Any = from_transformers(tmp_path / "out")
    assert theirs.lm_head.weight is theirs.model.embed_tokens.weight


def test_a_tied_weight_has_the_name_that_is_looked_for(tmp_path: Path) -> None:
    """Of several names, not the one that transformers ties to another."""

    class HeadFirst(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(8, 16, bias=False)
            self.table = nn.Embedding(16, 8)
            self.up = nn.Linear(8, 8)
            self.head.weight = self.table.weight
            self.all_tied_weights_keys = {"head.weight": "table.weight"}

    save_quantized(quantize_model(HeadFirst(), QuantConfig(targets=("up",))), tmp_path / "out")
    state = state_of(tmp_path / "out")
    assert "table.weight" in state and "head.weight" not in state


def test_a_quantised_head_is_tied_no_more(tmp_path: Path) -> None:
    model = quantize_model(llama(tie_word_embeddings=True), QuantConfig(ignore=()))
    save_quantized(model, tmp_path / "out")
    state = state_of(tmp_path / "out")
    assert state["lm_head.weight"].dtype == torch.int8
    assert state["model.embed_tokens.weight"].dtype == torch.bfloat16
    config = transformers.LlamaConfig.from_pretrained(tmp_path / "out")
    assert config.tie_word_embeddings is False
    assert_bits(load_quantized(llama(), tmp_path / "out")(IDS).logits, model(IDS).logits, "head")
    theirs: Any = from_transformers(tmp_path / "out")
    assert theirs.lm_head.weight is not theirs.model.embed_tokens.weight


class Odd(nn.Module):
    """Tensors of several dtypes, a module in two places, and buffers of both kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.again = self.first
        self.norm = nn.LayerNorm(32, dtype=torch.float64)
        self.last = nn.Linear(32, 4, dtype=torch.float16)
        self.register_buffer("kept", torch.arange(3))
        self.register_buffer("flag", torch.tensor(True))
        self.register_buffer("none", torch.empty(0, 5))
        self.register_buffer("not_kept", torch.ones(2), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.again(torch.relu(self.first(x)))
        return self.last(self.norm(x.double()).half())


def test_any_module(tmp_path: Path) -> None:
    original = Odd().eval()
    model = quantize_model(original, QuantConfig(ignore=("last",)))
    save_quantized(model, tmp_path / "out")
    state = state_of(tmp_path / "out")
    assert set(state) == {
        "first.weight", "first.weight_scale", "first.bias", "norm.weight", "norm.bias",
        "last.weight", "last.bias", "kept", "flag", "none",
    }  # fmt: skip
    (file,) = Checkpoint(tmp_path / "out").files.values()
    assert file.data % 8 == 0
    assert not any(x.begin % state[name].itemsize for name, x in file.entries.items()), "aligned"
    assert state["norm.weight"].dtype == torch.float64
    assert state["last.weight"].dtype == torch.float16
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config.keys() == {"quantization_config"}
    loaded = load_quantized(Odd().eval(), tmp_path / "out")
    assert loaded.first is loaded.again  # type: ignore[union-attr]
    x = torch.randn(5, 32)
    assert_bits(loaded(x), model(x), "odd")


def test_a_bias_keeps_its_bits(tmp_path: Path) -> None:
    """In the model's dtype where it fits, in float32 where it does not."""
    model: Any = quantize_model(Model().bfloat16(), QuantConfig(ignore=("head",)))
    save_quantized(model, tmp_path / "fits")
    assert state_of(tmp_path / "fits")["up.bias"].dtype == torch.bfloat16
    model.up.bias += 2.0**-20
    save_quantized(model, tmp_path / "not")
    assert state_of(tmp_path / "not")["up.bias"].dtype == torch.float32
    assert torch.equal(state_of(tmp_path / "not")["up.bias"], model.up.bias)


def test_other_files_go_along(tmp_path: Path) -> None:
    """Those of the folder that transformers loaded the model from, and what it says itself."""
    llama().save_pretrained(tmp_path / "float")
    for name, text in (("tokenizer.json", "{}"), ("README.md", "mine"), ("pytorch.bin", "x")):
        (tmp_path / "float" / name).write_text(text)
    (tmp_path / "float" / "README.md").chmod(0o600)
    loaded = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "float")
    save_quantized(quantize_model(loaded), tmp_path / "out")
    files = files_of(tmp_path / "out")
    assert set(files) == {
        "README.md", "config.json", "generation_config.json", "model.safetensors", "tokenizer.json"
    }  # fmt: skip
    assert files["README.md"] == b"mine"
    assert (tmp_path / "out" / "README.md").stat().st_mode & 0o777 == 0o600
    save_quantized(quantize_model(llama()), tmp_path / "alone")
    assert "README.md" not in files_of(tmp_path / "alone")
    save_quantized(quantize_model(llama()), tmp_path / "named", source=tmp_path / "float")
    assert files_of(tmp_path / "named")["README.md"] == b"mine"


def test_no_file_from_elsewhere_is_copied(tmp_path: Path) -> None:
    (tmp_path / "float").mkdir()
    (tmp_path / "secret").write_text("not to be given away")
    (tmp_path / "float" / "notes.txt").symlink_to(tmp_path / "secret")
    with pytest.raises(ValueError, match=r"notes.txt: is a link out of the checkpoint"):
        save_quantized(quantize_model(llama()), tmp_path / "out", source=tmp_path / "float")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("act_order", [False, True])
def test_awq_layers_are_saved_as_packed_ones(tmp_path: Path, act_order: bool) -> None:
    torch.manual_seed(0)
    q = torch.randint(16, (64, 32), dtype=torch.uint8)
    zeros = torch.randint(16, (2, 32), dtype=torch.uint8)
    g_idx = torch.randperm(64) % 2 if act_order else None
    weight = GroupedWeight(q, torch.rand(2, 32).bfloat16(), zeros)
    layer = WeightOnlyLinear.from_grouped(weight, bits=4, g_idx=g_idx, bias=torch.randn(32))
    save_quantized(nn.ModuleDict({"a": layer}), tmp_path / "out")
    made = load_quantized(nn.ModuleDict({"a": nn.Linear(64, 32)}), tmp_path / "out")["a"]
    x = torch.randn(3, 64).bfloat16()
    assert isinstance(made, WeightOnlyLinear)
    assert torch.equal(made.weight, layer.weight)
    assert (made(x).float() - layer(x).float()).abs().max() < 0.05 * layer(x).float().abs().max()


def smoothed_in_the_quantiser() -> nn.Module:
    config = QuantConfig(smoothing=Smoothing(0.5, layers=("*.o_proj",)))
    return quantize_model(llama(), config, [IDS])


def with_other_int8() -> nn.Module:
    model: Any = quantize_model(Model(), QuantConfig(ignore=("head",)))
    model.head.register_buffer("table", torch.zeros(2, 2, dtype=torch.int8))
    return model


REFUSED: dict[str, Any] = {
    r"self_attn.o_proj: input_smooth has no place in": smoothed_in_the_quantiser,
    r"head.table must be float, got torch.int8 of a Linear": with_other_int8,
    r"h.0.attn.c_attn: is a Conv1D in the float model, and compressed-tensors'": lambda: (
        quantize_model(tiny("GPT2LMHeadModel"))
    ),
    "must hold a quantised layer, such as a ScaledLinear, got none": llama,
    "under names, got one by itself": lambda: ScaledLinear(4, 4),
    r"1.weight must be a tensor with values, got one on the meta device": lambda: nn.Sequential(
        ScaledLinear(4, 4), nn.Linear(4, 4, device="meta")
    ),
}


@pytest.mark.parametrize(("said", "made"), rows(REFUSED))
def test_refused(said: str, made: Any, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        save_quantized(made(), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_only_into_a_new_or_empty_folder(tmp_path: Path) -> None:
    model = quantize_model(Model(), QuantConfig(ignore=("head",)))
    (tmp_path / "empty").mkdir()
    save_quantized(model, tmp_path / "empty")
    before = files_of(tmp_path / "empty")
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file"):
        with pytest.raises(ValueError, match="path must be a folder that is new or empty, got"):
            save_quantized(model, tmp_path / name)
    assert files_of(tmp_path / "empty") == before
    for options, said in (
        ({"max_shard_bytes": 0}, "max_shard_bytes must be at least 1, got 0"),
        ({"source": tmp_path / "file"}, "source must be a folder, got"),
    ):
        with pytest.raises(ValueError, match=said):
            save_quantized(model, tmp_path / "new", **options)


@pytest.mark.usefixtures("umask")
def test_modes_are_those_of_new_files(tmp_path: Path) -> None:
    """Where nothing is copied, the umask decides."""
    model = quantize_model(Model(), QuantConfig(ignore=("head",)))
    os.umask(0)
    save_quantized(model, tmp_path / "new" / "deep" / "out")
    files = (tmp_path / "new" / "deep" / "out").iterdir()
    modes = {path.name: path.stat().st_mode & 0o7777 for path in files}
    assert modes == {"config.json": 0o666, "model.safetensors": 0o666}


def test_nothing_is_left_of_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(saving, "write_json", full)
    with pytest.raises(OSError, match="No space"):
        save_quantized(quantize_model(Model()), tmp_path / "out")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("most", "cut"), [(100, "abcde"), (20, "ab c de"), (1, "a b c d e")])
def test_shards_are_cut_by_size(most: int, cut: str) -> None:
    sizes = {"a": 10, "b": 10, "c": 25, "d": 0, "e": 5}
    planned = [Planned(name, "U8", (size,)) for name, size in sizes.items()]
    assert ["".join(each.name for each in part) for part in split(planned, most)] == cut.split()


def test_a_shard_is_written_as_planned(tmp_path: Path) -> None:
    shard = NewShard("s.safetensors", [Planned("a", "F32", (2,))], {})
    wrong = {"a must be F32": [("a", torch.zeros(3))], "a was not made": []}
    for said, made in wrong.items():
        with pytest.raises(ValueError, match=said):
            shard.write(tmp_path / shard.name, made)
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="two tensors would have the name a"):
        NewShard("s", [Planned("a", "F32", (2,))] * 2, {})
