"""The arithmetics an epilogue of the reference can be evaluated in.

An epilogue (`epilogues.py`) is written once over a few verbs: `integer`, `mul`, `fma`, `add`,
`activated` (a function of each column) and `gated` (one of each even column, times the odd one);
sums over groups (`k_scales.py`) over `chained` and `joined` besides. It means

* in `Float32` the bit contract (R1): int32 wraps, every operation rounds once to float32;
* in `Exact` the algebra (R0): nothing is rounded before the conversion to the output dtype;
* in `Magnitude` the sum of the absolute values of its terms, and whether it stayed in the exact
  domain.

`value` of the first two is a float64 array that `round_to` rounds to the output dtype: the only
rounding of R0, the last one of R1. Everything is plain numpy in float64 with error-free
transformations (Dekker 1971, Knuth's TwoSum; round to odd: Boldo and Melquiond 2008), so nothing
depends on a fused multiply-add or a long double.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

Array = np.ndarray


class Function(NamedTuple):
    """A function that an epilogue applies: the sequence in float32, and the true value of float64
    arguments, to float64's accuracy."""

    name: str
    float32: Callable[[Array], Array]
    true: Callable[[Array], Array]


class Format(NamedTuple):
    """A binary format: bits of the significand, exponent of the least subnormal, largest value."""

    name: str
    bits: int
    min_exponent: int
    max: float


FORMATS = {
    torch.bfloat16: Format("bfloat16", 8, -133, (2 - 2.0**-7) * 2.0**127),
    torch.float16: Format("float16", 11, -24, 65504.0),
    torch.float32: Format("float32", 24, -149, (2 - 2.0**-23) * 2.0**127),
}
FLOAT32 = FORMATS[torch.float32]
FLT_MIN = np.float32(2.0**-126)


def ulp(x: Array, to: Format) -> Array:
    """Unit in the last place of the format `to` in the binade of `x`, subnormals included."""
    _, exponent = np.frexp(x)
    return np.ldexp(1.0, np.maximum(exponent - to.bits, to.min_exponent))


def round_to(x: Array, to: Format) -> Array:
    """Float64 `x` rounded to nearest even in the format `to`, as IEEE 754 says: subnormals are
    kept, overflow is infinite."""
    quantum = ulp(x, to)
    y = np.rint(x / quantum) * quantum
    return np.where(np.abs(y) > to.max, np.copysign(np.inf, y), y)


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """`(s, e)`: `s = RN(x + y)` and `s + e = x + y` exactly."""
    s = x + y
    z = s - x
    return s, (x - (s - z)) + (y - z)


def split(x: Array) -> tuple[Array, Array]:
    """`x` as the exact sum of two float64 of at most 26 bits each, whose product with any float32
    (24 bits) is exact."""
    c = 134217729.0 * x  # 2^27 + 1
    high = c - (c - x)
    return high, x - high


def to_odd(x: Array, tail: Array) -> Array:
    """`x + tail` rounded to odd, given `|tail| < ulp(x)`: to the neighbour whose last bit is 1.

    The last bit then tells every later rounding to fewer bits that the value was not exact, so that
    rounding it again gives what one rounding of the exact sum would (from two spare bits on;
    float64 has 29 over float32).
    """
    bits = np.atleast_1d(x).view(np.int64)
    even = bits & 1 == 0
    inexact = np.abs(tail) > 0  # false for a NaN, the tail of an infinite x
    step = np.where((tail > 0) == (x > 0), 1, -1)
    return (bits + (inexact & even) * step).view(np.float64)


def distill(parts: list[Array]) -> list[Array]:
    """Finite float64 arrays with the same exact sum that do not overlap, the largest first.

    TwoSum passes from the last part to the first until a pass changes nothing. Then `RN(p[i] +
    p[i+1]) = p[i]` for every neighbour, so each part is at most half an ulp of the one before and
    a zero has only zeros behind it. Parts that are zero everywhere are left out.
    """
    p = [*parts]
    changed = len(p) > 1
    while changed:
        changed = False
        for i in range(len(p) - 1, 0, -1):
            s, e = two_sum(p[i - 1], p[i])
            changed = changed or bool(np.any(s != p[i - 1]))
            p[i - 1], p[i] = s, e
    return [p[0], *(x for x in p[1:] if x.any())] if p else p


def sum_to_odd(parts: list[Array]) -> Array:
    """The exact sum of finite float64 arrays, rounded to odd.

    Of distilled parts the sum of all but the first is less than one ulp of `p[0]` and has the sign
    of `p[1]`, all that rounding to odd asks.
    """
    p = distill(parts)
    return to_odd(p[0], p[1]) if len(p) > 1 else p[0]


def fma32(x: Array, y: Array, z: Array) -> Array:
    """`RN32(x * y + z)`: the product is exact in float64 (48 bits), the sum rounded to odd."""
    return to_odd(*two_sum(np.float64(x) * np.float64(y), np.float64(z))).astype(np.float32)


class Float32:
    """R1. A value is a float32 array."""

    @staticmethod
    def integer(t: Array) -> Array:
        """int64 -> int32, wrapping (once is as good as at every step: a ring) -> float32."""
        return t.astype(np.int32).astype(np.float32)

    @staticmethod
    def mul(s: Array, x: Array) -> Array:
        return s * x

    fma = staticmethod(fma32)

    @staticmethod
    def add(x: Array, y: Array) -> Array:
        return x + y

    joined = add

    @staticmethod
    def chained(factors: list[Array], x: Array, onto: Array | None) -> Array:
        """fma of the factors' product, x, and what is there already."""
        start = np.float32(-0.0) if onto is None else onto
        return fma32(factors[0] if len(factors) == 1 else factors[0] * factors[1], x, start)

    @staticmethod
    def activated(x: Array, function: Function) -> Array:
        return function.float32(x)

    @staticmethod
    def gated(x: Array, function: Function) -> Array:
        """f(gate) * value, gates and values in turn along the columns."""
        return function.float32(x[:, 0::2]) * x[:, 1::2]

    @staticmethod
    def value(x: Array) -> Array:
        return x.astype(np.float64)


class Exact:
    """R0. A value is a plain IEEE float64 evaluation, which knows NaN, infinity and the sign of a
    zero, and `parts`: float64 arrays whose sum is the exact value where that evaluation is
    finite.

    No part over- or underflows: after two float32 factors its bits lie between 2^-298 and 2^319.
    """

    def __init__(self, ieee: Array, parts: list[Array]):
        self.ieee, self.parts = ieee, [p for p in parts if p.any()]

    @classmethod
    def integer(cls, t: Array) -> Exact:
        high = t.astype(np.float64)
        return cls(high, [high, (t - high.astype(np.int64)).astype(np.float64)])

    @classmethod
    def mul(cls, s: Array, x: Exact) -> Exact:
        finite = np.where(np.isfinite(s), s, 0).astype(np.float64)
        return cls(s * x.ieee, [finite * half for p in x.parts for half in split(p)])

    @classmethod
    def fma(cls, s: Array, x: Exact, z: Array) -> Exact:
        product = cls.mul(s, x)
        finite = np.where(np.isfinite(z), z, 0).astype(np.float64)
        ieee = product.ieee + z
        return cls(ieee, [*product.parts, np.broadcast_to(finite, ieee.shape)])

    @classmethod
    def add(cls, x: Exact, y: Array) -> Exact:
        finite = np.where(np.isfinite(y), y, 0).astype(np.float64)
        return cls(x.ieee + y, [*x.parts, finite])

    @classmethod
    def joined(cls, x: Exact, y: Exact) -> Exact:
        return cls(x.ieee + y.ieee, [*x.parts, *y.parts])

    @classmethod
    def chained(cls, factors: list[Array], x: Exact, onto: Exact | None) -> Exact:
        for s in factors:
            x = cls.mul(s, x)
        return x if onto is None else cls.joined(onto, x)

    @classmethod
    def activated(cls, x: Exact, function: Function) -> Exact:
        """Of the value rounded to float64, in float64 (but the maximum with 0, which is exact)."""
        shape = np.broadcast_shapes(x.ieee.shape, *(p.shape for p in x.parts))
        ieee = np.broadcast_to(x.ieee, shape)
        if function.name == "relu":
            parts = distill([np.broadcast_to(p, shape) for p in x.parts])
            sign = np.sign(parts[0]) if parts else np.zeros(shape)
            sign = np.where(np.isinf(ieee), np.sign(ieee), sign)  # parts are of finite terms alone
            return cls(function.true(ieee), [np.where(sign > 0, p, 0.0) for p in parts])
        made = function.true(np.broadcast_to(cls.value(x), shape))
        return cls(made, [np.where(np.isfinite(made), made, 0.0)])

    @classmethod
    def gated(cls, x: Exact, function: Function) -> Exact:
        """The parts of gate and value, made few by the passes of `sum_to_odd`, times each other."""
        shape = np.broadcast_shapes(x.ieee.shape, *(p.shape for p in x.parts))
        parts = distill([np.broadcast_to(p, shape) for p in x.parts])
        ieee = np.broadcast_to(x.ieee, shape)
        gate = cls.activated(cls(ieee[:, 0::2], [p[:, 0::2] for p in parts]), function)
        gates = [half for p in gate.parts for half in split(p)]
        values = [half for p in parts for half in split(p[:, 1::2])]
        return cls(gate.ieee * ieee[:, 1::2], [g * value for g in gates for value in values])

    @staticmethod
    def value(x: Exact) -> Array:
        if not x.parts:
            return x.ieee
        exact = sum_to_odd(x.parts)
        return np.where(np.isfinite(x.ieee) & ((exact != 0) | (x.ieee != 0)), exact, x.ieee)


class Magnitude(NamedTuple):
    """`|s_a s_b t| + |bias|` (+ |residual|; of a pair of columns, the product of theirs), and
    whether every intermediate is one for which the accuracy claim is made: `t` in int32, products
    zero or normal float32."""

    size: Array
    inside: Array

    @classmethod
    def integer(cls, t: Array) -> Magnitude:
        return cls(np.abs(t.astype(np.float64)), t == t.astype(np.int32))

    @classmethod
    def mul(cls, s: Array, x: Magnitude) -> Magnitude:
        size = np.abs(np.float64(s)) * x.size
        normal = (size >= FLT_MIN) & (size <= FLOAT32.max)
        return cls(size, x.inside & (normal | (size == 0)))

    @classmethod
    def fma(cls, s: Array, x: Magnitude, z: Array) -> Magnitude:
        return cls.add(cls.mul(s, x), z)

    @classmethod
    def add(cls, x: Magnitude, y: Array) -> Magnitude:
        return cls(x.size + np.abs(np.float64(y)), x.inside)

    @classmethod
    def joined(cls, x: Magnitude, y: Magnitude) -> Magnitude:
        return cls(x.size + y.size, x.inside & y.inside)

    @classmethod
    def chained(cls, factors: list[Array], x: Magnitude, onto: Magnitude | None) -> Magnitude:
        factor = cls(np.ones((1, 1)), np.ones((1, 1), bool))
        for s in factors:
            factor = cls.mul(s, factor)
        made = cls.mul(factor.size, cls(x.size, x.inside & factor.inside))
        return made if onto is None else cls.joined(onto, made)

    @classmethod
    def activated(cls, x: Magnitude, function: Function) -> Magnitude:
        return x

    @classmethod
    def gated(cls, x: Magnitude, function: Function) -> Magnitude:
        size = x.size[:, 0::2] * x.size[:, 1::2]
        normal = (size >= FLT_MIN) & (size <= FLOAT32.max)
        inside = np.broadcast_to(x.inside, x.size.shape)
        return cls(size, inside[:, 0::2] & inside[:, 1::2] & (normal | (size == 0)))
