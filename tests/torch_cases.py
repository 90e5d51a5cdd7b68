"""Calls of the ops, and functions of them that are compiled and exported: test_torch.py has them on
the CPU, test_cuda_torch.py on a GPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

import scaled_mm


def int8(*shape: int) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(-128, 128, shape, np.int8))


A, B = int8(4, 24), int8(10, 24).t()
WIDE_A = int8(2, 3, 24)
PACKED = scaled_mm.pack_weight_int8(B)
S_A, S_B = torch.linspace(0.1, 1, 4)[:, None], torch.linspace(-1, 1, 10)
BIAS, ADJ = torch.linspace(-5, 5, 10), scaled_mm.azp_adj(B)
AZP = torch.arange(4, dtype=torch.int32)[:, None]
ONE, ZERO = torch.ones(1), torch.zeros(1, dtype=torch.int32)
X = torch.linspace(-3, 5, 60).reshape(2, 3, 10)
W = int8(7, 10).t()
PACKED_W = scaled_mm.pack_weight_int8(W)
LAYER_SCALES = torch.linspace(0.1, 1, 7)[:, None]
RESIDUAL = torch.linspace(-500, 500, 40).reshape(4, 10)
WIDE_RESIDUAL = X.half()
TO_INT8 = {"out_dtype": torch.int8, "out_scale": torch.tensor([0.5])}
BY_SHAPE = {"b_shape": PACKED.shape}

ROWS = torch.ones(2, 3, 1)
Call = tuple[str, tuple[Any, ...], dict[str, Any]]
"""An op, its arguments and its options."""


def product(
    a: Tensor = A, b: Any = B, scale_a: Tensor = S_A, scale_b: Tensor = S_B, **options: Any
) -> Call:
    if b is PACKED:
        b, options = PACKED.data, {**BY_SHAPE, **options}
    return "scaled_mm", (a, b, scale_a, scale_b), options


def linear(
    *more: Any, x: Tensor = X, weight: Tensor = PACKED_W.data, bias: Any = None, **options: Any
) -> Call:
    return "scaled_linear", (x, weight, LAYER_SCALES, bias, PACKED_W.k, *more), options


FLOAT, HALF = {"out_dtype": torch.float32}, {"out_dtype": torch.float16}
TERM = {"azp_term": torch.ones(7, dtype=torch.int32)}
CALLS: dict[str, Call] = {
    "scaled_mm": product(),
    "scaled_mm bias": product(bias=BIAS, **FLOAT),
    "scaled_mm azp": product(azp=AZP, azp_adj=ADJ),
    "scaled_mm azp_with_adj": product(scale_a=ONE, scale_b=ONE, azp_with_adj=ADJ, bias=BIAS),
    "scaled_mm packed": product(b=PACKED, bias=BIAS),
    "scaled_mm row-major b": product(b=B.contiguous()),
    "scaled_mm 3d": product(WIDE_A, scale_a=ROWS),
    "scaled_mm 1d": product(A[0], scale_a=ONE, **HALF),
    "scaled_mm empty": product(A[:0], scale_a=ONE),
    "scaled_mm residual": product(residual=RESIDUAL),
    "scaled_mm residual 3d": product(
        WIDE_A, PACKED, ONE, bias=BIAS, residual=WIDE_RESIDUAL, **HALF
    ),
    "scaled_mm residual strided": product(
        azp=AZP, azp_adj=ADJ, residual=RESIDUAL.bfloat16().t().contiguous().t()
    ),
    "scaled_mm residual expanded": product(residual=RESIDUAL[:1, :1].expand(4, 10), **FLOAT),
    "scaled_mm reglu": product(activation="reglu"),
    "scaled_mm reglu 3d": product(WIDE_A, PACKED, ROWS, bias=BIAS, activation="reglu", **FLOAT),
    "scaled_mm reglu azp": product(A[:0], scale_a=ONE, azp=ZERO, azp_adj=ADJ, activation="reglu"),
    "plain": ("_scaled_mm_plain", (A, B, S_A, S_B, None, -1, -1, False, None), {}),
    "plain packed 3d": (
        "_scaled_mm_plain",
        (WIDE_A, PACKED.data, ROWS, S_B, BIAS, *PACKED.shape, False, torch.float16),
        {},
    ),
    "linear": linear(weight=W.t()),
    "linear asymmetric": linear(False, None, False, False, azp_term=TERM["azp_term"][None]),
    "linear static": linear(False, None, False, input_scale=ONE, input_azp=ZERO, **TERM),
    "linear smooth": linear(input_smooth=X[1, 1]),
    "linear gated": linear(producer="silu", times=X.flip(0)),
    "linear packed bfloat16": linear(x=X.bfloat16(), bias=LAYER_SCALES.view(7)),
    "scaled_mm gelu": product(activation="gelu", bias=BIAS),
    "scaled_mm swiglu int8": product(
        WIDE_A, PACKED, ROWS, activation="swiglu", **TO_INT8, out_azp=ZERO
    ),
    "scaled_mm int8": product(bias=BIAS, **TO_INT8),
    "scaled_mm fp8": product(out_dtype=torch.float8_e4m3fn, out_scale=S_A, activation="gelu_tanh"),
    "int8_mm": ("int8_mm", (A, B), {}),
    "int8_mm packed 3d": ("int8_mm", (WIDE_A, PACKED.data), BY_SHAPE),
    "azp_adj": ("azp_adj", (B,), {}),
    "azp_adj packed": ("azp_adj", (PACKED.data,), BY_SHAPE),
    "azp_with_adj": ("azp_with_adj", (B, ZERO), {}),
    "azp_with_adj packed": ("azp_with_adj", (PACKED.data, ZERO), BY_SHAPE),
    "pack_weight_int8": ("pack_weight_int8", (B,), {}),
    "pack_weight_int8 row-major": ("pack_weight_int8", (int8(7, 33),), {}),
    "quantize_int8": ("quantize_int8", (X,), {}),
    "quantize_int8 asymmetric": ("quantize_int8", (X.bfloat16(),), {"symmetric": False}),
    "quantize_int8 tensor": ("quantize_int8", (X.half(),), {"per_token": False}),
    "quantize_int8 1d": ("quantize_int8", (X[0, 0],), {"symmetric": False, "per_token": False}),
    "quantize_int8 strided": ("quantize_int8", (X.transpose(0, 2),), {}),
    "quantize_int8_static": ("quantize_int8_static", (X, ONE), {}),
    "quantize_int8_static azp": ("quantize_int8_static", (X, ROWS, ZERO), {}),
    "produce_int8 norm": (
        "produce_int8",
        ("layer_norm", X),
        {"weight": X[0, 0], "bias": X[0, 1].half().float(), "residual": X, "eps": 1e-5},
    ),
    "produce_int8 halves": ("produce_int8", ("silu", X), {"halves": True, "symmetric": False}),
    "produce_int8 static": (
        "produce_int8",
        ("gelu", X[0, 0]),
        {"times": X[0, 1], "smooth": X[1, 1], "scale": ONE, "azp": ZERO, "symmetric": False},
    ),
    "quantize_weight_int8": ("quantize_weight_int8", (X[0],), {}),
    "quantize_weight_int8 tensor": ("quantize_weight_int8", (X[0].t(),), {"per_channel": False}),
}


def metadata(outputs: Any) -> list[Any]:
    return [(x.shape, x.dtype, x.stride()) for x in tree_leaves(outputs) if x is not None]


# --- functions of x_of(m) -------------------------------------------------------------------------

WEIGHT, WEIGHT_SCALE = scaled_mm.quantize_weight_int8(torch.linspace(-1, 1, 240).reshape(10, 24))
PLAIN = WEIGHT.t()
FACTORS, STATIC_SCALE = torch.linspace(1, 2, 24), torch.full((1,), 0.05)


def dynamic(x: Tensor, w: Any = PLAIN) -> Tensor:
    q, scale, _ = scaled_mm.quantize_int8(x)
    return scaled_mm.scaled_mm(q, w, scale, WEIGHT_SCALE, bias=BIAS, out_dtype=torch.float32)


def asymmetric(x: Tensor) -> Tensor:
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    adj = scaled_mm.azp_adj(PLAIN)
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp=azp, azp_adj=adj)


def static(x: Tensor) -> Tensor:
    given: dict[str, Any] = {"device": x.device}
    scale, azp = torch.full((1,), 0.05, **given), torch.full((1,), -7, dtype=torch.int32, **given)
    q, _, _ = scaled_mm.quantize_int8(x, scale=scale, azp=azp, symmetric=False)
    adj = scaled_mm.azp_with_adj(PLAIN, azp)
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp_with_adj=adj)


def packs(x: Tensor) -> Tensor:
    packed = scaled_mm.pack_weight_int8(PLAIN)
    q, _, _ = scaled_mm.quantize_int8(x, per_token=False)
    return scaled_mm.int8_mm(q, packed) + scaled_mm.azp_adj(packed)


def residual(x: Tensor) -> Tensor:
    """A block's last layer: its input comes back, and the sum goes on in the same call."""
    q, scale, _ = scaled_mm.quantize_int8(x)
    y = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, out_dtype=torch.float32)
    more = {"bias": BIAS, "residual": y[:, :1].expand(y.shape), "out_dtype": torch.float16}
    z = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, residual=y)
    return z + scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, **more)


def gated(x: Tensor) -> Tensor:
    q, scale, azp = scaled_mm.quantize_int8(x, symmetric=False)
    adj = scaled_mm.azp_adj(PLAIN)
    options = {"azp": azp, "azp_adj": adj, "bias": BIAS, "activation": "reglu"}
    return scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, **options)


def norm(x: Tensor) -> Tensor:
    given = {"residual": x.flip(0), "symmetric": False}
    q, scale, azp, h, _ = scaled_mm.rms_norm_quantize_int8(x, FACTORS, 1e-5, **given)
    adj = scaled_mm.azp_adj(PLAIN)
    y = scaled_mm.scaled_mm(q, PLAIN, scale, WEIGHT_SCALE, azp=azp, azp_adj=adj)
    return y * h[:, :1]


def activations(x: Tensor) -> Tensor:
    """Every function, one by a static scale, one smoothed."""
    made = [
        scaled_mm.silu_mul_quantize_int8(torch.cat([x, x], 1)),
        scaled_mm.gelu_quantize_int8(x, approximate="tanh", times=x),
        scaled_mm.gelu_quantize_int8(x, scale=STATIC_SCALE),
        scaled_mm.relu_quantize_int8(x, smooth=FACTORS),
    ]
    return torch.stack([q for q, _, _ in made])


def quantizes_weight(x: Tensor) -> Tensor:
    q, scale = scaled_mm.quantize_weight_int8(x)
    return scaled_mm.int8_mm(q, q.t()) * scale


FUNCTIONS = [dynamic, asymmetric, static, packs, quantizes_weight, residual, gated, norm]
FUNCTIONS += [activations]


def x_of(m: int) -> Tensor:
    return torch.randn(m, 24, generator=torch.Generator().manual_seed(m))


class Module(torch.nn.Module):
    def __init__(self, function: Callable[..., Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)
