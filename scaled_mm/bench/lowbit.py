"""What `scaled-mm bench --mixed`, `--awq` and `--awq-dequantize` compare: weights of 4 and 8 bits
beside 16-bit activations, or int8 ones, and every way to compute a product with one, or to write
one out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .. import awq, reference
from ..ops.int8 import pack_weight_int8, scaled_mm
from ..ops.mixed import mixed_mm
from ..ops.mixed_weight import MixedWeight, pack_weight
from ..ops.packed_weight import settle_written
from ..ops.w4a8 import w4a8_mm
from ..reference.arithmetic import FORMATS
from .cases import CHECKED_ROWS, Judgement, Product, judged, spread
from .contenders import GPU, Contender, Route, Unsupported, humming_layer

SCHEMES = {"w8a16": 8, "w4a16": 4, "w4a8": 4}
"""Bits of the weight; zero points there are none."""
STEP = 2.0**-6
"""The scale of int8 activations, of which 16-bit floats hold every multiple."""


@dataclass(frozen=True)
class LowbitCase(Product):
    """One product with its operands: values equally often, scales that bring D near 1.

    A scale has 4 significant bits for four bits of q and is a power of two for eight, so that no
    weight is rounded, nor z s: who scales the sums, as torch's int8 op does, or keeps z s, as its
    int4 op does, multiplies by the very same.
    """

    x: Tensor  # float16 or bfloat16 [M, K]
    q: Tensor  # int8 [K, N]; with zeros uint8
    scales: Tensor  # [K/G, N]
    zeros: Tensor | None  # uint8 [K/G, N], of AWQ's ops
    bits: int
    a: Tensor | None = None  # x / STEP, of a scheme with int8 activations
    _expected: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)

    @property
    def int8_operations(self) -> float:
        """A product of 16-bit floats takes the time of two."""
        return 2.0 if self.a is None else 1.0

    @property
    def mnk(self) -> tuple[int, int, int]:
        return len(self.x), *self.q.shape[::-1]

    @property
    def group(self) -> int:
        return len(self.q) // len(self.scales)

    @property
    def weight_bytes(self) -> int:
        values = self.q.numel() + (0 if self.zeros is None else self.zeros.numel())
        return values * self.bits // 8 + self.scales.numel() * self.scales.itemsize

    def bytes_moved(self) -> int:
        """Weight and activations once, and D."""
        m, n, k = self.mnk
        x = self.x if self.a is None else self.a
        return self.weight_bytes + m * k * x.itemsize + m * n * self.x.itemsize

    @cached_property
    def words(self) -> awq.Awq:
        """The weight in AWQ's words."""
        assert self.zeros is not None
        return awq.to_awq(awq.Int4(self.q, self.scales, self.zeros))

    def packed(self) -> MixedWeight:
        if self.zeros is not None:
            return MixedWeight.from_awq(*self.words)
        return pack_weight(self.q, self.scales, bits=self.bits)

    def dequantized(self) -> Tensor:
        return self.packed().dequantize()

    def sample(self, most: int) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor | None]]:
        """Columns that together have about `most` elements of the weight, and what it is there."""
        columns = spread(self.mnk[1], max(1, most // max(1, self.mnk[2])))
        q, scales = (part[:, columns].cpu() for part in (self.q, self.scales))
        return columns, (q, scales, None if self.zeros is None else self.zeros[:, columns].cpu())

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample with the exact product: within the bound that the ops keep, a peer
        within 16 times that, or wrong."""
        rows, (columns, weight) = spread(len(self.x), CHECKED_ROWS), self.sample(most)
        if most not in self._expected:  # one for all contenders
            self._expected[most] = reference.mixed_mm_bound(self.x[rows].cpu(), *weight)
        exact, bound = self._expected[most]
        return judged(out[rows][:, columns], exact, bound)


class DequantizeCase(LowbitCase):
    """The weight alone; x has no rows."""

    @property
    def int8_operations(self) -> float:
        return 0.0  # no tensor core takes part

    @property
    def operations(self) -> int:
        return 2 * self.q.numel()

    def bytes_moved(self) -> int:
        """Words, zero points and scales once, and W."""
        return self.weight_bytes + self.q.numel() * self.x.itemsize

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample of columns with the reference: its bits, an ulp off, or wrong."""
        columns, weight = self.sample(most)
        want = reference.mixed_dequantize(*weight).double()
        got = out[:, columns].double().cpu()
        ulp = 2.0 ** (1 - FORMATS[self.x.dtype].bits) * want.abs()
        off = int((got != want).sum())
        beyond = int((~((got - want).abs() <= ulp)).sum())
        verdict = "wrong" if beyond else "rounding" if off else "exact"
        return Judgement(verdict, off, beyond, got.numel())


def make_lowbit_case(
    op: str, m: int, n: int, k: int, group: int, dtype: torch.dtype, device: str = "cpu"
) -> LowbitCase:
    """`op`: of LOWBIT_CONTENDERS; `group`: 0 for one scale per channel."""
    group, in_words = group or k, op not in SCHEMES
    if in_words and (k % group or n % 8):
        rule = "of multiples of 8 by multiples of the group"
        raise ValueError(f"--weight must be {rule}, got {n}x{k}, groups of {group}")
    if k % group:
        raise ValueError(f"--weight must have K in multiples of the group, got {n}x{k}, {group}")
    bits = SCHEMES.get(op, 4)
    random = torch.Generator(device).manual_seed(0)

    def integers(most: int, *shape: int) -> Tensor:
        return torch.randint(most, shape, generator=random, device=device, dtype=torch.uint8)

    size = round(math.log2(1 / math.sqrt(k))) - bits
    of_group = integers(8, k // group, n)
    steps = 2.0 ** (of_group % 2) if bits == 8 else 1 + of_group / 8
    scales = (2.0**size * steps).to(dtype)
    q = integers(1 << bits, k, n)
    zeros = integers(1 << bits, k // group, n) if in_words else None
    if zeros is None:
        q = (q.short() - (1 << bits - 1)).to(torch.int8)
    if op == "w4a8":
        a = (integers(255, m, k).short() - 127).to(torch.int8)
        return LowbitCase(a.to(dtype) * STEP, q, scales, zeros, bits, a)
    x = torch.randn(m, k, generator=random, device=device).to(dtype)
    case = DequantizeCase if op == "awq_dequantize" else LowbitCase
    return case(x, q, scales, zeros, bits)


# ---- The contenders: products --------------------------------------------------------------------


def _copied(weight: MixedWeight) -> MixedWeight:
    """In memory of its own, which products read as early."""
    copy = weight.on(weight.data.clone())
    settle_written(copy)
    return copy


def _with_packed(
    case: LowbitCase, run: Callable[[Tensor, MixedWeight], Tensor], x: Tensor | None = None
) -> Route:
    packed = case.packed()
    return Route(case.x if x is None else x, lambda: _copied(packed), run, case.bits / 8)


def _with_words(case: LowbitCase, run: Callable[[Tensor, awq.Awq], Tensor]) -> Route:
    return Route(case.x, lambda: awq.Awq(*(part.clone() for part in case.words)), run, 0.5)


def _ours(case: LowbitCase) -> Route:
    return _with_packed(case, mixed_mm)


def _ours_int8(case: LowbitCase) -> Route:
    scale, dtype = _scale_a(case), case.x.dtype

    def run(a: Tensor, weight: MixedWeight) -> Tensor:
        return w4a8_mm(a, weight, scale, out_dtype=dtype)

    return _with_packed(case, run, case.a)


def _gemm(case: LowbitCase) -> Route:
    return _with_words(case, lambda x, words: awq.awq_gemm(x, *words))


def _gemm_packed(case: LowbitCase) -> Route:
    return _with_packed(case, awq.awq_gemm)


def _int8(case: LowbitCase) -> Tensor:
    assert case.a is not None
    return case.a


def _scale_a(case: LowbitCase) -> Tensor:
    return torch.full((len(case.x), 1), STEP, device=case.x.device)


def _w8a8(case: LowbitCase) -> Route:
    if len(case.scales) != 1:
        raise Unsupported("per channel only")
    scales, dtype = (_scale_a(case), case.scales.float()), case.x.dtype

    def run(a: Tensor, weight: Any) -> Tensor:
        return scaled_mm(a, weight, *scales, out_dtype=dtype)

    return Route(_int8(case), lambda: pack_weight_int8(case.q), run, 1)


def _humming(case: LowbitCase) -> Route:
    values = {"dtype": "uint4", "group_size": 0 if len(case.scales) == 1 else case.group}
    scale = _scale_a(case)

    def weight() -> Any:
        return humming_layer(case.dequantized().t().contiguous(), values, case.x.dtype)

    def run(a: Tensor, layer: Any) -> Tensor:
        return layer(a, input_scale=scale)

    return Route(_int8(case), weight, run, case.bits / 8)


def _dense(case: LowbitCase) -> Route:
    weight = case.dequantized().t().contiguous()
    return Route(case.x, weight.clone, torch.nn.functional.linear, weight.itemsize)


def _dequantize_and_mm(case: LowbitCase) -> Route:
    return _with_packed(case, lambda x, weight: x @ weight.dequantize())


def _awq_dequantize_and_mm(case: LowbitCase) -> Route:
    return _with_words(case, lambda x, words: x @ awq.awq_dequantize(*words))


def _int8pack(case: LowbitCase) -> Route:
    if case.bits != 8 or len(case.scales) != 1:
        raise Unsupported("8 bits per channel only")
    q, scales = case.q.t().contiguous(), case.scales[0]

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return torch._weight_int8pack_mm(x, weight, scales)

    return Route(case.x, q.clone, run, 1)


def _int4pack(case: LowbitCase) -> Route:
    """torch's own int4 op, whose W is (q - 8) s + z."""
    x, group, scales = case.x, case.group, case.scales.float()
    if case.bits != 4:
        raise Unsupported("4 bits only")
    if x.is_cuda and x.dtype != torch.bfloat16:
        raise Unsupported("bfloat16 only")
    if group not in (32, 64, 128, 256):
        raise Unsupported("groups of 32, 64, 128 or 256 only")
    if case.zeros is None:
        q, zeros = (case.q + 8).to(torch.uint8), torch.zeros_like(scales)
    else:
        q, zeros = case.q, (8 - case.zeros.float()) * scales
    q = q.t().contiguous()
    scales_and_zeros = torch.stack([scales, zeros], -1).to(x.dtype)
    if x.is_cuda:  # two to a byte, the first in the upper half
        packed = torch._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], 8)
    else:
        packed = torch._convert_weight_to_int4pack_for_cpu(q.int(), 8)
    mm = torch._weight_int4pack_mm if x.is_cuda else torch._weight_int4pack_mm_for_cpu

    def run(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
        return mm(x, weight[0], group, weight[1])

    return Route(x, lambda: (packed.clone(), scales_and_zeros.clone()), run, 0.5)


# ---- The contenders: weights, written out --------------------------------------------------------


def _dequantized(case: LowbitCase, function: Callable[..., Tensor]) -> Route:
    """`function(qweight, scales, qzeros)`, its outputs in turn in other places."""
    route = _with_words(case, lambda _, words: function(*words))
    return replace(route, rotate_outputs=True)


def _written_out(case: LowbitCase) -> Route:
    return _dequantized(case, awq.awq_dequantize)


def _eager(case: LowbitCase) -> Route:
    return _dequantized(case, lambda *words: awq.from_awq(*words).dequantize())


def _for_the_compiler(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """What a user would write to have it compiled into one kernel."""
    column = torch.arange(8, device=qweight.device, dtype=torch.int32)
    shift = 4 * (column // 2 + column % 2 * 4)  # AWQ's order
    groups, n = scales.shape
    q = (qweight[..., None] >> shift & 15).view(groups, -1, n)
    z = (qzeros[..., None] >> shift & 15).view(groups, 1, n)
    return ((q - z).to(scales.dtype) * scales[:, None]).view(-1, n)


def _compiled(case: LowbitCase) -> Route:
    return _dequantized(case, torch.compile(_for_the_compiler, dynamic=False))


# ---- Who takes part ------------------------------------------------------------------------------

_DENSE = Contender("dense mm", "linear, the dense weight of the same dtype", _dense)
_INT4PACK = Contender("int4pack mm", "torch._weight_int4pack_mm, its own packing", _int4pack)
_UNPACKED = Contender(
    "dequantize + mm", "MixedWeight.dequantize, then torch's matmul", _dequantize_and_mm
)
_INT8PACK = Contender("int8pack mm", "torch._weight_int8pack_mm, per channel", _int8pack)
_HUMMING = Contender(
    "humming", "HummingLayer, whose weights are rounded anew", _humming, GPU, unjudged="float"
)
LOWBIT_CONTENDERS: dict[str, tuple[Contender, ...]] = {
    "awq_gemm": (
        Contender("awq_gemm", "scaled_mm.awq_gemm", _gemm, ours=True),
        Contender("awq_gemm packed", "the same, of a packed weight", _gemm_packed, ours=True),
        _DENSE,
        replace(
            _UNPACKED,
            what="scaled_mm.awq_dequantize, then torch's matmul",
            prepare=_awq_dequantize_and_mm,
        ),
        _INT4PACK,
    ),
    "awq_dequantize": (
        Contender("awq_dequantize", "scaled_mm.awq_dequantize", _written_out, ours=True),
        Contender("torch eager", "shifts and a product, eager", _eager),
        Contender("torch compiled", "the same under torch.compile", _compiled, GPU),
    ),
    **{
        scheme: (
            Contender(scheme, "scaled_mm.mixed_mm", _ours, ours=True),
            *(_DENSE, _UNPACKED, _INT8PACK, _INT4PACK),
        )
        for scheme in ("w8a16", "w4a16")
    },
    "w4a8": (
        Contender("w4a8", "scaled_mm.w4a8_mm", _ours_int8, ours=True),
        Contender("as w8a8", "scaled_mm, the weight's values as int8", _w8a8),
        Contender("as w4a16", "scaled_mm.mixed_mm", _ours),
        *([_HUMMING] if find_spec("humming") else []),
        *(_DENSE, _INT4PACK),
    ),
}
"""What takes part, by what is timed, in the order of the tables: an op on AWQ's words, or a scheme
of mixed_mm or w4a8_mm."""
