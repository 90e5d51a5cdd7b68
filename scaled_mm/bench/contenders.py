"""Every way to compute a case of `scaled-mm bench`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor

from ..ops.int8 import pack_weight_int8, scaled_mm
from .cases import Case


class Unsupported(Exception):
    """A contender has no form for a case; the message says why."""


@dataclass(frozen=True)
class Route:
    """A case made ready for one contender: `run(x, weight)` gives D from the activations as this
    contender takes them and from what `weight()` made."""

    x: Tensor
    weight: Callable[[], Any]
    run: Callable[[Tensor, Any], Tensor]
    weight_bytes: float  # of one element
    rotate_outputs: bool = False  # where they are large: each call writes to memory, not to a cache


@dataclass(frozen=True)
class Contender:
    name: str
    what: str
    prepare: Callable[[Any], Any]  # a case of its bench made ready: of products, a Route
    devices: tuple[str, ...] = ("cpu", "cuda")
    ours: bool = False
    unjudged: str = ""  # the verdict on an output that is no int8 product with its epilogue


def humming_layer(
    weight: Tensor, values: dict[str, Any], dtype: torch.dtype, experts: int | None = None
) -> Any:
    """Of Humming's, for int8 activations, whose weight [N, K] or [E, N, K] it rounds itself."""
    from humming.layer import HummingLayer

    sizes = {"shape_n": weight.shape[-2], "shape_k": weight.shape[-1]}
    sizes |= {} if experts is None else {"num_experts": experts}
    layer = HummingLayer(
        **sizes, weight_config=values, input_config={"dtype": "int8"}, torch_dtype=dtype
    ).to(weight.device)
    layer.load_from_unquantized(weight)
    layer.transform()
    return layer


def plain_weight(case: Case) -> Callable[[], Tensor]:
    return lambda: case.b.t().clone().t()


def bias_of(case: Case, dtype: torch.dtype) -> Tensor | None:
    bias = case.operands.get("bias")
    return None if bias is None else bias.flatten().to(dtype)


def floats_of(case: Case) -> Tensor:
    """The activations that the int8 ones stand for, float32 [M, K]."""
    zero = 0 if case.azp is None else case.azp
    return (case.a - zero) * case.scale_a


def _ours(case: Case, weight: Callable[[], Any]) -> Route:
    given: dict[str, Any] = {**case.operands, "out_dtype": case.out_dtype}

    def run(a: Tensor, b: Any) -> Tensor:
        return scaled_mm(a, b, case.scale_a, case.scale_b, **given)

    return Route(case.a, weight, run, 1)


def _packed(case: Case) -> Route:
    return _ours(case, lambda: pack_weight_int8(case.b))


def _plain(case: Case) -> Route:
    return _ours(case, plain_weight(case))


def _float(dtype: torch.dtype, case: Case) -> Route:
    bias = bias_of(case, dtype)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    def weight() -> Tensor:
        return (case.b * case.scale_b).t().to(dtype).contiguous()

    return Route(floats_of(case).to(dtype), weight, run, dtype.itemsize)


def to_float8(x: Tensor) -> tuple[Tensor, Tensor]:
    """x as e4m3 with a scale per row, float32 [..., 1]."""
    scale = (x.abs().amax(-1, keepdim=True).float() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale


def _float8(case: Case) -> Route:
    if case.out_dtype != torch.bfloat16:
        raise Unsupported("bfloat16 output only")
    x, scale_a = to_float8(floats_of(case))
    weight, scale_b = to_float8((case.b * case.scale_b).t())
    bias = bias_of(case, torch.bfloat16)

    def run(x: Tensor, b: Tensor) -> Tensor:
        return torch._scaled_mm(
            x,
            b,
            scale_a=scale_a,
            scale_b=scale_b.t(),
            bias=bias,
            out_dtype=torch.bfloat16,
            use_fast_accum=True,
        )

    return Route(x, lambda: weight.clone().t(), run, 1)


def _accept_int_mm(case: Case) -> None:
    if case.a.is_cuda and case.a.shape[0] <= 16:
        raise Unsupported("M > 16 only")


def _int_mm_linear(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
) -> Tensor:
    t = torch._int_mm(a, b)
    if azp is not None:
        assert azp_adj is not None
        t = t - azp * azp_adj
    if azp_with_adj is not None:
        t = t - azp_with_adj
    d = scale_a * (scale_b * t)
    return (d if bias is None else d + bias).to(out_dtype)


def _int_mm_route(case: Case, linear: Callable[..., Tensor], operands: dict[str, Tensor]) -> Route:
    _accept_int_mm(case)

    def run(a: Tensor, b: Tensor) -> Tensor:
        return linear(a, b, case.scale_a, case.scale_b, case.out_dtype, **operands)

    return Route(case.a, plain_weight(case), run, 1)


def _int_mm(case: Case) -> Route:
    operands = dict(case.operands)
    if "azp" in operands:  # multiplied beforehand: the peer's advantage
        operands["azp_with_adj"] = operands.pop("azp") * operands.pop("azp_adj")
    return _int_mm_route(case, _int_mm_linear, operands)


@lru_cache(maxsize=1)
def _compiled(what: Sequence[Any]) -> Callable[..., Tensor]:
    """`_int_mm_linear`, compiled afresh whenever `what` it is compiled for changes."""
    torch._dynamo.reset()
    return torch.compile(_int_mm_linear)


def _int_mm_compiled(case: Case) -> Route:
    m, n, k = case.mnk
    _accept_int_mm(case)
    # On a GPU one weight's function serves every M, as it would in a model.
    what = (None if case.a.is_cuda else m, k, n, *case.operands, case.out_dtype)
    return _int_mm_route(case, _compiled(what), case.operands)


def _int_mm_sums(case: Case) -> Route:
    _accept_int_mm(case)
    return Route(case.a, plain_weight(case), torch._int_mm, 1)


def _triton(case: Case) -> Route:
    from . import triton_int8

    def run(a: Tensor, b: Tensor) -> Tensor:
        return triton_int8.scaled_mm(
            a, b, case.scale_a, case.scale_b, out_dtype=case.out_dtype, **case.operands
        )

    return Route(case.a, plain_weight(case), run, 1)


def _onednn(case: Case) -> Route:
    if "azp" in case.operands:
        raise Unsupported("one scale and zero point per tensor only")
    x = (case.a.int() + 128).to(torch.uint8)
    scale, zero = float(case.scale_a), 128 + int(case.azp or 0)
    weight_scales = case.scale_b.flatten()
    weight_zeros = torch.zeros_like(weight_scales, dtype=torch.int32)
    bias = bias_of(case, torch.float32)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return torch.ops.onednn.qlinear_pointwise(
            *(x, scale, zero),
            *(weight, weight_scales, weight_zeros, bias),
            *(1.0, 0, case.out_dtype),
            *("none", [], ""),
        )

    def prepack() -> Tensor:
        return torch.ops.onednn.qlinear_prepack(case.b.t(), list(x.shape))

    return Route(x, prepack, run, 1)


CPU, GPU = ("cpu",), ("cuda",)
CONTENDERS = (
    Contender("packed", "scaled_mm with pack_weight_int8", _packed, ours=True),
    Contender("plain", "scaled_mm with the int8 weight", _plain, ours=True),
    Contender(
        "float32 mm", "linear, float32", partial(_float, torch.float32), CPU, unjudged="float"
    ),
    Contender("bf16 mm", "linear, bfloat16", partial(_float, torch.bfloat16), unjudged="float"),
    Contender(
        "fp8 rowwise",
        "torch._scaled_mm, e4m3, a scale per row and column",
        _float8,
        GPU,
        unjudged="float",
    ),
    Contender("_int_mm", "torch._int_mm + eager epilogue", _int_mm, CPU),
    Contender("_int_mm sums", "torch._int_mm, no epilogue", _int_mm_sums, GPU, unjudged="sums"),
    Contender("_int_mm compiled", "torch._int_mm + epilogue under torch.compile", _int_mm_compiled),
    Contender("triton", "Triton kernel with a fused epilogue, autotuned", _triton, GPU),
    Contender("onednn qlinear", "onednn.qlinear_pointwise, u8 activations", _onednn, CPU),
)
"""What takes part, in the order of the tables."""
