"""What `scaled-mm bench --awq` and `--awq-dequantize` compare: the cases, and every way to compute
one."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from .. import awq, reference
from ..ops.mixed_weight import MixedWeight
from ..reference.arithmetic import FORMATS
from .cases import CHECKED_ROWS, Judgement, judged, spread
from .contenders import Contender, Route, Unsupported


@dataclass(frozen=True)
class AwqCase:
    """One product with its operands: nibbles equally often, scales that bring D near 1.

    A scale has 4 significant bits, so that (q - z) s and z s are 16-bit floats: whoever keeps z s,
    as torch's int4 op does, multiplies by the very same weight.
    """

    x: Tensor  # float16 or bfloat16 [M, K]
    weight: awq.Int4
    words: awq.Awq  # the same weight
    _expected: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict, repr=False)
    int8_operations: ClassVar[float] = 2.0  # a product of 16-bit floats takes the time of two

    @property
    def mnk(self) -> tuple[int, int, int]:
        return len(self.x), *self.weight.q.shape[::-1]

    @property
    def operations(self) -> int:
        return 2 * math.prod(self.mnk)

    @property
    def weight_bytes(self) -> int:
        return sum(x.numel() * x.itemsize for x in self.words)

    def bytes_moved(self) -> int:
        """Words, zero points, scales and x once, and D."""
        m, n, k = self.mnk
        return self.weight_bytes + m * (k + n) * self.x.itemsize

    def facts(self) -> dict[str, int]:
        """What the result says of the case."""
        sizes = dict(zip("mnk", self.mnk, strict=True))
        return {**sizes, "bytes": self.bytes_moved(), "weight_bytes": self.weight_bytes}

    def sample(self, most: int) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Columns that together have about `most` elements of the weight, and their words."""
        _, n, k = self.mnk
        chosen = spread(n // 8, max(1, most // (8 * max(1, k))))
        columns = (8 * chosen[:, None] + torch.arange(8)).flatten()
        qweight, scales, qzeros = self.words
        words = (qweight[:, chosen].cpu(), scales[:, columns].cpu(), qzeros[:, chosen].cpu())
        return columns, words

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample with the exact product: within the bound that awq_gemm keeps, a peer
        within 16 times that, or wrong."""
        rows, (columns, words) = spread(self.mnk[0], CHECKED_ROWS), self.sample(most)
        if most not in self._expected:  # one for all contenders
            x = self.x[rows].cpu()
            self._expected[most] = reference.awq_gemm_bound(x, *words)
        exact, bound = self._expected[most]
        return judged(out[rows][:, columns], exact, bound)


class DequantizeCase(AwqCase):
    """The weight alone; x has no rows."""

    int8_operations: ClassVar[float] = 0.0  # no tensor core takes part

    @property
    def operations(self) -> int:
        return 2 * math.prod(self.mnk[1:])

    def bytes_moved(self) -> int:
        """Words, zero points and scales once, and W."""
        return self.weight_bytes + math.prod(self.mnk[1:]) * self.x.itemsize

    def judge(self, out: Tensor, most: int) -> Judgement:
        """Compares a sample of columns with the reference: its bits, an ulp off, or wrong."""
        columns, words = self.sample(most)
        want = reference.awq_dequantize(*words).double()
        got = out[:, columns].double().cpu()
        ulp = 2.0 ** (1 - FORMATS[self.x.dtype].bits) * want.abs()
        off = int((got != want).sum())
        beyond = int((~((got - want).abs() <= ulp)).sum())
        verdict = "wrong" if beyond else "rounding" if off else "exact"
        return Judgement(verdict, off, beyond, got.numel())


def make_awq_case(
    op: str, m: int, n: int, k: int, group: int, dtype: torch.dtype, device: str = "cpu"
) -> AwqCase:
    if k % group or n % 8:
        rule = "of multiples of 8 by multiples of the group"
        raise ValueError(f"--weight must be {rule}, got {n}x{k}, groups of {group}")
    random = torch.Generator(device).manual_seed(0)

    def nibbles(*shape: int) -> Tensor:
        return torch.randint(16, shape, generator=random, device=device, dtype=torch.uint8)

    eighths = 8 + nibbles(k // group, n) % 8
    scales = (2.0 ** round(math.log2(0.1 / math.sqrt(k))) / 8 * eighths).to(dtype)
    weight = awq.Int4(nibbles(k, n), scales, nibbles(k // group, n))
    x = torch.randn(m, k, generator=random, device=device).to(dtype)
    case = AwqCase if op == "awq_gemm" else DequantizeCase
    return case(x, weight, awq.to_awq(weight))


# ---- The contenders ------------------------------------------------------------------------------


def _words(case: AwqCase) -> Callable[[], awq.Awq]:
    return lambda: awq.Awq(*(part.clone() for part in case.words))


def _gemm(case: AwqCase) -> Route:
    def run(x: Tensor, words: awq.Awq) -> Tensor:
        return awq.awq_gemm(x, *words)

    return Route(case.x, _words(case), run, 0.5)


def _gemm_packed(case: AwqCase) -> Route:
    return Route(case.x, lambda: MixedWeight.from_awq(*case.words), awq.awq_gemm, 0.5)


def _dense(case: AwqCase) -> Route:
    weight = case.weight.dequantize().t().contiguous()
    return Route(case.x, weight.clone, torch.nn.functional.linear, weight.itemsize)


def _dequantize_and_mm(case: AwqCase) -> Route:
    def run(x: Tensor, words: awq.Awq) -> Tensor:
        return x @ awq.awq_dequantize(*words)

    return Route(case.x, _words(case), run, 0.5)


def int4pack_route(x: Tensor, group: int, weight: Callable[[], tuple[Tensor, ...]]) -> Route:
    """torch's own int4 op, whose W is (q - 8) s + z.

    Args:
        weight: makes the nibbles q [N, K], a byte each, and s and z [K / group, N].

    Raises:
        Unsupported: the op does not take such operands.
    """
    if x.is_cuda and x.dtype != torch.bfloat16:
        raise Unsupported("bfloat16 only")
    if group not in (32, 64, 128, 256):
        raise Unsupported("groups of 32, 64, 128 or 256 only")
    q, scales, zeros = weight()
    scales_and_zeros = torch.stack([scales, zeros], -1).to(x.dtype)
    if x.is_cuda:  # two to a byte, the first in the upper half
        packed = torch._convert_weight_to_int4pack(q[:, ::2] << 4 | q[:, 1::2], 8)
    else:
        packed = torch._convert_weight_to_int4pack_for_cpu(q.int(), 8)
    mm = torch._weight_int4pack_mm if x.is_cuda else torch._weight_int4pack_mm_for_cpu

    def run(x: Tensor, weight: tuple[Tensor, Tensor]) -> Tensor:
        return mm(x, weight[0], group, weight[1])

    return Route(x, lambda: (packed.clone(), scales_and_zeros.clone()), run, 0.5)


def _int4pack(case: AwqCase) -> Route:
    """Its z is (8 - zero) s."""
    _, _, k = case.mnk

    def weight() -> tuple[Tensor, ...]:
        scales = case.weight.scales.float()
        return case.weight.q.t().contiguous(), scales, (8 - case.weight.zeros.float()) * scales

    return int4pack_route(case.x, k // len(case.weight.scales), weight)


def _dequantizer(function: Callable[..., Tensor]) -> Callable[[AwqCase], Route]:
    """`function(qweight, scales, qzeros)`, its outputs in turn in other places."""

    def prepare(case: AwqCase) -> Route:
        def run(_: Tensor, words: awq.Awq) -> Tensor:
            return function(*words)

        return Route(case.x, _words(case), run, 0.5, rotate_outputs=True)

    return prepare


def _eager(*words: Tensor) -> Tensor:
    return awq.from_awq(*words).dequantize()


def _for_the_compiler(qweight: Tensor, scales: Tensor, qzeros: Tensor) -> Tensor:
    """What a user would write to have it compiled into one kernel."""
    column = torch.arange(8, device=qweight.device, dtype=torch.int32)
    shift = 4 * (column // 2 + column % 2 * 4)  # AWQ's order
    groups, n = scales.shape
    q = (qweight[..., None] >> shift & 15).view(groups, -1, n)
    z = (qzeros[..., None] >> shift & 15).view(groups, 1, n)
    return ((q - z).to(scales.dtype) * scales[:, None]).view(-1, n)


@functools.cache
def _compiler() -> Callable[..., Any]:
    return torch.compile(_for_the_compiler, dynamic=False)


def _compiled(*words: Tensor) -> Tensor:
    return _compiler()(*words)


_BOTH, _GPU = ("cpu", "cuda"), ("cuda",)

AWQ_CONTENDERS = {
    "awq_gemm": (
        Contender("awq_gemm", "scaled_mm.awq_gemm", _gemm, _BOTH, ours=True),
        Contender(
            "awq_gemm packed", "the same, of a packed weight", _gemm_packed, _BOTH, ours=True
        ),
        Contender("dense mm", "linear, the dense weight of the same dtype", _dense, _BOTH),
        Contender(
            "dequantize + mm",
            "scaled_mm.awq_dequantize, then torch's matmul",
            _dequantize_and_mm,
            _BOTH,
        ),
        Contender("int4pack mm", "torch._weight_int4pack_mm, its own packing", _int4pack, _BOTH),
    ),
    "awq_dequantize": (
        Contender(
            "awq_dequantize",
            "scaled_mm.awq_dequantize",
            _dequantizer(awq.awq_dequantize),
            _BOTH,
            ours=True,
        ),
        Contender("torch eager", "shifts and a product, eager", _dequantizer(_eager), _BOTH),
        Contender("torch compiled", "the same under torch.compile", _dequantizer(_compiled), _GPU),
    ),
}
"""What takes part, by op, in the order of the tables."""
