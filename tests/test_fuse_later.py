"""What is done to a fused model afterwards: loading, hooks, offloading, sharding, export."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_bits
from test_fuse import Block, built, fused_kinds, output
from test_fuse_safe import mlp
from torch import Tensor, nn

from scaled_mm import QuantConfig, fuse_model, load_quantized, quantize_model, save_quantized
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.produced import Produced
from scaled_mm.quantization.feeds import find_feeds
from scaled_mm.quantization.fuse import example_of, find_sites, fused_where_safe
from scaled_mm.quantization.fused import Fused
from scaled_mm.quantization.observe import as_call

SCHEMES = ("dynamic", "static-asymmetric")
schemes = pytest.mark.parametrize("scheme", SCHEMES)


class Gated(nn.Module):
    """A norm in front of a gated MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(64, eps=1e-6), MLP()

    def forward(self, x: Tensor) -> Tensor:
        return self.mlp(self.norm(x))


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(64, 96), nn.Linear(64, 96)
        self.down, self.act = nn.Linear(96, 64), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def both(scheme: str = "dynamic") -> tuple[nn.Module, nn.Module, Tensor]:
    """The same model fused and unfused, and a batch."""
    torch.manual_seed(3)
    model, x = Gated().bfloat16(), torch.randn(50, 64).bfloat16()  # of which a producer rounds less
    config = QuantConfig(scheme)
    fused = quantize_model(model, config, [x])
    assert fused_kinds(fused) == {"FusedNorm": 1, "FusedGatedMLP": 1}
    return fused, quantize_model(model, config, [x], fuse=False), x


@torch.inference_mode()
def run(model: nn.Module, x: Tensor) -> Tensor:
    return model(x)


# --- what makes it run as if it were not fused ----------------------------------------------------


@torch.inference_mode()
def test_a_state_dict_of_several_scales() -> None:
    """A norm's readers quantise alike when it is fused; a state dict may say otherwise, and say so
    again."""
    torch.manual_seed(4)
    model, x = Block(nn.LayerNorm(64)), torch.randn(5, 64)
    fused = quantize_model(model, QuantConfig("static"), [x])
    plain = quantize_model(model, QuantConfig("static"), [x], fuse=False)
    assert fused_kinds(fused) == {"FusedNorm": 1}
    alike, before = copy.deepcopy(fused.state_dict()), fused(x)
    apart = copy.deepcopy(alike)
    apart["second.input_scale"] *= 3
    copies = [fused, copy.deepcopy(fused), pickled(fused)]
    for one in copies:
        for assign in (False, True):
            one.load_state_dict(apart, assign=assign)
            plain.load_state_dict(apart)
            for got, want in zip(one(x), plain(x), strict=True):
                assert_bits(got, want)
            one.load_state_dict(alike, assign=assign)
            for got, want in zip(one(x), before, strict=True):
                assert_bits(got, want)


def hook(name: str) -> Callable[[nn.Module], object]:
    return lambda module: getattr(module, f"register_{name}_hook")(lambda *_: None)


def wrap(module: nn.Module) -> None:
    """As accelerate does, to bring a module's weights before it is called."""
    forward = module.forward
    module.forward = lambda *args: forward(*args)  # type: ignore[method-assign]


LATER: dict[str, tuple[str, Callable[[nn.Module], object]]] = {
    "the norm is hooked": ("norm", hook("forward")),
    "a reader is hooked": ("mlp.up", hook("forward_pre")),
    "a reader is wrapped": ("mlp.gate", wrap),
    "the activation is hooked": ("mlp.act", hook("forward")),
    "the activation is wrapped": ("mlp.act", wrap),
    "down is hooked": ("mlp.down", hook("forward_pre")),
    "down is wrapped": ("mlp.down", wrap),
}


@schemes
@pytest.mark.parametrize("what", LATER)
def test_who_watches_later_gets_tensors(what: str, scheme: str) -> None:
    """Of the two sites the one that is not watched stays fused: the output is that of the unfused
    model, of which only this other one is fused."""
    fused, plain, x = both(scheme)
    name, change = LATER[what]
    at = "norm" if name in ("norm", "mlp.up", "mlp.gate") else "mlp"
    kept = find_sites(plain, as_call(x))
    del kept[at]
    for site, module in kept.items():
        plain.set_submodule(site, module)
    change(fused.get_submodule(name))
    assert not torch.equal(run(plain, x), run(both(scheme)[0], x))
    assert_bits(run(fused, x), run(plain, x))


class DoubledNorm(nn.LayerNorm):
    """A norm whose forward leans on its class: on another method, and on the class above."""

    def forward(self, x: Tensor, twice: bool = False) -> Tensor:
        return self.normed(x) * (2 if twice else 1)

    def normed(self, x: Tensor) -> Tensor:
        return super().forward(x)


class Named(nn.Module):
    """A gated MLP whose children have names of our own."""

    def __init__(self) -> None:
        super().__init__()
        self.readers, self.producer = nn.Linear(64, 96), nn.Linear(64, 96)
        self.roles, self.activation = nn.Linear(96, 64), nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.roles(self.activation(self.readers(x)) * self.producer(x))


def test_it_is_of_the_class_that_it_was() -> None:
    model = nn.Sequential(DoubledNorm(64), nn.Linear(64, 64), Named()).bfloat16()
    x = torch.randn(50, 64).bfloat16()
    fused, plain = (quantize_model(model, None, [x], fuse=fuse) for fuse in (None, False))
    assert fused_kinds(fused) == {"FusedNorm": 1, "FusedGatedMLP": 1}
    assert isinstance(fused[0], nn.LayerNorm) and isinstance(fused[2], Named)
    assert_bits(run(pickled(fused), x), run(fused, x))
    with torch.inference_mode():
        assert_bits(fused[0](x, twice=True), plain[0](x, twice=True))
    for name in ("0", "2.activation"):
        fused.get_submodule(name).register_forward_hook(lambda *_: None)
    assert_bits(run(fused, x), run(plain, x))


def test_hooks_see_tensors() -> None:
    fused, _, x = both()
    seen: list[Any] = []
    fused.norm.register_forward_hook(lambda module, inputs, out: seen.append(out))
    fused.mlp.down.register_forward_pre_hook(lambda module, inputs: seen.extend(inputs))
    run(fused, x)
    assert [type(y) for y in seen] == [Tensor, Tensor]


def test_scales_that_arrive_with_the_weights() -> None:
    """Offloaded weights are on the meta device until their layer is called."""
    fused, plain, x = both("static-asymmetric")
    for model in (fused, plain):
        for layer in [m for m in model.modules() if isinstance(m, ScaledLinear)]:
            offload(layer)
    assert_bits(run(fused, x), run(plain, x))


def offload(layer: nn.Module) -> None:
    state, forward = copy.deepcopy(layer.state_dict()), layer.forward
    away = {name: t.to("meta") for name, t in state.items()}

    def arrived(*args: Any) -> Any:
        layer.load_state_dict(state, assign=True)
        try:
            return forward(*args)
        finally:
            layer.load_state_dict(away, assign=True)

    layer.load_state_dict(away, assign=True)
    layer.forward = arrived  # type: ignore[method-assign]


@torch.no_grad()
@pytest.mark.parametrize("place", ["mlp.act", "mlp.down", "mlp.up"])
def test_a_part_that_is_exchanged(place: str) -> None:
    fused, plain, x = both()
    sizes = (96, 64) if place == "mlp.down" else (64, 96)
    other = nn.Tanh() if place == "mlp.act" else nn.Linear(*sizes).bfloat16()
    for model in (fused, plain):
        model.set_submodule(place, other)
    torch.testing.assert_close(fused(x), plain(x), rtol=2e-2, atol=2e-2)


# --- what it survives -----------------------------------------------------------------------------


def pickled(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    made: nn.Module = torch.load(file, weights_only=False)
    return made


@schemes
def test_copies_are_their_own(scheme: str) -> None:
    fused, _, x = both(scheme)
    want = run(fused, x)
    for made in (copy.deepcopy(fused), pickled(fused)):
        assert_bits(run(made, x), want)
        for site in (m for m in made.modules() if isinstance(m, Fused)):
            assert set(site._site.readers) <= set(made.modules())


@schemes
def test_export_and_compile(scheme: str) -> None:
    torch._dynamo.reset()
    fused, _, x = both(scheme)
    want = run(fused, x)
    for strict in (False, True):
        program = torch.export.export(fused, (x,), strict=strict)
        assert sum("produce" in str(node.target) for node in program.graph.nodes) == 2
        assert_bits(run(program.module(), x), want)
    compiled = torch.compile(fused, fullgraph=True, backend="aot_eager")
    assert_bits(run(compiled, x), want)


@schemes
def test_written_and_read_back(tmp_path: Path, scheme: str) -> None:
    """A model of transformers brings its example: what is loaded is fused again."""
    model, batch = built("Llama")
    made = quantize_model(model, QuantConfig(scheme), [batch["input_ids"]])
    assert fused_kinds(made)
    save_quantized(made, tmp_path / "out")
    loaded = load_quantized(copy.deepcopy(model), tmp_path / "out")
    assert fused_kinds(loaded) == fused_kinds(made)
    assert_bits(output(loaded, batch), output(made, batch))
    unfused = load_quantized(model.train(), tmp_path / "out", fuse=False)
    assert not fused_kinds(unfused)


def test_modes_stay(tmp_path: Path) -> None:
    model, _ = built("Llama")
    save_quantized(quantize_model(model), tmp_path / "out")
    loaded = load_quantized(model.train(), tmp_path / "out")
    assert fused_kinds(loaded) and all(module.training for module in loaded.modules())


# --- how it is found ------------------------------------------------------------------------------


def test_the_example_goes_where_the_model_is() -> None:
    model, x = mlp()
    quantized = quantize_model(model, fuse=False)
    quantized.dummy_inputs = {"input": x.to("meta"), "other": 1}
    assert not fused_kinds(fused_where_safe(quantized))  # nothing can be brought from there
    quantized.dummy_inputs = {"input": x, "other": 1}
    example = example_of(quantized.to("meta"))
    assert example["input"].is_meta and example["other"] == 1
    assert not fused_kinds(fused_where_safe(quantized))  # no values to try it by


class Counted(nn.Module):
    """Neither weights nor children; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return x * 2


@torch.no_grad()
def test_only_what_feeds_linears_is_tried() -> None:
    model = nn.Sequential(Counted(), nn.LayerNorm(64), nn.Linear(64, 64), Counted(), nn.Softmax(-1))
    x = torch.randn(3, 64)
    quantized = quantize_model(model, fuse=False)
    fuse_model(quantized, x, inplace=True)
    assert [quantized[0].calls, quantized[3].calls] == [2, 2]  # by the two runs of the model alone


@pytest.mark.parametrize("activation", [nn.SiLU(inplace=True), nn.ReLU(inplace=True)])
@torch.no_grad()
def test_what_is_changed_in_place_is_another_s(activation: nn.Module) -> None:
    """The norm's output is the very tensor that the Linear gets, and not what the norm put out."""
    torch.manual_seed(5)
    model = nn.Sequential(nn.LayerNorm(64), activation, nn.Linear(64, 8))
    x = torch.randn(3, 64)
    assert not find_feeds(model, {"2": model[2]}, as_call(x)).foldable
    fused = quantize_model(model, None, [x])
    assert not fused_kinds(fused)
    assert_bits(fused(x), quantize_model(model, fuse=False)(x))


def test_what_is_dropped_out_on_the_way() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Dropout(), nn.Linear(64, 8))
    x = torch.randn(3, 64)
    fused = quantize_model(model, None, [x])
    assert fused_kinds(fused) == {"FusedActivation": 1}
    with torch.inference_mode():
        assert isinstance(fused[1](x), Produced)


def test_one_batch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of batches that nothing is calibrated by, the first alone is asked for."""
    model, x = mlp()
    asked: list[int] = []

    def batches() -> Any:
        for number in range(3):
            asked.append(number)
            yield x

    assert fused_kinds(quantize_model(model, None, batches()))
    assert asked == [0]
    quantize_model(model, None, batches(), fuse=False)
    assert asked == [0]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("family", ["Bert", "Llama"])
def test_outputs_that_were_not_asked_for_before_are_tensors(family: str, again: bool) -> None:
    """BERT's hidden states are outputs of norms, which read the Linears behind them as int8."""
    model, batch = built(family)
    quantized = quantize_model(model, fuse=False)
    fused = fuse_model(quantized, batch)
    fused = fuse_model(fused, batch) if again else fused
    with torch.inference_mode():
        expected = quantized(**batch, output_hidden_states=True)
        got = fused(**batch, output_hidden_states=True)
    assert type(got) is type(expected)
    for one, two in zip(got.hidden_states, expected.hidden_states, strict=True):
        assert type(one) is Tensor
        torch.testing.assert_close(one, two, atol=1e-4, rtol=1e-4)
