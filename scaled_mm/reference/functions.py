"""The transcendental functions of activations and programs, each a written sequence of float32
operations (docs/numerics.md, section 6); csrc/functions.h has the same for the kernels."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from .arithmetic import Array, Function, fma32

F32 = np.float32
Number = Array | np.float32


def fma(x: Number, y: Number, z: Number) -> Array:
    return fma32(np.asarray(x), np.asarray(y), np.asarray(z))


def _hex(*digits: str) -> tuple[np.float32, ...]:
    return tuple(F32(float.fromhex(text)) for text in digits)


# Polynomials, the coefficient of the highest power first.
EXP2 = _hex(  # (2^f - 1) / f for |f| <= 1/2
    *("0x1.417284p-13", "0x1.5f0976p-10", "0x1.3b2ddap-7"),
    *("0x1.c6af7ap-5", "0x1.ebfbdcp-3", "0x1.62e430p-1"),
)
EXP2_OF_TAILS = _hex(  # the same, not as near
    *("0x1.5bda40p-10", "0x1.3ce8acp-7", "0x1.c6b6d8p-5", "0x1.ebf9c2p-3", "0x1.62e42ap-1"),
)
GELU_TAIL = _hex(  # log2(1 - erf(t / sqrt 2)) / t in t, for 0 <= t <= 5.5
    *("-0x1.c59e5ep-20", "0x1.c1ff26p-16", "-0x1.163992p-13", "-0x1.06601ap-12"),
    *("0x1.d72bf6p-8", "-0x1.aea2b4p-5", "-0x1.d635dcp-2", "-0x1.26aeeep+0"),
)
TANH_TAIL = _hex("-0x1.a5a7d0p-4", "-0x1.26aec2p+1")  # -2 u log2(e) / t in t^2
ERF_NEAR = _hex(  # erf(z) / z - 1 in z^2, for |z| < 15/16
    *("0x1.4f8e58p-14", "-0x1.a6126ep-11", "0x1.544aa8p-8", "-0x1.b80120p-6"),
    *("0x1.ce2d64p-4", "-0x1.812740p-2", "0x1.06eba8p-3"),
)
LOG2_ERFC = _hex(  # log2(1 - erf(z)) in z - 1, for 15/16 <= z <= 4
    *("0x1.5fc054p-12", "-0x1.79271ap-9", "0x1.dd68dap-7", "-0x1.ebb94ap-5"),
    *("-0x1.3761a8p+0", "-0x1.e7532ap+1", "-0x1.558eaep+1"),
)
TANH_NEAR = _hex(  # (tanh(x) / x - 1) / x^2 in x^2, for |x| < 5/8
    *("0x1.18e1c4p-9", "-0x1.0bf4f6p-7", "0x1.638b56p-6"),
    *("-0x1.b9ee90p-5", "0x1.111066p-3", "-0x1.555554p-2"),
)
LOG2_E, LOG2_E_REST = _hex("0x1.715476p+0", "0x1.4ae0c0p-26")  # their sum is log2(e)
SHIFT = F32(12582912)  # 1.5 2^23: the last bit of a sum with it is worth 1
LEAST_EXPONENT = F32(-104)  # e to that is below half the least float
MOST_EXPONENT = F32(89)  # e to that is above the largest
TANH_IS_NEAR = F32(0.625)
ERF_IS_ONE = F32(4)  # 1 - erf(4) is below 2^-25
NEAR_ZERO = F32(0.9375)


def polynomial(coefficients: tuple[np.float32, ...], x: Array) -> Array:
    """Horner's scheme, a fused multiply-add for each coefficient but the first."""
    value: Array = np.full_like(x, coefficients[0])
    for c in coefficients[1:]:
        value = fma(value, x, c)
    return value


def power_of_two(x: Array, y: Number, c: int = 0) -> Array:
    """2^(x y + c), where that is at least 2^-126."""
    shift = SHIFT + F32(c)
    n = fma(x, y, shift) - shift
    f = fma(x, y, -n)
    power = fma(polynomial(EXP2_OF_TAILS, f), f, F32(1))
    return np.ldexp(power, np.nan_to_num(n).astype(np.int32) + c)


def without_tail(x: Array, size: Array, tail: Array) -> Array:
    """max(x, 0) - |x| s(-|x|), which is x s(x) where s(x) + s(-x) = 1; `size` is |x| up to where
    the tail s(-|x|) no longer counts, or a NaN."""
    return fma(-size, tail, np.where(x > 0, x, F32(0)))


def relu(x: Array) -> Array:
    """max(x, +0); a NaN stays."""
    return np.where(x > 0, x, np.where(np.isnan(x), x, F32(0)))


def silu(x: Array) -> Array:
    """x / (1 + e^-x)."""
    size = np.minimum(np.abs(x), F32(87))
    e = power_of_two(size, -LOG2_E)
    return without_tail(x, size, e * (F32(1) / (F32(1) + e)))


def gelu(x: Array) -> Array:
    """x (1 + erf(x / sqrt 2)) / 2."""
    size = np.minimum(np.abs(x), F32(10))
    return without_tail(x, size, power_of_two(size, polynomial(GELU_TAIL, size), -1))


def gelu_tanh(x: Array) -> Array:
    """x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u)."""
    size = np.minimum(np.abs(x), F32(10))
    e = power_of_two(size, polynomial(TANH_TAIL, size * size))
    return without_tail(x, size, e * (F32(1) / (F32(1) + e)))


# The functions below are of programs alone. A NaN stays.


def exp_down(x: Array) -> Array:
    """e^x for x <= 0, subnormals rounded once; within 1 ulp. A NaN counts as -104."""
    x = np.fmax(x, LEAST_EXPONENT)
    n = fma(x, LOG2_E, SHIFT) - SHIFT
    return _two_to(n, fma(x, LOG2_E_REST, fma(x, LOG2_E, -n)))


def _two_to(n: Array, f: Array) -> Array:
    """2^(n + f) for integers -150 <= n <= 0 and |f| <= 1/2, subnormals rounded once."""
    power = fma(polynomial(EXP2, f), f, F32(1))
    return np.ldexp(power, n.astype(np.int32) + 64) * F32(2.0**-64)


def exp(x: Array) -> Array:
    """e^x; within 1 ulp."""
    up = x > 0
    at = np.fmin(np.fmax(x, LEAST_EXPONENT), MOST_EXPONENT)
    n = fma(at, LOG2_E, SHIFT) - SHIFT
    f = fma(at, LOG2_E_REST, fma(at, LOG2_E, -n))
    power = fma(polynomial(EXP2, f), f, F32(1))
    half = np.where(up, F32(64), F32(-64))
    scaled = np.ldexp(power, (n - half).astype(np.int32)) * np.ldexp(F32(1), half.astype(np.int32))
    return np.where(np.isnan(x), x, scaled)


def erf(z: Array) -> Array:
    """erf(z); within 1 ulp."""
    size = np.abs(z)
    near = fma(polynomial(ERF_NEAR, z * z), z, z)
    log = polynomial(LOG2_ERFC, np.fmin(size, ERF_IS_ONE) - F32(1))
    n = (log + SHIFT) - SHIFT
    far = F32(1) - _two_to(n, log - n)
    return np.where(np.isnan(z), z, np.where(size < NEAR_ZERO, near, np.copysign(far, z)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^-x): e = e^-|x| is at most 1."""
    e = exp_down(-np.abs(x))
    return np.where(np.isnan(x), x, np.where(x < 0, e, F32(1)) * (F32(1) / (F32(1) + e)))


def tanh(x: Array) -> Array:
    """Near 0 by a polynomial, else (1 - e) / (1 + e) with e = e^(-2 |x|)."""
    size, square = np.abs(x), x * x
    near = fma(polynomial(TANH_NEAR, square) * square, size, size)
    e = exp_down(F32(-2) * size)
    far = (F32(1) - e) * (F32(1) / (F32(1) + e))
    return np.where(np.isnan(x), x, np.copysign(np.where(size < TANH_IS_NEAR, near, far), x))


ACTIVATIONS = {"relu": relu, "silu": silu, "gelu": gelu, "gelu_tanh": gelu_tanh}


_erfc = np.vectorize(math.erfc, otypes=[np.float64])


def _true_gelu_tanh(x: Array) -> Array:
    return x / (1 + np.exp(-2 * math.sqrt(2 / math.pi) * x * (1 + 0.044715 * x * x)))


TRUE: dict[str, Callable[[Array], Array]] = {
    "relu": relu,
    "silu": lambda x: x / (1 + np.exp(-x)),
    "gelu": lambda x: 0.5 * x * _erfc(-x * math.sqrt(0.5)),
    "gelu_tanh": _true_gelu_tanh,
}
FUNCTIONS = {name: Function(name, f, TRUE[name]) for name, f in ACTIVATIONS.items()}
GATES = {"reglu": "relu", "swiglu": "silu", "geglu": "gelu", "geglu_tanh": "gelu_tanh"}
"""Gated linear units: the function of the gate."""
