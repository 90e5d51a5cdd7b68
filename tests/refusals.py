"""What the ops refuse, as data: `<argument> must <rule>, got <value>` in whatever words."""

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from operands import Operands

M, N, K = 128, 96, 64
MAX_K = 131071


def _int8(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int8)


def _int32(*shape: int) -> torch.Tensor:
    return torch.ones(shape, dtype=torch.int32)


GOOD: dict[str, Callable[[], Operands]] = {
    "scaled_mm": lambda: {
        "a": _int8(M, K),
        "b": _int8(N, K).t(),
        "scale_a": torch.ones(M, 1),
        "scale_b": torch.ones(1, N),
    },
    "int8_mm": lambda: {"a": _int8(M, K), "b": _int8(N, K).t()},
    "azp_adj": lambda: {"b": _int8(N, K).t()},
    "azp_with_adj": lambda: {"b": _int8(N, K).t(), "azp": _int32(1)},
    "pack_weight_int8": lambda: {"b": _int8(N, K).t()},
    "quantize_int8": lambda: {"x": torch.ones(M, K)},
    "quantize_weight_int8": lambda: {"w": torch.ones(N, K)},
    "rms_norm_quantize_int8": lambda: {"x": torch.ones(M, K), "weight": torch.ones(K), "eps": 1e-5},
    "layer_norm_quantize_int8": lambda: {
        "x": torch.ones(M, K),
        "weight": torch.ones(K),
        "bias": torch.ones(K),
        "eps": 1e-5,
    },
    "silu_mul_quantize_int8": lambda: {"x": torch.ones(M, K)},
    "gelu_quantize_int8": lambda: {"x": torch.ones(M, K)},
    "relu_quantize_int8": lambda: {"x": torch.ones(M, K)},
}


@dataclass(frozen=True)
class Refusal:
    """A good call of `op` with `change` made to it; the message names `argument` and `value`."""

    name: str
    op: str
    change: Operands
    argument: str
    value: str
    error: type[Exception] = ValueError

    def build(self, device: str = "cpu") -> Operands:
        """The keyword arguments of the op."""
        operands = {**GOOD[self.op](), **self.change}
        return {k: v.to(device) if hasattr(v, "to") else v for k, v in operands.items()}

    @property
    def message(self) -> str:
        """The pattern that the message matches."""
        return rf"^{self.argument} must .*got .*{re.escape(self.value)}"


def _table() -> list[Refusal]:
    table: list[Refusal] = []

    def refuse(name: str, argument: str, value: str, op: str = "scaled_mm", **change: Any) -> None:
        table.append(Refusal(f"{op}-{name}", op, change, argument, value))

    not_tensors = {"list": [1], "int": 1, "float": 0.5, "ndarray": np.ones((K, N), np.int8)}
    operands = {
        "scaled_mm": "a b scale_a scale_b bias azp azp_adj azp_with_adj residual out",
        "int8_mm": "a b out",
        "azp_adj": "b",
        "azp_with_adj": "b azp",
        "pack_weight_int8": "b",
        "quantize_int8": "x scale azp",
        "quantize_weight_int8": "w",
        "rms_norm_quantize_int8": "x weight residual scale azp smooth",
        "layer_norm_quantize_int8": "bias",
        "silu_mul_quantize_int8": "times",
    }
    for op, names in operands.items():
        for name, (kind, value) in itertools.product(names.split(), not_tensors.items()):
            change = {name: value}
            table.append(Refusal(f"{op}-{name}-{kind}", op, change, name, kind, TypeError))
    for op in ("scaled_mm", "int8_mm"):
        for name, none in itertools.product(("a", "b"), (None, "")):
            kind = type(none).__name__
            table.append(Refusal(f"{op}-{name}-{kind}", op, {name: none}, name, kind, TypeError))
    for value in ("bfloat16", None, float):
        kind, change = type(value).__name__, {"out_dtype": value}
        table.append(
            Refusal(f"out-dtype-{kind}", "scaled_mm", change, "out_dtype", kind, TypeError)
        )

    for value in (1, 0, False, True, b"reglu", ["reglu"], torch.relu):
        kind, change = type(value).__name__, {"activation": value}
        name = f"activation-{kind}-{getattr(value, '__name__', repr(value))}"
        table.append(Refusal(name, "scaled_mm", change, "activation", kind, TypeError))

    half, grad, one = torch.float16, {"requires_grad": True}, torch.ones(1)
    for op in ("scaled_mm", "int8_mm"):
        refuse("a-uint8", "a", "uint8", op, a=_int8(M, K).to(torch.uint8))
        refuse("a-float", "a", "float32", op, a=torch.ones(M, K))
        refuse("a-0d", "a", "()", op, a=_int8())
        refuse("a-columns", "a", "(128, 65)", op, a=_int8(M, K + 1))
    for op in ("scaled_mm", "int8_mm", "azp_adj", "pack_weight_int8"):
        refuse("b-uint8", "b", "uint8", op, b=_int8(K, N).to(torch.uint8))
        refuse("b-1d", "b", "(64,)", op, b=_int8(K))
        many = (2, 2) if op == "pack_weight_int8" else (2,)  # which takes a stack of them
        refuse("b-dims", "b", str((*many, 64, 96)), op, b=_int8(*many, K, N))
        long = {"a": _int8(1, MAX_K + 1)} if op.endswith("mm") else {}
        refuse("k", "b", str(MAX_K + 1), op, b=_int8(MAX_K + 1, 1), **long)
    refuse("n", "b", str(2**40 + 1), "pack_weight_int8", b=_int8(0, 2**40 + 1))

    wrong_side = "scales on the wrong side"
    refuse("scale-a-float16", "scale_a", "float16", scale_a=torch.ones(M, 1, dtype=half))
    refuse("scale-a-int32", "scale_a", "int32", scale_a=_int32(M, 1))
    refuse("scale-a-short", "scale_a", "(64, 1)", scale_a=torch.ones(64, 1))
    refuse("scale-a-empty", "scale_a", "(0,)", scale_a=torch.ones(0))
    refuse("scale-a-matrix", "scale_a", "(128, 96)", scale_a=torch.ones(M, N))
    refuse("scale-a-transposed", "scale_a", "(1, 128)", scale_a=torch.ones(1, M))
    refuse(wrong_side, "scale_a", "(1, 96)", scale_a=torch.ones(1, N), scale_b=torch.ones(M, 1))
    refuse("scale-a-square", "scale_a", "(1, 128)", b=_int8(K, M), scale_a=torch.ones(1, M))
    refuse("scale-b-float64", "scale_b", "float64", scale_b=torch.ones(1, N).double())
    refuse("scale-b-long", "scale_b", "(97,)", scale_b=torch.ones(N + 1))
    refuse("scale-b-transposed", "scale_b", "(96, 1)", scale_b=torch.ones(N, 1))
    refuse("scale-b-square", "scale_b", "(64, 1)", b=_int8(K, K), scale_b=torch.ones(K, 1))
    refuse("scale-a-nd", "scale_a", "(6, 1)", a=_int8(2, 3, K), scale_a=torch.ones(6, 1))
    refuse("scale-a-grad", "scale_a", "requires_grad", scale_a=torch.ones(M, 1, **grad))
    refuse("scale-b-grad", "scale_b", "requires_grad", scale_b=torch.ones(1, N, **grad))

    refuse("bias-other-half", "bias", "float16", bias=torch.ones(N, dtype=half))
    refuse("bias-float64", "bias", "float64", bias=torch.ones(N).double())
    refuse("bias-short", "bias", "(95,)", bias=torch.ones(N - 1))
    refuse("bias-scalar", "bias", "(1,)", bias=torch.ones(1))
    refuse("bias-matrix", "bias", "(128, 96)", bias=torch.ones(M, N))
    refuse("bias-grad", "bias", "requires_grad", bias=torch.ones(N, **grad))

    adj = {"azp_adj": _int32(1, N)}
    refuse("azp-int8", "azp", "int8", azp=_int8(M, 1), **adj)
    refuse("azp-int64", "azp", "int64", azp=_int32(M, 1).long(), **adj)
    refuse("azp-float", "azp", "float32", azp=torch.ones(M, 1), **adj)
    refuse("azp-short", "azp", "(127,)", azp=_int32(M - 1), **adj)
    refuse("azp-alone", "azp_adj", "azp", azp=_int32(M, 1))
    refuse("azp-adj-alone", "azp", "azp_adj", **adj)
    refuse("azp-adj-int64", "azp_adj", "int64", azp=_int32(1), azp_adj=_int32(N).long())
    refuse("azp-adj-scalar", "azp_adj", "(1,)", azp=_int32(1), azp_adj=_int32(1))
    refuse("azp-with-adj-int8", "azp_with_adj", "int8", azp_with_adj=_int8(N))
    refuse("azp-with-adj-short", "azp_with_adj", "(1, 95)", azp_with_adj=_int32(1, N - 1))
    all_of_them = {"azp": _int32(1), **adj, "azp_with_adj": _int32(N)}
    refuse("azp-both-forms", "azp_with_adj", "azp, azp_adj, azp_with_adj", **all_of_them)
    refuse("azp-two-adj", "azp_with_adj", "azp_adj, azp_with_adj", **adj, azp_with_adj=_int32(N))

    for name, shape in {
        "row": (1, N),
        "column": (M, 1),
        "transposed": (N, M),
        "short": (M - 1, N),
        "narrow": (M, N - 1),
        "scalar": (),
    }.items():
        text = f"({', '.join(map(str, shape))}{',' * (len(shape) == 1)})"
        refuse(f"residual-{name}", "residual", text, residual=torch.ones(shape))
    tall = {"a": _int8(2, 3, K), "scale_a": torch.ones(1)}
    refuse("residual-folded", "residual", "(6, 96)", **tall, residual=torch.ones(6, N))
    refuse("residual-other-half", "residual", "float16", residual=torch.ones(M, N, dtype=half))
    refuse("residual-float64", "residual", "float64", residual=torch.ones(M, N).double())
    refuse("residual-int32", "residual", "int32", residual=_int32(M, N))
    refuse("residual-grad", "residual", "requires_grad", residual=torch.ones(M, N, **grad))

    reglu = {"activation": "reglu"}
    refuse("residual-reglu", "residual", "residual", residual=torch.ones(M, N), **reglu)
    for value in ("", "None", "ReGLU", "gelu_erf", "regl\u00fc"):
        refuse(f"activation-{value!r}", "activation", value, activation=value)
    refuse("reglu-odd", "b", "N=95", b=_int8(K, N - 1), scale_b=torch.ones(1), **reglu)
    refuse("reglu-half-scale", "scale_b", "(48,)", scale_b=torch.ones(N // 2), **reglu)
    refuse("reglu-half-bias", "bias", "(48,)", bias=torch.ones(N // 2), **reglu)

    refuse("out-float64", "out_dtype", "float64", out_dtype=torch.float64)
    refuse("out-uint8", "out_dtype", "uint8", out_dtype=torch.uint8)
    refuse("out-e5m2", "out_dtype", "Float8_e5m2", out_dtype=torch.float8_e5m2)
    to_int8 = {"out_dtype": torch.int8, "out_scale": torch.ones(1)}
    to_fp8 = {"out_dtype": torch.float8_e4m3fn, "out_scale": torch.ones(M, 1)}
    refuse("int8-without-scale", "out_scale", "None", out_dtype=torch.int8)
    refuse("fp8-without-scale", "out_scale", "None", out_dtype=torch.float8_e4m3fn)
    refuse("scale-of-bfloat16", "out_scale", "(1,)", out_scale=torch.ones(1))
    refuse("azp-of-bfloat16", "out_azp", "(1,)", out_azp=_int32(1))
    refuse("azp-of-fp8", "out_azp", "(1,)", **to_fp8, out_azp=_int32(1))
    int8 = {"out_dtype": torch.int8}
    refuse("out-scale-short", "out_scale", "(127, 1)", **int8, out_scale=torch.ones(M - 1, 1))
    refuse("out-scale-float16", "out_scale", "float16", **int8, out_scale=one.half())
    refuse("out-scale-grad", "out_scale", "requires_grad", **int8, out_scale=torch.ones(1, **grad))
    refuse("out-azp-int64", "out_azp", "int64", **to_int8, out_azp=_int32(1).long())
    refuse("out-azp-columns", "out_azp", "(1, 96)", **to_int8, out_azp=_int32(1, N))
    refuse("int8-residual", "residual", "residual, out_scale", **to_int8, residual=torch.ones(M, N))
    refuse("int8-bias-float64", "bias", "float64", **to_int8, bias=torch.ones(N).double())
    refuse("int8-into-bfloat16", "out", "bfloat16", **to_int8, out=torch.ones(M, N).bfloat16())
    refuse("gelu-residual", "residual", "residual", residual=torch.ones(M, N), activation="gelu")

    for op, dtype in {"scaled_mm": torch.bfloat16, "int8_mm": torch.int32}.items():
        out = torch.ones(M, N, dtype=dtype)
        refuse("out-rows", "out", "(127, 96)", op, out=out[1:])
        refuse("out-columns", "out", "(128, 95)", op, out=out[:, 1:].contiguous())
        refuse("out-3d", "out", "(1, 128, 96)", op, out=out[None])
        refuse("out-flat", "out", "(12288,)", op, out=out.flatten())
        refuse("out-float16", "out", "float16", op, out=out.half())
        refuse("out-column-major", "out", "strides (1, 128)", op, out=out.t().contiguous().t())
    refuse("out-uint8", "out", "uint8", "int8_mm", out=_int32(M, N).to(torch.uint8))
    refuse("out-of-reglu", "out", "(128, 96)", **reglu, out=torch.ones(M, N).bfloat16())
    refuse("out-of-out-dtype", "out", "bfloat16", out_dtype=half, out=torch.ones(M, N).bfloat16())
    refuse("out-grad", "out", "requires_grad", out=torch.ones(M, N, dtype=torch.bfloat16, **grad))

    refuse("azp-two", "azp", "(2,)", "azp_with_adj", azp=_int32(2))
    refuse("azp-int64", "azp", "int64", "azp_with_adj", azp=_int32(1).long())

    x = "quantize_int8"
    refuse("x-float64", "x", "float64", x, x=torch.ones(M, K).double())
    refuse("x-int8", "x", "int8", x, x=_int8(M, K))
    refuse("x-0d", "x", "()", x, x=torch.ones(()))
    refuse("x-grad", "x", "requires_grad", x, x=torch.ones(M, K, **grad))
    refuse("scale-float16", "scale", "float16", x, scale=one.half())
    refuse("scale-short", "scale", "(64, 1)", x, scale=torch.ones(64, 1))
    refuse("azp-symmetric", "symmetric", "True", x, scale=one, azp=_int32(1))
    refuse("azp-without-scale", "scale", "azp", x, azp=_int32(1), symmetric=False)
    refuse("scale-without-azp", "azp", "scale", x, scale=one, symmetric=False)
    refuse("azp-int8", "azp", "int8", x, scale=one, azp=_int8(1), symmetric=False)
    refuse("azp-short", "azp", "(64,)", x, scale=one, azp=_int32(64), symmetric=False)
    refuse("w-float64", "w", "float64", "quantize_weight_int8", w=torch.ones(N, K).double())
    refuse("azp-long", "azp", "(1, 128)", x, scale=one, azp=_int32(1, M), symmetric=False)
    refuse("scale-empty", "scale", "(0,)", x, scale=torch.ones(0))
    refuse("scale-grad", "scale", "requires_grad", x, scale=torch.ones(1, **grad))
    rms, layer = "rms_norm_quantize_int8", "layer_norm_quantize_int8"
    refuse("x-int8", "x", "int8", rms, x=_int8(M, K))
    refuse("x-0d", "x", "()", rms, x=torch.ones(()))
    refuse("x-grad", "x", "requires_grad", rms, x=torch.ones(M, K, **grad))
    refuse("weight-float16", "weight", "float16", rms, weight=torch.ones(K, dtype=half))
    refuse("weight-short", "weight", "(63,)", rms, weight=torch.ones(K - 1))
    refuse("weight-matrix", "weight", "(64, 1)", rms, weight=torch.ones(K, 1))
    refuse("bias-short", "bias", "(1,)", layer, bias=torch.ones(1))
    refuse("residual-half", "residual", "float16", rms, residual=torch.ones(M, K, dtype=half))
    refuse("residual-rows", "residual", "(1, 64)", rms, residual=torch.ones(1, K))
    refuse("eps", "eps", "-1", rms, eps=-1.0)
    refuse("eps-inf", "eps", "inf", rms, eps=float("inf"))
    refuse("eps-nan", "eps", "nan", rms, eps=float("nan"))
    refuse("smooth-half", "smooth", "float16", rms, smooth=torch.ones(K, dtype=half))
    refuse("smooth-long", "smooth", "(65,)", rms, smooth=torch.ones(K + 1))
    refuse("scale-short", "scale", "(64, 1)", rms, scale=torch.ones(64, 1))
    refuse("azp-symmetric", "azp", "tensor", rms, scale=one, azp=_int32(1))
    refuse("azp-without-scale", "scale", "azp", rms, azp=_int32(1), symmetric=False)
    refuse("scale-without-azp", "azp", "None", rms, scale=one, symmetric=False)
    refuse("odd", "x", "(128, 63)", "silu_mul_quantize_int8", x=torch.ones(M, K - 1))
    refuse("times", "times", "(128, 32)", "silu_mul_quantize_int8", times=torch.ones(M, K // 2))
    refuse("approximate", "approximate", "'erf'", "gelu_quantize_int8", approximate="erf")
    refuse("w-1d", "w", "(64,)", "quantize_weight_int8", w=torch.ones(K))
    refuse("w-3d", "w", "(2, 96, 64)", "quantize_weight_int8", w=torch.ones(2, N, K))
    refuse("w-int8", "w", "int8", "quantize_weight_int8", w=_int8(N, K))
    refuse("w-grad", "w", "requires_grad", "quantize_weight_int8", w=torch.ones(N, K, **grad))
    return table


REFUSALS = {refusal.name: refusal for refusal in _table()}
