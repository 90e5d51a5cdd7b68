"""Random models, fused by `fuse_model` and by the pass over inductor's graphs: views, writes in
place, hooks, branches, shared and nested norms, modules that are called twice."""

import copy
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_inductor import PRODUCE, compiled
from torch import Tensor, nn
from torch.nn import functional

from scaled_mm import QuantConfig, fuse_model, quantize_model
from scaled_mm.nn.fused import FusedGatedMLP, FusedSequential

K = 32
SCHEMES = ("dynamic", "dynamic-asymmetric", "static", "static-asymmetric")


class Gated(nn.Module):
    """down(act(gate) * up): `variant` 0; the others do something else on the way."""

    def __init__(self, act: nn.Module, variant: int) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(K, 48), nn.Linear(K, 48), nn.Linear(48, K)
        self.act, self.variant = act, variant

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate(x), self.up(x)
        if self.variant == 1:
            gate[..., :5] = 0
        h = self.act(gate)
        if self.variant == 2:
            h.t().mul_(2) if h.ndim == 2 else h.transpose(-1, -2).mul_(2)
        if self.variant == 3 and x.shape[0] > 3:
            up = up + 1
        if self.variant == 4:
            return self.down(h * up) + h.mean()
        return self.down(h * up)


class TwoNorms(nn.Module):
    """One norm feeds another, and both are read."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second, self.linear = first, second, nn.Linear(K, K)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        return self.linear(self.second(h)) + h


def _rotary(h: Tensor) -> Tensor:
    left, right = h[:, : K // 2].clone(), h[:, K // 2 :].clone()
    h[:, : K // 2] = left * 0.6 - right * 0.8
    h[:, K // 2 :] = right * 0.6 + left * 0.8
    return h


WRITES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda h: (h[:, 0].zero_(), h)[1],
    lambda h: (h.chunk(2, -1)[1].add_(1), h)[1],
    lambda h: (h.transpose(0, 1)[3:7].mul_(3), h)[1],
    lambda h: (h.view(-1)[::3].neg_(), h)[1],
    lambda h: (torch.mul(h, 2, out=h), h)[1],
    _rotary,
    lambda h: (functional.relu_(h), h)[1],
    lambda h: (h.detach().mul_(0.5), h)[1],
    lambda h: h.add_(1) if h.shape[0] > 3 else h,  # a branch that a batch of three does not take
    lambda h: h.neg() if isinstance(h, Tensor) else h,
)
FUNCTIONS: tuple[Callable[[Tensor], Tensor], ...] = (
    functional.silu,
    functional.gelu,
    torch.relu,
    functional.leaky_relu,
    torch.tanh,
)
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (
    nn.ReLU,
    nn.SiLU,
    nn.GELU,
    lambda: nn.GELU("tanh"),
    lambda: nn.LeakyReLU(0.2),
    nn.ELU,
    nn.Identity,
    lambda: nn.ReLU(inplace=True),
    lambda: nn.SiLU(inplace=True),
)


class Random(nn.Module):
    """Steps over a list of tensors: each reads one or two of them and appends or writes one."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__()
        self.shared = self._norm(rng)
        self.parts = nn.ModuleList([self._part(rng) for _ in range(rng.randint(2, 4))])
        every = [("part", i) for i in range(len(self.parts))]
        self.steps = every + [self._step(rng) for _ in range(rng.randint(2, 5))]
        rng.shuffle(self.steps)

    def _norm(self, rng: random.Random) -> nn.Module:
        norm = nn.LayerNorm(K) if rng.random() < 0.5 else nn.RMSNorm(K, eps=1e-5)
        nn.init.uniform_(norm.weight, 0.5, 2)
        return norm

    def _part(self, rng: random.Random) -> nn.Module:
        kind = rng.choice(("linear", "mlp", "act", "normed", "nested", "gated", "norms", "hooked"))
        activation = rng.choice(ACTIVATIONS)
        norm = self.shared if rng.random() < 0.5 else self._norm(rng)
        if kind == "linear":
            return nn.Linear(K, K)
        if kind == "mlp":
            return nn.Sequential(nn.Linear(K, 48), activation(), nn.Linear(48, K))
        if kind == "act":  # in place, it writes into the step before
            return nn.Sequential(activation(), nn.Linear(K, K))
        if kind == "normed":
            return nn.Sequential(norm, nn.Linear(K, K), activation())
        if kind == "nested":
            inner = nn.Sequential(self._norm(rng), activation(), nn.Linear(K, K))
            return nn.Sequential(norm, inner, nn.Linear(K, K))
        if kind == "gated":
            return Gated(activation(), rng.randrange(5))
        if kind == "norms":
            return TwoNorms(norm, self._norm(rng))
        part = nn.Sequential(norm, activation(), nn.Linear(K, K), nn.Linear(K, K))
        part[rng.randrange(2)].register_forward_hook(lambda module, args, y: y * 1.5)
        return part

    def _step(self, rng: random.Random) -> tuple[str, Any]:
        kind = rng.choice(("part", "part", "part", "norm", "norm", "write", "function", "add"))
        choices: dict[str, Any] = {"part": range(len(self.parts)), "write": WRITES}
        return kind, rng.choice(choices.get(kind, FUNCTIONS))

    def forward(self, x: Tensor) -> Tensor:
        values = [x * 1.0]
        for kind, what in self.steps:
            h = values[-1]
            if kind == "part":
                values.append(self.parts[what](h))
            elif kind == "norm":
                values.append(self.shared(h))
            elif kind == "write":
                values[-1] = what(h)
            elif kind == "function":
                values.append(what(h))
            else:
                values.append(h + values[len(values) // 2])
        last = self.parts[0](self.shared(values[-1]))  # so that there is a Linear behind a norm
        return torch.stack([*values, last])


def difference(got: Tensor, want: Tensor) -> Tensor:
    """Of each of the stacked values, in the L2 norm."""
    return (got - want).flatten(1).double().norm(dim=1)


@torch.no_grad()
def run(seed: int, counts: Counter[str]) -> None:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    model: Any = Random(rng).eval()
    batch, x = torch.randn(3, K), torch.randn(rng.choice((2, 3, 5, 9)), K)
    scheme = rng.choice(SCHEMES)
    quantised = quantize_model(copy.deepcopy(model), QuantConfig(scheme), [batch, x])
    want = quantised(x)
    # A rounding that turns moves an int8 value by one step; quantising moved each by half of one.
    bound = 0.5 * difference(want, model(x)) + 1e-5 * difference(want, torch.zeros(()))
    closed = fuse_model(quantised, batch)
    found: list[Any] = []
    results = {"closed": closed(x), "compiled": compiled(quantised, found, fullgraph=False)(x)}
    for how, got in results.items():
        apart = difference(got, want)
        assert (apart <= bound).all(), f"seed {seed}, {scheme}, {how}: {apart} above {bound}"
    kinds = (FusedGatedMLP, FusedSequential)
    counts["closed"] += sum(isinstance(m, kinds) for m in closed.modules())
    counts["compiled"] += sum(n.target is PRODUCE for graph in found for n in graph.nodes)


def run_all(seeds: range) -> None:
    counts: Counter[str] = Counter()
    for seed in seeds:
        run(seed, counts)
    # The models must hold what is fused, or nothing was shown.
    assert counts["closed"] >= len(seeds) // 2 and counts["compiled"] >= len(seeds), counts


def test_random_models() -> None:
    run_all(range(40))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 2000, 100))
def test_many_random_models(first: int) -> None:
    run_all(range(first, first + 100))
