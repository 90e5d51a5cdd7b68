"""Other libraries as contenders of `scaled-mm bench --peers`, where they can be imported.

Each is called as its own documentation has it, and its output is judged like any other's. One that
fails is told of by its reason and takes no further part.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor

from .cases import Case
from .contenders import (
    GPU,
    Contender,
    Route,
    Unsupported,
    bias_of,
    floats_of,
    humming_layer,
    plain_weight,
)


def _flat(case: Case, name: str) -> Tensor | None:
    given = case.operands.get(name)
    return None if given is None else given.flatten()


def _symmetric(case: Case) -> None:
    if case.azp is not None:
        raise Unsupported("no zero points")


def _vllm(case: Case) -> Route:
    from vllm import _custom_ops as ops

    kernel = ops.cutlass_scaled_mm
    given: dict[str, Any] = {
        "scale_a": case.scale_a,
        "scale_b": case.scale_b.view(1, -1),
        "out_dtype": case.out_dtype,
        "bias": bias_of(case, case.out_dtype),
    }
    if case.azp is not None:
        kernel = ops.cutlass_scaled_mm_azp
        term = _flat(case, "azp_with_adj")
        given["azp_adj"] = _flat(case, "azp_adj") if term is None else term
        given["azp"] = _flat(case, "azp")
    return Route(case.a, plain_weight(case), lambda a, b: kernel(a, b, **given), 1)


def _sgl(case: Case) -> Route:
    from sgl_kernel import int8_scaled_mm

    _symmetric(case)
    scales, bias = (case.scale_a, case.scale_b.view(-1, 1)), bias_of(case, case.out_dtype)

    def run(a: Tensor, b: Tensor) -> Tensor:
        return int8_scaled_mm(a, b, *scales, case.out_dtype, bias)

    return Route(case.a, plain_weight(case), run, 1)


def _torchao(case: Case) -> Route:
    from torchao.kernel import int_scaled_matmul

    _symmetric(case)
    if case.a.is_cuda and case.a.shape[0] <= 16:
        raise Unsupported("M > 16 only")
    scale_a, bias = case.scale_a.expand(len(case.a), 1), _flat(case, "bias")

    def run(a: Tensor, b: Tensor) -> Tensor:
        d = int_scaled_matmul(a, b, scale_a) * case.scale_b
        return (d if bias is None else d + bias).to(case.out_dtype)

    return Route(case.a, plain_weight(case), run, 1)


def _bitsandbytes(case: Case) -> Route:
    from bitsandbytes import functional

    _symmetric(case)
    rows = (127 * case.scale_a).expand(len(case.a), 1).flatten()
    columns, bias = (127 * case.scale_b).flatten(), bias_of(case, torch.float16)

    def run(a: Tensor, b: Tensor) -> Tensor:
        d = functional.int8_mm_dequant(
            functional.int8_linear_matmul(a, b), rows, columns, bias=bias
        )
        return d.to(case.out_dtype)

    return Route(case.a, lambda: case.b.t().contiguous(), run, 1)


def _floats(case: Case) -> Tensor:
    _symmetric(case)
    return floats_of(case).to(torch.bfloat16)


def _comfy(case: Case) -> Route:
    import comfy_kitchen

    scale, bias = case.scale_b.amax(), bias_of(case, case.out_dtype)

    def run(x: Tensor, weight: Tensor) -> Tensor:
        return comfy_kitchen.int8_linear(x, weight, scale, bias, case.out_dtype)

    return Route(_floats(case), lambda: case.b.t().contiguous(), run, 1)


def _humming(case: Case) -> Route:
    if case.operands:
        raise Unsupported("without bias")

    def weight() -> Any:
        dense = (case.b * case.scale_b).t().to(torch.bfloat16)
        return humming_layer(dense, {"dtype": "int8"}, torch.bfloat16)

    return Route(_floats(case), weight, lambda x, layer: layer(x), 1)


PEERS = {  # the module that has to be there -> the contender
    "vllm": Contender("vllm", "vllm's cutlass_scaled_mm", _vllm, GPU),
    "sgl_kernel": Contender("sgl-kernel", "sgl_kernel.int8_scaled_mm", _sgl, GPU),
    "torchao": Contender("torchao", "torchao's int_scaled_matmul, scales and bias", _torchao),
    "bitsandbytes": Contender(
        "bitsandbytes", "int8_linear_matmul and int8_mm_dequant, by float16", _bitsandbytes
    ),
    "comfy_kitchen": Contender(
        "comfy-kitchen",
        "int8_linear: with its quantiser, one scale for the weight",
        _comfy,
        GPU,
        unjudged="float",
    ),
    "humming": Contender(
        "humming", "HummingLayer: with its quantiser", _humming, GPU, unjudged="float"
    ),
}


def importable() -> list[Contender]:
    """Those whose packages are installed."""
    return [contender for module, contender in PEERS.items() if find_spec(module) is not None]
