"""What `scaled-mm bench --mixed` compares: weights of 4 and 8 bits beside 16-bit activations, or
int8 ones, and every way to compute a product with one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .. import reference
from ..ops.int8 import pack_weight_int8, scaled_mm
from ..ops.mixed import mixed_mm
from ..ops.mixed_weight import MixedWeight, pack_weight
from ..ops.packed_weight import settle_written
from ..ops.w4a8 import w4a8_mm
from .awq import AWQ_CONTENDERS, int4pack_route
from .cases import CHECKED_ROWS, Judgement, judged, spread
from .contenders import Contender, Route, Unsupported

SCHEMES = {"w8a16": 8, "w4a16": 4, "w4a8": 4}
"""Bits of the weight; zero points there are none."""
STEP = 2.0**-6
"""The scale of int8 activations, of which 16-bit floats hold every multiple."""


@dataclass(frozen=True)
class MixedCase:
    """One product with its operands: values equally often, scales that bring D near 1.

    A scale has 4 significant bits for four bits of q and is a power of two for eight, so that no
    weight is rounded: who scales the sums, as torch's int8 op does, multiplies by the very same.
    """

    x: Tensor  # float16 or bfloat16 [M, K]
    q: Tensor  # int8 [K, N]
    scales: Tensor  # [K/G, N]
    bits: int
    a: Tensor | None = None  # x / STEP, of a scheme with int8 activations
    _expected: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def int8_operations(self) -> float:
        """How many of them take as long as one of the product's; one of 16-bit floats, as two."""
        return 2.0 if self.a is None else 1.0

    @property
    def mnk(self) -> tuple[int, int, int]:
        return len(self.x), *self.q.shape[::-1]

    @property
    def group(self) -> int:
        return len(self.q) // len(self.scales)

    @property
    def operations(self) -> int:
        return 2 * math.prod(self.mnk)

    @property
    def weight_bytes(self) -> int:
        return self.q.numel() * self.bits // 8 + self.scales.numel() * self.scales.itemsize

    def bytes_moved(self) -> int:
        """Weight and x once, and D."""
        m, n, k = self.mnk
        x = self.x if self.a is None else self.a
        return self.weight_bytes + m * k * x.itemsize + m * n * self.x.itemsize

    def facts(self) -> dict[str, int]:
        """What the result says of the case."""
        sizes = dict(zip("mnk", self.mnk, strict=True))
        return {**sizes, "bytes": self.bytes_moved(), "weight_bytes": self.weight_bytes}

    def packed(self) -> MixedWeight:
        return pack_weight(self.q, self.scales, bits=self.bits)

    def dequantized(self) -> Tensor:
        return self.packed().dequantize()

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample with the exact product: within the bound that mixed_mm keeps, a peer
        within 16 times that, or wrong."""
        _, n, k = self.mnk
        rows, columns = spread(len(self.x), CHECKED_ROWS), spread(n, max(1, most // max(1, k)))
        if most not in self._expected:  # one for all contenders
            weight = (self.q[:, columns].cpu(), self.scales[:, columns].cpu())
            self._expected[most] = reference.mixed_mm_bound(self.x[rows].cpu(), *weight)
        exact, bound = self._expected[most]
        return judged(out[rows][:, columns], exact, bound)


def make_mixed_case(
    scheme: str, m: int, n: int, k: int, group: int, dtype: torch.dtype, device: str = "cpu"
) -> MixedCase:
    """`group`: 0 for one scale per channel."""
    group = group or k
    if k % group:
        raise ValueError(f"--weight must have K in multiples of the group, got {n}x{k}, {group}")
    bits = SCHEMES[scheme]
    random = torch.Generator(device).manual_seed(0)

    def integers(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=random, device=device, dtype=torch.uint8)

    size = round(math.log2(1 / math.sqrt(k))) - bits
    of_group = integers(8, k // group, n)
    steps = 2.0 ** (of_group % 2) if bits == 8 else 1 + of_group / 8
    scales = (2.0**size * steps).to(dtype)
    q = (integers(1 << bits, k, n).short() - (1 << bits - 1)).to(torch.int8)
    if scheme == "w4a8":
        a = (integers(255, m, k).short() - 127).to(torch.int8)
        return MixedCase(a.to(dtype) * STEP, q, scales, bits, a)
    x = torch.randn(m, k, generator=random, device=device).to(dtype)
    return MixedCase(x, q, scales, bits)


# ---- The contenders ------------------------------------------------------------------------------


def _ours(case: MixedCase) -> Route:
    packed = case.packed()

    def weight() -> MixedWeight:
        return copied(packed)

    return Route(case.x, weight, mixed_mm, case.bits / 8)


def _ours_int8(case: MixedCase) -> Route:
    packed, scale, dtype = case.packed(), _scale_a(case), case.x.dtype

    def run(a: Tensor, weight: MixedWeight) -> Tensor:
        return w4a8_mm(a, weight, scale, out_dtype=dtype)

    return Route(_int8(case), lambda: copied(packed), run, case.bits / 8)


def _int8(case: MixedCase) -> Tensor:
    assert case.a is not None
    return case.a


def _scale_a(case: MixedCase) -> Tensor:
    return torch.full((len(case.x), 1), STEP, device=case.x.device)


def _w8a8(case: MixedCase) -> Route:
    if len(case.scales) != 1:
        raise Unsupported("per channel only")
    scales, dtype = (_scale_a(case), case.scales.float()), case.x.dtype

    def run(a: Tensor, weight: Any) -> Tensor:
        return scaled_mm(a, weight, *scales, out_dtype=dtype)

    return Route(_int8(case), lambda: pack_weight_int8(case.q), run, 1)


def _humming(case: MixedCase) -> Route:
    from humming.layer import HummingLayer

    k, n = case.q.shape
    group = 0 if len(case.scales) == 1 else case.group
    scale = _scale_a(case)

    def weight() -> Any:
        config = {"dtype": "uint4", "group_size": group}
        layer = HummingLayer(n, k, config, {"dtype": "int8"}, torch_dtype=case.x.dtype)
        layer = layer.to(case.x.device)
        layer.load_from_unquantized(case.dequantized().t().contiguous())
        layer.transform()
        return layer

    def run(a: Tensor, layer: Any) -> Tensor:
        return layer(a, input_scale=scale)

    return Route(_int8(case), weight, run, case.bits / 8)


def copied(weight: MixedWeight) -> MixedWeight:
    """In memory of its own, which products read as early."""
    copy = weight.on(weight.data.clone())
    settle_written(copy)
    return copy


def _dense(case: MixedCase) -> Route:
    weight = case.dequantized().t().contiguous()
    return Route(case.x, weight.clone, torch.nn.functional.linear, weight.itemsize)


def _dequantize_and_mm(case: MixedCase) -> Route:
    packed = case.packed()

    def run(x: Tensor, weight: MixedWeight) -> Tensor:
        return x @ weight.dequantize()

    return Route(case.x, lambda: copied(packed), run, case.bits / 8)


def _int8pack(case: MixedCase) -> Route:
    if case.bits != 8 or len(case.scales) != 1:
        raise Unsupported("8 bits per channel only")
    q, scales = case.q.t().contiguous(), case.scales[0]

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, weight, scales)

    return Route(case.x, q.clone, run, 1)


def _int4pack(case: MixedCase) -> Route:
    if case.bits != 4:
        raise Unsupported("4 bits only")

    def weight() -> tuple[Tensor, ...]:
        q = (case.q.t() + 8).to(torch.uint8).contiguous()
        return q, case.scales, torch.zeros_like(case.scales)

    return int4pack_route(case.x, case.group, weight)


_BOTH = ("cpu", "cuda")
_PREPARE: dict[str, tuple[str, Callable[[Any], Route]]] = {
    "dense mm": ("linear, the dense weight of the same dtype", _dense),
    "dequantize + mm": ("MixedWeight.dequantize, then torch's matmul", _dequantize_and_mm),
    "int8pack mm": ("torch._weight_int8pack_mm, per channel", _int8pack),
    "int4pack mm": ("torch._weight_int4pack_mm, its own packing", _int4pack),
}
MIXED_CONTENDERS: dict[str, tuple[Contender, ...]] = {
    scheme: (
        Contender(scheme, "scaled_mm.mixed_mm", _ours, _BOTH, ours=True),
        *(Contender(name, *what, _BOTH) for name, what in _PREPARE.items()),
    )
    for scheme in ("w8a16", "w4a16")
}
MIXED_CONTENDERS["w4a8"] = (
    Contender("w4a8", "scaled_mm.w4a8_mm", _ours_int8, _BOTH, ours=True),
    Contender("as w8a8", "scaled_mm, the weight's values as int8", _w8a8, _BOTH),
    Contender("as w4a16", "scaled_mm.mixed_mm", _ours, _BOTH),
    *(
        [
            Contender(
                "humming",
                "HummingLayer, whose weights are rounded anew",
                _humming,
                ("cuda",),
                unjudged="float",
            )
        ]
        if find_spec("humming")
        else []
    ),
    *(Contender(name, *_PREPARE[name], _BOTH) for name in ("dense mm", "int4pack mm")),
)
"""What takes part, by scheme, in the order of the tables."""
LOWBIT_CONTENDERS = {**AWQ_CONTENDERS, **MIXED_CONTENDERS}
"""The same by what is timed: an int4 op, or a scheme of mixed_mm."""
