"""How good is an int8 GEMM's output? The verdict behind `scaled_mm.reference.check`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import torch

from .arithmetic import FORMATS, Array, Format, Magnitude, round_to, ulp

# Without bias: half an ulp for the last rounding, and three roundings to float32 before it, each of
# at most 2^-24 of a significand below two: 0.5 + 6 * 2^(bits - 25). A float32 output has only two
# before it, but they may carry it over a power of two, where the ulp of the exact result is half
# that of the computed one: 2 + 1 (2.996 was met).
BOUND_ULP = {torch.bfloat16: 0.50005, torch.float16: 0.5004, torch.float32: 3.0}
SHOWN = 8  # indices kept of the elements that differ


@dataclass(frozen=True)
class AccuracyReport:
    """What `check` found. `print` it, or assert `ok`."""

    out_dtype: torch.dtype
    shape: tuple[int, ...]
    epilogue: str
    roundings: int
    """How many roundings to float32 of the terms' size the bound allows for: 0 without a sum."""
    different: int = 0
    """Elements whose bits are not R1's (a NaN equals any NaN; -0 is not +0)."""
    first_different: tuple[tuple[int, ...], ...] = ()
    """Where: the first few."""
    outside: int = 0
    """Elements outside the exact domain (t beyond int32, or s_b t or s_a s_b t neither zero nor
    normal float32): there the bits of R1 are the whole contract, and nothing below counts them."""
    beyond: int = 0
    """Elements further from the exact result than the bound."""
    worst_ulp: float = 0.0
    """Largest distance from the exact result, in units in the last place of out_dtype at the exact
    result."""
    worst_of_bound: float = 0.0
    """Largest distance from the exact result as a fraction of the bound."""
    worst_index: tuple[int, ...] | None = None
    """Where `worst_of_bound` is."""

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def accurate(self) -> bool:
        """Within the published accuracy, whatever the bits."""
        return self.beyond == 0

    @property
    def ok(self) -> bool:
        """The bits of the contract, and as accurate as published."""
        return self.different == 0 and self.accurate

    @property
    def bound(self) -> str:
        """The bound on |out - exact|, in words."""
        if self.roundings:
            return f"(1 + 2^-10) ulp / 2 + {self.roundings} 2^-24 (sum of the terms' sizes)"
        return f"{BOUND_ULP[self.out_dtype]:g} ulp"

    def __str__(self) -> str:
        name = FORMATS[self.out_dtype].name
        inside = self.elements - self.outside
        where = "" if self.worst_index is None else f" at {self.worst_index}"
        lines = [
            f"{'ok' if self.ok else 'NOT OK'}: {self.elements} elements, {list(self.shape)} of "
            f"{name}, {self.epilogue}",
            f"  different from R1         {self.different}",
            f"  beyond the bound          {self.beyond} of {inside}",
            f"  worst distance from R0    {self.worst_ulp:.6g} ulp",
            f"  worst fraction of bound   {self.worst_of_bound:.6g}{where}",
            f"  bound                     {self.bound}",
            f"  outside the exact domain  {self.outside}",
        ]
        if self.different:
            lines.insert(
                2, f"    first at                {', '.join(map(str, self.first_different))}"
            )
        return "\n".join(lines)


def judge(
    report: AccuracyReport, first_row: int, out: Array, r1: Array, r0: Array, terms: Magnitude
) -> AccuracyReport:
    """`report` with the rows from `first_row` on added.

    out: float64 [rows, N], the output; r1, r0: the values that one rounding to out_dtype makes R1
    and R0.
    """
    if out.size == 0:
        return report
    to = FORMATS[report.out_dtype]

    def index(flat: int) -> tuple[int, ...]:
        return tuple(
            int(i) for i in np.unravel_index(first_row * out.shape[1] + flat, report.shape)
        )

    different = np.flatnonzero(~_same(out, round_to(r1, to)))
    room = SHOWN - len(report.first_different)
    one = ulp(r0, to)
    if report.roundings:
        bound = (1 + 2.0**-10) * one / 2 + report.roundings * 2.0**-24 * terms.size
    else:
        bound = BOUND_ULP[report.out_dtype] * one
    distance = np.where(terms.inside, _distance(out, r0, to), 0)
    fraction = _in_units(distance, bound)
    worst = int(np.argmax(fraction))
    further = report.worst_index is None or fraction.flat[worst] > report.worst_of_bound
    return replace(
        report,
        different=report.different + len(different),
        first_different=report.first_different + tuple(index(i) for i in different[:room]),
        outside=report.outside + int(np.count_nonzero(~terms.inside)),
        beyond=report.beyond + int(np.count_nonzero(fraction > 1)),
        worst_ulp=max(report.worst_ulp, float(np.max(_in_units(distance, one)))),
        worst_of_bound=float(fraction.flat[worst]) if further else report.worst_of_bound,
        worst_index=index(worst) if further else report.worst_index,
    )


def _same(x: Array, y: Array) -> Array:
    """The same bits, or both NaN."""
    return ((x == y) & (np.signbit(x) == np.signbit(y))) | (np.isnan(x) & np.isnan(y))


def _in_units(distance: Array, unit: Array) -> Array:
    """distance / unit, but 0 and infinity stay what they are where the unit is infinite or NaN."""
    return np.where((distance == 0) | np.isinf(distance), distance, distance / unit)


def _distance(out: Array, exact: Array, to: Format) -> Array:
    """|out - exact|, an infinite output standing for everything from the power of two after the
    largest finite value on: overflowing a hair early costs a hair more than half an ulp."""
    top = to.max + ulp(np.float64(to.max), to)
    overflowed = np.isinf(out)
    reach = np.where(overflowed, np.clip(exact, -top, top), exact)
    distance = np.abs(np.where(overflowed, np.copysign(top, out), out) - reach)
    both_nan = np.isnan(out) & np.isnan(exact)
    return np.where(both_nan | (out == exact), 0, np.where(np.isnan(distance), np.inf, distance))
