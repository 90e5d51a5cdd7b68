"""`fuse_model`: what it finds in models of transformers, and that nothing else changes."""

from __future__ import annotations

import copy
import itertools
from collections import Counter
from typing import Any

import pytest
import torch
from helpers import assert_bits, extra
from torch import Tensor, nn

from scaled_mm import QuantConfig, fuse_model, quantize_model, reference
from scaled_mm.nn.produced import Produced
from scaled_mm.quantization.fuse import activation_of
from scaled_mm.smoothquant import Smoothing
from scaled_mm.validate import validate

SMALL = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 100,
    "max_position_embeddings": 64,
}
GROUPED = {**SMALL, "num_key_value_heads": 2}
MODELS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    "Llama": ("LlamaForCausalLM", GROUPED, {"FusedNorm": 4, "FusedGatedMLP": 2}),
    "Mistral": ("MistralForCausalLM", GROUPED, {"FusedNorm": 4, "FusedGatedMLP": 2}),
    "Qwen2": ("Qwen2ForCausalLM", GROUPED, {"FusedNorm": 4, "FusedGatedMLP": 2}),
    "Qwen3": (
        "Qwen3ForCausalLM",
        {**GROUPED, "head_dim": 16},
        {"FusedNorm": 4, "FusedGatedMLP": 2},
    ),
    "Gemma": (
        "GemmaForCausalLM",
        {**GROUPED, "head_dim": 16},
        {"FusedNorm": 4, "FusedGatedMLP": 2},
    ),
    "OPT": (
        "OPTForCausalLM",
        {**SMALL, "ffn_dim": 128, "word_embed_proj_dim": 64},
        {"FusedNorm": 4, "FusedActivation": 2},
    ),
    # Its norms are residuals too; what the last one makes is the model's output.
    "Bert": ("BertModel", SMALL, {"FusedNorm": 4, "FusedActivation": 2}),
    "ViT": (
        "ViTModel",
        {**SMALL, "image_size": 32, "patch_size": 8},
        {"FusedNorm": 4, "FusedActivation": 2},
    ),
}
SCHEMES = {
    "dynamic": QuantConfig(),
    "dynamic asymmetric": QuantConfig("dynamic-asymmetric"),
    "static asymmetric": QuantConfig("static-asymmetric"),
}


def built(family: str) -> tuple[nn.Module, dict[str, Tensor]]:
    """A small model with weights of every size, and a batch."""
    transformers = extra("transformers")
    kind, sizes, _ = MODELS[family]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**sizes)
    model = getattr(transformers, kind)(config).eval()
    for parameter in model.parameters():
        if parameter.ndim == 1:
            parameter.data.add_(torch.randn_like(parameter) / 10)
    if family == "ViT":
        return model, {"pixel_values": torch.randn(3, 3, 32, 32)}
    return model, {"input_ids": torch.randint(0, 100, (3, 9))}


def fused_kinds(model: nn.Module) -> dict[str, int]:
    names = (type(module).__name__ for module in model.modules())
    return dict(Counter(name for name in names if name.startswith("Fused")))


@torch.inference_mode()
def output(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch)[0]


@pytest.mark.parametrize("family", MODELS)
def test_models_of_transformers(family: str) -> None:
    model, batch = built(family)
    quantized = quantize_model(model, fuse=False)
    fused = fuse_model(quantized, batch)
    assert fused_kinds(fused) == MODELS[family][2]
    assert not fused_kinds(quantized)
    where_safe = quantize_model(model, None, [batch] if family == "ViT" else None, fuse=None)
    assert fused_kinds(where_safe) == MODELS[family][2]  # the others have an example of their own
    assert_bits(output(where_safe, batch), output(fused, batch))
    before, after = output(quantized, batch), output(fused, batch)
    noise = (output(model, batch) - before).norm()
    assert (after - before).norm() <= 0.1 * noise  # where a float32 lies at a tie, q may differ
    state, other = quantized.state_dict(), fused.state_dict()
    assert list(state) == list(other)
    for name, x in state.items():
        assert_bits(x, other[name], name)


@pytest.mark.parametrize(
    ("family", "scheme"),
    [
        ("Llama", "dynamic asymmetric"),
        ("Llama", "static asymmetric"),
        ("Gemma", "dynamic"),
        ("ViT", "static asymmetric"),
    ],
)
def test_validate_sees_through_it(family: str, scheme: str) -> None:
    """Every product is the reference's, whose int8 input the reference makes of the producer's
    float inputs."""
    model, batch = built(family)
    fused = quantize_model(model, SCHEMES[scheme], [batch], fuse=True)
    assert fused_kinds(fused) == MODELS[family][2]
    report = validate(model, fused, [batch], stride=5)
    unfused = quantize_model(model, SCHEMES[scheme], [batch], fuse=False)
    plain = validate(model, unfused, [batch], stride=5)
    assert [layer.name for layer in report.layers] == [layer.name for layer in plain.layers]
    assert sum(layer.checked for layer in report.layers) > 0
    assert sum(layer.off_r1 for layer in report.layers) == 0
    for one, two in zip(report.layers, plain.layers, strict=True):
        assert one.sqnr_db == pytest.approx(two.sqnr_db, abs=0.1), one.name


def test_validate_notices_a_producer_that_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = built("Llama")
    fused = quantize_model(model, None, [batch], fuse=True)
    make = Produced.make.__func__  # type: ignore[attr-defined]

    def off(cls: type[Produced], *given: Any) -> Produced:
        made = make(cls, *given)
        made.q[..., 0] += 1
        return made

    monkeypatch.setattr(Produced, "make", classmethod(off))
    assert sum(layer.off_r1 for layer in validate(model, fused, [batch]).layers) > 0


def test_smoothed() -> None:
    """A divisor that no norm takes is the producer's to multiply by."""
    model, batch = built("OPT")
    smoothing = Smoothing(layers=("*",), into_norms=False)
    fused = quantize_model(model, QuantConfig(smoothing=smoothing), [batch], fuse=True)
    smoothed = [m for m in fused.modules() if getattr(m, "input_smooth", None) is not None]
    assert smoothed
    assert sum(layer.off_r1 for layer in validate(model, fused, [batch]).layers) == 0


def test_moves_copies_and_saves(tmp_path: Any) -> None:
    model, batch = built("Llama")
    fused = quantize_model(model, None, [batch], fuse=True)
    expected = output(fused, batch)
    assert_bits(output(copy.deepcopy(fused), batch), expected)
    torch.save(fused, tmp_path / "model.pt")
    assert_bits(output(torch.load(tmp_path / "model.pt", weights_only=False), batch), expected)
    half = copy.deepcopy(fused).bfloat16()
    assert output(half, batch).dtype == torch.bfloat16
    fused.load_state_dict(fused.state_dict())
    assert_bits(output(fused, batch), expected)


# --- by hand --------------------------------------------------------------------------------------


class Block(nn.Module):
    """A norm whose reader is a Linear, and whatever `extra` reads of it."""

    def __init__(self, norm: nn.Module, other: Any = None) -> None:
        super().__init__()
        self.norm, self.first, self.second = norm, nn.Linear(64, 96), nn.Linear(64, 32)
        self.other = other

    def forward(self, x: Tensor) -> Any:
        y = self.norm(x)
        out = self.first(y), self.second(y)
        return out if self.other is None else (*out, self.other(y))


NORMS = {
    "layer": nn.LayerNorm(64),
    "layer without bias": nn.LayerNorm(64, bias=False),
    "rms": nn.RMSNorm(64, eps=1e-5),
    "rms of default eps": nn.RMSNorm(64),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 7, 64).to(dtype)
    x[1] /= 512  # eps counts
    model = quantize_model(Block(copy.deepcopy(NORMS[name])).to(dtype))
    fused = fuse_model(model, x)
    assert fused_kinds(fused) == {"FusedNorm": 1}
    with torch.inference_mode():
        outputs = zip(fused(x), model(x), strict=True)
    for got, before in outputs:
        assert got.dtype == dtype
        close = 1e-5 if dtype == torch.float32 else 2e-2
        torch.testing.assert_close(got, before, rtol=close, atol=close)


def test_one_product_by_the_reference() -> None:
    x = torch.randn(5, 64).bfloat16()
    model = quantize_model(Block(nn.LayerNorm(64)).bfloat16(), QuantConfig("dynamic-asymmetric"))
    fused = fuse_model(model, x)
    norm, first = model.norm, model.first
    given = {"weight": norm.weight, "bias": norm.bias, "eps": norm.eps, "symmetric": False}
    q, scale, azp, *_ = reference.produce_int8("layer_norm", x, **given)
    b = first.weight_int8.t()
    terms = {"azp": azp, "azp_adj": reference.azp_adj(b), "bias": first.bias}
    expected = reference.scaled_mm(q, b, scale, first.weight_scale.t(), **terms)
    with torch.no_grad():
        assert_bits(fused(x)[0], expected)


def zero_a_row(y: Tensor) -> None:
    y[0] = 0


@pytest.mark.parametrize("other", [lambda y: y, lambda y: y.mul_(2), zero_a_row])
def test_a_norm_that_is_an_output_or_is_changed_stays(other: Any) -> None:
    model = quantize_model(Block(nn.LayerNorm(64), other))
    assert not fused_kinds(fuse_model(model, torch.randn(3, 64)))


def test_an_activation_that_others_read_stays() -> None:
    class Gelu(Block):
        def forward(self, x: Tensor) -> Any:
            y = self.norm(x)
            return self.first(y), y + 1

    model = quantize_model(Gelu(nn.GELU()))
    assert not fused_kinds(fuse_model(model, torch.randn(3, 64)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "other",
    [
        lambda y: y + 1,
        lambda y: 1 - y,
        lambda y: y.sum(-1),
        lambda y: y[1:] * 2,
        lambda y: y[..., 1],
    ],
)
def test_a_norm_that_others_read_writes_floats_too(other: Any, dtype: torch.dtype) -> None:
    x = torch.randn(3, 64).to(dtype)
    model = quantize_model(Block(nn.LayerNorm(64), other).to(dtype))
    fused = fuse_model(model, x)
    assert fused_kinds(fused) == {"FusedNorm": 1}
    given = {"weight": model.norm.weight, "bias": model.norm.bias, "eps": model.norm.eps}
    *_, floats = reference.produce_int8("layer_norm", x, **given, normed=True)
    with torch.inference_mode():
        *_, seen = fused(x)
        alone = fuse_model(quantize_model(Block(nn.LayerNorm(64)).to(dtype)), x)
        alone.load_state_dict(fused.state_dict())
        for got, expected in zip(fused(x)[:2], alone(x), strict=True):
            assert_bits(got, expected)
    assert_bits(seen, other(floats))


def test_readers_that_quantise_otherwise_stay() -> None:
    config = QuantConfig(overrides=(("second", "dynamic-asymmetric"),))
    model = quantize_model(Block(nn.LayerNorm(64)), config)
    assert not fused_kinds(fuse_model(model, torch.randn(3, 64)))
    one_scale = quantize_model(Block(nn.LayerNorm(64)), QuantConfig("dynamic-tensor"))
    assert not fused_kinds(fuse_model(one_scale, torch.randn(3, 64)))


class Odd(nn.Module):
    """Three Linears and an activation that are no gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(32, 48), nn.Linear(32, 48), nn.Linear(48, 32)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.c(self.act(self.a(x)) + self.b(x))


def test_a_module_that_computes_something_else_stays() -> None:
    assert not fused_kinds(fuse_model(quantize_model(Odd()), torch.randn(3, 32)))


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (nn.ReLU(), "relu"),
        (nn.SiLU(), "silu"),
        (nn.GELU(), "gelu"),
        (nn.GELU("tanh"), "gelu_tanh"),
        (nn.Tanh(), None),
        (nn.Softmax(-1), None),
        (nn.Identity(), None),
        (nn.Linear(4, 4), None),
    ],
)
def test_activations_by_trial(module: nn.Module, name: str | None) -> None:
    assert activation_of(module) == name


class Gate(nn.Module):
    """A gated MLP whose Linears have any order."""

    def __init__(self, order: tuple[str, ...]) -> None:
        super().__init__()
        made = {name: nn.Linear(64, 64) for name in ("gate", "up", "down")}
        for name in order:
            setattr(self, name, made[name])
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


@pytest.mark.parametrize("order", [*itertools.permutations(("gate", "up", "down"))], ids="-".join)
def test_a_gated_mlp_whatever_the_order_of_its_linears(order: tuple[str, ...]) -> None:
    torch.manual_seed(5)
    model, x = Gate(order), torch.randn(7, 64)
    quantized = quantize_model(model, fuse=False)
    fused = fuse_model(quantized, x)
    assert fused_kinds(fused) == {"FusedGatedMLP": 1}
    with torch.no_grad():
        torch.testing.assert_close(fused(x), quantized(x), rtol=1e-5, atol=1e-5)


def test_compiles_as_one_graph() -> None:
    torch._dynamo.reset()
    x = torch.randn(2, 7, 64)
    model = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 8))
    fused = quantize_model(model, None, [x], fuse=True)
    assert fused_kinds(fused) == {"FusedNorm": 1, "FusedActivation": 1}
    compiled = torch.compile(fused, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.inference_mode():
        for rows in (7, 3):
            assert_bits(compiled(x[:, :rows]), fused(x[:, :rows]))
