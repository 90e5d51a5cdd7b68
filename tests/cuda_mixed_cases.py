"""Products of mixed_mm for a GPU: named by their numbers, built from them."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from cuda_support import DEVICE, kernels, on_device
from operands import ACTIVATIONS, GATED
from torch import Tensor

import scaled_mm

ZEROS = ("none", "integer", "float")
DTYPES = (torch.float16, torch.bfloat16)


def arms(bits: int) -> list[str]:
    """Kernels that may take a weight of so many bits, and "", the one that is chosen."""
    other = "/packed8_" if bits == 4 else "/packed_"
    return [
        "",
        *(name for name in kernels("lowbit") if other not in name and "/stream" not in name),
    ]


@dataclass(frozen=True)
class MixedCase:
    """A product; `order`: the rows of its weight come from columns of x in a random order."""

    m: int
    n: int
    k: int
    group: int
    bits: int = 8
    zero: str = "none"
    dtype: torch.dtype = torch.bfloat16
    bias: torch.dtype | None = None
    activation: str | None = None
    pre_scale: torch.dtype | None = None
    order: bool = False
    exact: bool = False  # operands of few bits: every sum is exact in float32
    residual: bool = False

    def plain(self) -> dict[str, Any]:
        """What pack_weight takes: values equally often, scales that keep W near 1."""
        rng = np.random.default_rng(self.m + self.n * self.k)
        shape, most = (self.k // self.group, self.n), 1 << self.bits
        low = 0 if self.zero == "integer" else -most // 2
        q = torch.from_numpy(rng.integers(low, low + most, (self.k, self.n), np.int16))
        scales = torch.from_numpy(rng.uniform(0.2, 2.0, shape) / most).to(self.dtype)
        if self.exact:
            scales = torch.full(shape, 2.0 / most, dtype=self.dtype)
        made = {"q": q.to(torch.uint8 if self.zero == "integer" else torch.int8), "scales": scales}
        if self.zero == "float":
            made["zeros"] = torch.from_numpy(rng.standard_normal(shape)).to(self.dtype)
            if self.exact:
                made["zeros"] = torch.from_numpy(rng.integers(-4, 5, shape) / 4).to(self.dtype)
        elif self.zero == "integer":
            z = rng.integers(0, most, shape, np.int16)
            made["zeros"] = torch.from_numpy(z).to(torch.uint8)
        if self.order:
            groups = np.repeat(np.arange(shape[0]), self.group)
            made["g_idx"] = torch.from_numpy(rng.permutation(groups).astype(np.int32))
        return {**made, "bits": self.bits}

    def weight(self, device: str = DEVICE) -> scaled_mm.MixedWeight:
        return scaled_mm.pack_weight(**on_device(self.plain(), device))

    def operands(self) -> dict[str, Any]:
        """The rest of mixed_mm's arguments, on the CPU."""
        rng = np.random.default_rng(self.m * self.n + self.k)

        def normal(*shape: int) -> Tensor:
            if self.exact:
                return torch.from_numpy(rng.integers(-2, 3, shape).astype(np.float32))
            return torch.from_numpy(rng.standard_normal(shape).astype(np.float32))

        made: dict[str, Any] = {"x": normal(self.m, self.k).to(self.dtype)}
        if self.bias:
            made["bias"] = normal(self.n).to(self.bias)
        if self.pre_scale:
            made["pre_scale"] = (0.5 + normal(self.k).abs()).to(self.pre_scale)
        if self.residual:
            made["residual"] = normal(self.m, self.n).to(self.dtype)
        if self.activation:
            made["activation"] = self.activation
        return made


def odd_cases() -> Iterator[MixedCase]:
    """Every end of a tile, of a unit and of a share of K; every kind, bias and ending."""
    rows = itertools.cycle((1, 7, 8, 9, 16, 17, 31, 33, 64, 65, 100, 129, 200, 257))
    sizes = [(64, 72, 32), (128, 64, 128), (192, 65, 96), (448, 224, 64), (1024, 1032, 128)]
    sizes += [(4160, 264, 4160), (1000, 136, 1000), (2176, 1, 128), (300, 24, 100), (96, 8, 16)]
    biases = itertools.cycle((None, torch.float32, "own"))
    endings = itertools.cycle((None, *ACTIVATIONS, "residual"))
    for (k, n, group), bits, zero, dtype in itertools.product(sizes, (4, 8), ZEROS, DTYPES):
        bias = next(biases)
        own = dtype if bias == "own" else bias
        made = MixedCase(next(rows), n, k, group, bits, zero, dtype, own)
        yield with_ending(made, next(endings))


def with_ending(case: MixedCase, name: str | None) -> MixedCase:
    """With an activation, without the gate where N is odd; or a residual."""
    if name == "residual":
        return replace(case, residual=True)
    return replace(case, activation=None if name in GATED and case.n % 2 else name)


def exact_cases() -> Iterator[MixedCase]:
    """The same with operands whose sums are exact, so that all kernels give the CPU's bits."""
    orders = itertools.cycle((False, True, False))
    pre_scales = itertools.cycle((None, None, torch.float32, "own"))
    for case in odd_cases():
        scale = next(pre_scales)
        own = case.dtype if scale == "own" else scale
        yield replace(case, exact=True, order=next(orders), pre_scale=own)


def random_exact_case(rng: np.random.Generator) -> MixedCase:
    group = int(rng.choice([8, 32, 64, 128, 160]))
    k = group * int(rng.integers(1, 9))
    bits, zero = int(rng.choice([4, 8])), str(rng.choice(ZEROS))
    dtype = DTYPES[rng.integers(2)]
    bias, scale = ((None, torch.float32, dtype)[i] for i in rng.integers(3, size=2))
    ending, order = (None, *ACTIVATIONS, "residual")[rng.integers(10)], bool(rng.integers(2))
    m, n = int(rng.integers(1, 300)), int(rng.integers(1, 400))
    case = MixedCase(m, n, k, group, bits, zero, dtype, bias, order=order, exact=True)
    return with_ending(replace(case, pre_scale=scale), ending)
