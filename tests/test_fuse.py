"""`fuse_model`: closed modules, what they compute, and what stays as it is."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import assert_bits
from llamas import llama
from torch import Tensor, nn

from scaled_mm import QuantConfig, fuse_model, load_quantized, quantize_model, save_quantized
from scaled_mm.nn import ScaledLinear
from scaled_mm.nn.fused import FusedGatedMLP, FusedSequential
from scaled_mm.ops.produce import produce_int8

K = 64
SCHEMES = ("dynamic", "dynamic-asymmetric", "static", "static-asymmetric", "static-rotate32")


class Gated(nn.Module):
    def __init__(self, act: nn.Module | None = None) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(K, 96), nn.Linear(K, 96), nn.Linear(96, K)
        self.act = act or nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


def linear(out: int = K) -> nn.Linear:
    return nn.Linear(K, out)


def seeded(make: Callable[[], nn.Module], dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = make()
    for module in model.modules():
        if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
            nn.init.uniform_(module.weight, 0.5, 2)
    return model.to(dtype).eval()


def batch(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 5, K, generator=torch.Generator().manual_seed(1)).to(dtype)


def close(got: Tensor, want: Tensor) -> None:
    """Apart by quantisation steps that a rounding to the dtype can turn: a few of them."""
    assert (got - want).float().norm() <= 0.03 * want.float().norm()


def by_producer(layer: Any, producer: str, x: Tensor, **given: Any) -> Tensor:
    """The definition: the producer's int8 rows, then the layer's product."""
    q, scale, azp = produce_int8(
        x,
        producer=producer,
        scale=layer.input_scale,
        azp=layer.input_zero_point,
        symmetric=layer.symmetric,
        rotate=layer.rotate,
        **given,
    )
    return layer.multiply(q, scale, azp, x.dtype)


PAIRS: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "relu": (nn.ReLU, "relu"),
    "silu": (nn.SiLU, "silu"),
    "gelu": (nn.GELU, "gelu"),
    "gelu_tanh": (lambda: nn.GELU("tanh"), "gelu_tanh"),
    "layer norm": (lambda: nn.LayerNorm(K), "layer_norm"),
    "layer norm without bias": (lambda: nn.LayerNorm(K, bias=False), "layer_norm"),
    "rms norm": (lambda: nn.RMSNorm(K, eps=1e-5), "rms_norm"),
}


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", PAIRS)
def test_pairs_in_a_sequential(name: str, scheme: str) -> None:
    make, producer = PAIRS[name]
    dtype = torch.bfloat16 if "asymmetric" in scheme else torch.float32
    x = batch(dtype)
    model = seeded(lambda: nn.Sequential(linear(), make(), linear()), dtype)
    plain = quantize_model(model, QuantConfig(scheme), [x])
    fused: Any = fuse_model(plain, x)
    assert type(plain) is nn.Sequential and type(fused) is FusedSequential
    norm = {"weight": fused[1].weight, "eps": fused[1].eps} if "norm" in name else {}
    if producer == "layer_norm":
        norm["bias"] = fused[1].bias
    with torch.no_grad():
        assert_bits(fused(x), by_producer(fused[2], producer, fused[0](x), **norm))
        close(fused(x), plain(x))
    assert list(fused.state_dict()) == list(plain.state_dict())


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("act", [nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.ReLU(inplace=True)])
def test_a_gated_mlp(act: nn.Module, scheme: str) -> None:
    x = batch()
    model = seeded(lambda: nn.Sequential(Gated(act), linear()))
    fused: Any = quantize_model(model, QuantConfig(scheme), [x], fuse=x)
    mlp = fused[0]
    assert type(mlp) is FusedGatedMLP and mlp.roles == ("gate", "up", "act", "down")
    producer = {nn.SiLU: "silu", nn.ReLU: "relu"}.get(type(act), "gelu")
    producer += "_tanh" if getattr(act, "approximate", "") == "tanh" else ""
    with torch.no_grad():
        assert_bits(mlp(x), by_producer(mlp.down, producer, mlp.gate(x), times=mlp.up(x)))


def test_models_of_transformers(tmp_path: Any) -> None:
    given = {"input_ids": torch.randint(0, 100, (3, 9))}
    plain = quantize_model(llama(torch.float32))
    assert not [m for m in plain.modules() if isinstance(m, FusedGatedMLP)], "only when asked"
    fused: Any = fuse_model(plain, given)
    assert sum(isinstance(m, FusedGatedMLP) for m in fused.modules()) == 2
    close(fused(**given).logits, plain(**given).logits)
    assert list(fused.state_dict()) == list(plain.state_dict())
    save_quantized(fused, tmp_path)
    loaded: Any = load_quantized(llama(torch.float32), tmp_path)
    assert_bits(loaded(**given).logits, plain(**given).logits)


def test_copies_and_pickles() -> None:
    x = batch()
    fused = quantize_model(seeded(lambda: nn.Sequential(Gated(), nn.ReLU(), linear())), fuse=x)
    with torch.no_grad():
        want = fused(x)
        for other in (copy.deepcopy(fused), pickle.loads(pickle.dumps(fused))):
            assert type(other) is FusedSequential
            assert_bits(other(x), want)
        assert_bits(torch.compile(fused, backend="aot_eager", fullgraph=True)(x), want)


class InPlace(Gated):
    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.gate(x)) * self.up(x)
        h[:, 0].zero_()
        return self.down(h)


class ByType(Gated):
    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.gate(x)) * self.up(x)
        return self.down(h + 1 if isinstance(h, Tensor) else h)


class Unlike(Gated):
    """The same parts in another order."""

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x) * self.up(x)))


class Ignored(Gated):
    def forward(self, x: Tensor) -> Tensor:
        h = self.gate(x)
        self.act(h)
        return self.down(h * self.up(x))


def hooked(kind: str) -> nn.Module:
    model = Gated()
    getattr(model.act, f"register_{kind}")(lambda *args: None)
    return model


def own_forward() -> nn.Module:
    model = Gated()
    model.act.forward = torch.tanh  # type: ignore[assignment]
    return model


STAY: dict[str, Callable[[], nn.Module]] = {
    **{kind.__name__: kind for kind in (InPlace, ByType, Unlike, Ignored)},
    "in place, ignored": lambda: Ignored(nn.ReLU(inplace=True)),
    "hook": lambda: hooked("forward_hook"),
    "pre-hook": lambda: hooked("forward_pre_hook"),
    "forward of its own": own_forward,
    "another activation": lambda: Gated(nn.LeakyReLU(0.2)),
    "ReLU6": lambda: Gated(nn.ReLU6()),
    "threshold": lambda: nn.Sequential(linear(), nn.Threshold(0.1, 0), linear()),
    "in place": lambda: nn.Sequential(linear(), nn.ReLU(inplace=True), linear()),
    "norm of two dimensions": lambda: nn.Sequential(nn.LayerNorm((5, K)), linear()),
    "a dropout between": lambda: nn.Sequential(nn.ReLU(), nn.Dropout(), linear()),
    "a list": lambda: Listed(),
}


class Listed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([nn.LayerNorm(K), linear(), linear()])

    def forward(self, x: Tensor) -> Tensor:
        h = self.parts[0](x)
        first = self.parts[1](h)
        h[:, 0].zero_()
        return first + self.parts[2](h)


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    x = batch()
    model = seeded(STAY[name])
    plain = quantize_model(model)
    seeded(lambda: nn.Sequential(nn.ReLU(inplace=True)))(batch())  # once it made others pass
    fused = fuse_model(plain, x)
    assert type(fused) is type(plain)
    with torch.no_grad():
        assert_bits(fused(x), plain(x))
        close(plain(x), model(x))


CHANGES: dict[str, Callable[[Any], Any]] = {
    "hook": lambda model: model[1].register_forward_hook(lambda module, args, y: y + 1),
    "part": lambda model: model.__setitem__(1, nn.LeakyReLU(0.3)),
    "linear": lambda model: model.__setitem__(2, nn.Linear(K, K)),
    "approximate": lambda model: setattr(model[1], "approximate", "tanh"),
    "forward": lambda model: setattr(model[2], "forward", torch.tanh),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_changes_later(change: str) -> None:
    x = batch()
    plain = quantize_model(seeded(lambda: nn.Sequential(linear(), nn.GELU(), linear())))
    fused = fuse_model(plain, x)
    for model in (plain, fused):
        torch.manual_seed(1)
        CHANGES[change](model)
    with torch.no_grad():
        close(fused(x), plain(x))
        if change != "approximate":
            assert_bits(fused(x), plain(x))


def test_eps_that_changes_later() -> None:
    x = batch() / 100
    plain: Any = quantize_model(seeded(lambda: nn.Sequential(nn.LayerNorm(K), linear())))
    fused: Any = fuse_model(plain, x)
    plain[0].eps = fused[0].eps = 1.0
    with torch.no_grad():
        close(fused(x), plain(x))


def test_autocast_runs_part_by_part() -> None:
    x = batch()
    plain = quantize_model(seeded(lambda: nn.Sequential(nn.LayerNorm(K), linear())))
    fused = fuse_model(plain, x)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert_bits(fused(x), plain(x))


def test_refusals() -> None:
    with pytest.raises(ValueError, match=r"^model must hold a ScaledLinear, got none$"):
        fuse_model(nn.Linear(4, 4), torch.ones(1, 4))
    with pytest.raises(TypeError):
        fuse_model(ScaledLinear(4, 4), 3)


def test_a_model_that_fails_says_so() -> None:
    """The batch was given: what the model raises is the caller's to see."""
    plain = quantize_model(seeded(lambda: nn.Sequential(Gated())))
    with pytest.raises(ValueError, match="x must have K=64"):
        fuse_model(plain, torch.randn(2, K + 1))
