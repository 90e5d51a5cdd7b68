"""What `scaled-mm bench` compares: the cases, and every way to compute one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .. import azp, ops

DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}

EPILOGUES = {
    "scaled": "ScaledEpilogue",
    "bias": "ScaledEpilogueBias",
    "azp": "ScaledEpilogueAzp",
    "azp-per-token": "ScaledEpilogueAzpPerToken",
}


@dataclass(frozen=True)
class Case:
    """One product with its operands: full-range int8, scales that bring the output near 1.

    Scale and zero point of the activations are per tensor, as the peers ask for; per token in
    ScaledEpilogueAzpPerToken. Both azp epilogues have a bias too.
    """

    a: Tensor  # int8 [M, K]
    b: Tensor  # int8 [K, N], the transpose of a contiguous weight
    scale_a: Tensor  # float32 [1, 1] or [M, 1]
    scale_b: Tensor  # float32 [1, N]
    operands: dict[str, Tensor]  # those of the epilogue, all of two dimensions
    azp: Tensor | None  # int32 [1, 1] or [M, 1]
    out_dtype: torch.dtype

    @property
    def mkn(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.a.shape[1], self.b.shape[1]


def make_case(
    m: int, k: int, n: int, epilogue: str, out_dtype: torch.dtype, device: str = "cpu"
) -> Case:
    random = torch.Generator().manual_seed(0)

    def integers(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high, shape, generator=random)

    a = integers(-128, 128, m, k).to(device, torch.int8)
    b = integers(-128, 128, n, k).to(device, torch.int8).t()
    tokens = m if epilogue == "azp-per-token" else 1
    zero = integers(-128, 128, tokens, 1).to(device, torch.int32)
    scale_a = (2e-2 * (0.5 + torch.rand(tokens, 1, generator=random))).to(device)
    scale_b = (1e-2 / math.sqrt(k) * (0.5 + torch.rand(1, n, generator=random))).to(device)
    operands = {}
    if epilogue != "scaled":
        operands["bias"] = torch.randn(1, n, generator=random).to(device, out_dtype)
    if epilogue == "azp":
        operands["azp_with_adj"] = azp.azp_with_adj(b, zero)
    elif epilogue == "azp-per-token":
        operands |= {"azp": zero, "azp_adj": azp.azp_adj(b)}
    return Case(a, b, scale_a, scale_b, operands, zero if "azp" in epilogue else None, out_dtype)


# ---- The contenders ------------------------------------------------------------------------------


class Unsupported(Exception):
    """A contender has no form for a case; the message says why."""


@dataclass(frozen=True)
class Route:
    """A case made ready for one contender: `run(weight)` gives D from what `weight()` made."""

    weight: Callable[[], Any]
    run: Callable[[Any], Tensor]
    weight_bytes: int  # of one element


@dataclass(frozen=True)
class Contender:
    name: str
    what: str
    prepare: Callable[[Case], Route]
    devices: tuple[str, ...] = ("cpu",)
    ours: bool = False
    quantised: bool = True  # computes the int8 product, so that its output can be judged


def _ours(case: Case, weight: Callable[[], Any]) -> Route:
    def run(b: Any) -> Tensor:
        return ops.scaled_mm(
            case.a, b, case.scale_a, case.scale_b, **case.operands, out_dtype=case.out_dtype
        )

    return Route(weight, run, 1)


def _packed(case: Case) -> Route:
    return _ours(case, lambda: ops.pack_weight_int8(case.b))


def _plain(case: Case) -> Route:
    return _ours(case, lambda: case.b.t().clone().t())


def _float(case: Case, dtype: torch.dtype) -> Route:
    zero = 0 if case.azp is None else case.azp
    x = ((case.a - zero) * case.scale_a).to(dtype)
    bias = case.operands.get("bias")
    bias = None if bias is None else bias.flatten().to(dtype)

    def run(weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    return Route(lambda: (case.b * case.scale_b).t().to(dtype).contiguous(), run, dtype.itemsize)


def _int_mm(case: Case, transform: Callable[..., Any] = lambda function: function) -> Route:
    operands = case.operands
    shift = operands.get("azp_with_adj")
    if "azp" in operands:
        shift = operands["azp"] * operands["azp_adj"]  # made beforehand: the peer's advantage

    def linear(a: Tensor, b: Tensor) -> Tensor:
        t = torch._int_mm(a, b)
        d = case.scale_a * (case.scale_b * (t if shift is None else t - shift))
        return (d + operands["bias"] if "bias" in operands else d).to(case.out_dtype)

    linear = transform(linear)
    return Route(lambda: case.b.t().clone().t(), lambda b: linear(case.a, b), 1)


def _int_mm_compiled(case: Case) -> Route:
    torch._dynamo.reset()
    return _int_mm(case, torch.compile)


def _onednn(case: Case) -> Route:
    if "azp" in case.operands:
        raise Unsupported("one scale and zero point per tensor only")
    x = (case.a.int() + 128).to(torch.uint8)
    scale, zero = float(case.scale_a), 128 + int(case.azp or 0)
    weight_scales = case.scale_b.flatten()
    weight_zeros = torch.zeros_like(weight_scales, dtype=torch.int32)
    bias = case.operands.get("bias")
    bias = None if bias is None else bias.flatten().float()

    def run(weight: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            *(x, scale, zero),
            *(weight, weight_scales, weight_zeros, bias),
            *(1.0, 0, case.out_dtype),
            *("none", [], ""),
        )

    def prepack() -> Tensor:
        return torch.ops.onednn.qlinear_prepack(case.b.t(), list(x.shape))

    return Route(prepack, run, 1)


CONTENDERS = (
    Contender("packed", "scaled_mm with pack_weight_int8", _packed, ours=True),
    Contender("plain", "scaled_mm with the int8 weight", _plain, ours=True),
    Contender(
        "float32 mm", "linear, float32", lambda case: _float(case, torch.float32), quantised=False
    ),
    Contender(
        "bf16 mm", "linear, bfloat16", lambda case: _float(case, torch.bfloat16), quantised=False
    ),
    Contender("_int_mm", "torch._int_mm + eager epilogue", _int_mm),
    Contender("_int_mm compiled", "the same under torch.compile", _int_mm_compiled),
    Contender("onednn qlinear", "onednn.qlinear_pointwise, u8 activations", _onednn),
)
