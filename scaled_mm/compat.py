"""The names and signatures of other libraries' quantised products, on this library's ops.

    from vllm._custom_ops import cutlass_scaled_mm      ->  from scaled_mm.compat import ...
    from sgl_kernel import int8_scaled_mm               ->  from scaled_mm.compat import ...
    torch.ops.trtllm.weight_only_quant_gemm  ->  scaled_mm.compat.weight_only_quant_gemm

Arguments, their order, defaults and results are the peers'. Each docstring says where the values or
the accepted arguments differ. Common to all: where the peers assert, a `ValueError` or `TypeError`
names the argument (by its name in the library's own function), the rule and the value; operands
that require grad are refused; CPU tensors are taken too; and the int8 products have the bits of
`scaled_mm.reference`.

sgl-kernel's `awq_dequantize(qweight, scales, qzeros)` has the signature of
`scaled_mm.awq_dequantize` itself.

Signatures as of vLLM's `vllm/_custom_ops.py`, sgl-kernel's `sgl_kernel/gemm.py` and TensorRT-LLM's
`tensorrt_llm/quantization/functional.py` and `_torch/custom_ops/torch_custom_ops.py` in 2026.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ._arguments import accept
from ._tensorrt_llm import (
    finegrained_mixed_dtype_gemm,
    mixed_weight,
    preprocess_weights_for_mixed_gemm,
    symmetric_quantize_last_axis_of_batched_matrix,
    weight_only_quant_gemm,
)
from .ops import lowbit
from .ops.int8 import scaled_mm
from .ops.packed_weight import PackedWeight
from .ops.quantize import quantize_int8

__all__ = [
    "awq_dequantize",
    "awq_gemm",
    "cutlass_scaled_mm",
    "cutlass_scaled_mm_azp",
    "finegrained_mixed_dtype_gemm",
    "int8_scaled_mm",
    "mixed_weight",
    "preprocess_weights_for_mixed_gemm",
    "scaled_int8_quant",
    "symmetric_quantize_last_axis_of_batched_matrix",
    "weight_only_quant_gemm",
]


def cutlass_scaled_mm(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """vLLM's `cutlass_scaled_mm`, for int8: `D = scale_a * scale_b * (A B) + bias`.

    Args:
        a: int8 [..., K].
        b: int8 [K, N].
        scale_a: float32, one element, or one per token in any shape.
        scale_b: float32, one element, or one per channel in any shape.
        out_dtype: bfloat16, float16 or float32.
        bias: out_dtype or float32, N elements.

    Returns:
        D [..., N] of out_dtype.

    Differs from vLLM's: any K up to 131071, any N and any strides run (there K and N must be
    multiples of 16, or a Triton kernel takes over; B must be column-major); float32 is an output
    too, and a float32 bias is taken with any output; b may be a `scaled_mm.PackedWeight`. fp8
    operands and block scales are refused.
    """
    return _scaled_mm(a, b, scale_a, scale_b, out_dtype, bias)


def cutlass_scaled_mm_azp(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    azp_adj: Tensor,
    azp: Tensor | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """vLLM's `cutlass_scaled_mm_azp`: activations with zero points.

        without azp   D = scale_a * scale_b * (A B - azp_adj) + bias
        with azp      D = scale_a * scale_b * (A B - azp * azp_adj) + bias

    The name azp_adj has two meanings, as in vLLM: without azp it is the column sums of b *times*
    the zero point (`scaled_mm.azp_with_adj`), with azp the column sums alone (`scaled_mm.azp_adj`).
    `scaled_mm.scaled_mm` has a name for each, and refuses both at once.

    Args:
        a, b, scale_a, scale_b, out_dtype, bias: as for `cutlass_scaled_mm`.
        azp_adj: int32, N elements.
        azp: int32, one zero point per token. x stands for scale * (q - azp): the sign of vLLM's.

    Returns:
        D [..., N] of out_dtype.

    Differs from vLLM's as `cutlass_scaled_mm` does; and azp may have a single element for all
    tokens.
    """
    accept({"a": a, "scale_a": scale_a, "scale_b": scale_b, "azp_adj": azp_adj})
    if azp is None:
        return _scaled_mm(a, b, scale_a, scale_b, out_dtype, bias, azp_with_adj=_row(azp_adj))
    accept({"azp": azp})
    zero = {"azp": _column(azp), "azp_adj": _row(azp_adj)}
    return _scaled_mm(a, b, scale_a, scale_b, out_dtype, bias, **zero)


def scaled_int8_quant(
    input: Tensor, scale: Tensor | None = None, azp: Tensor | None = None, symmetric: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    """vLLM's `scaled_int8_quant`: static per tensor with a scale, else dynamic per token.

    Args:
        input: float32, bfloat16 or float16 [..., K].
        scale: float32, one element: static quantisation by it.
        azp: int32, one element: the static zero point; with scale and symmetric=False only.
        symmetric: without zero points.

    Returns:
        q int8 [..., K], scale and azp (None when symmetric). If dynamic, scale is float32
        [tokens, 1] and azp int32 [tokens, 1], whatever the number of dimensions of input; if
        static, they are those given.

    Differs from vLLM's, all of it said in `scaled_mm.quantize_int8`: x / scale is a true division
    where vLLM multiplies by a reciprocal (static symmetric apart), so some q are one level apart;
    q of a symmetric scheme is never -128; a dynamic asymmetric range always holds 0, so that azp is
    in [-128, 127] (a row from 1000 to 1001 has azp -255128 there); a row of zeros has a scale that
    is not 0; a row with NaN or infinity has scale NaN. Any strides are taken. azp without scale is
    refused (there it is ignored).
    """
    q, scale_out, azp_out = quantize_int8(input, scale=scale, azp=azp, symmetric=symmetric)
    if scale is not None:
        return q, scale_out, azp_out
    return q, _column(scale_out), None if azp_out is None else _column(azp_out)


def awq_dequantize(
    qweight: Tensor, scales: Tensor, zeros: Tensor, split_k_iters: int, thx: int, thy: int
) -> Tensor:
    """vLLM's `awq_dequantize`: W [K, N] of int4 words.

    Args:
        qweight, scales, zeros: as `qweight`, `scales`, `qzeros` of `scaled_mm.awq_dequantize`.
            Scales come before zero points.
        split_k_iters, thx, thy: ignored; they are launch parameters of vLLM's kernel.

    Differs from vLLM's: bfloat16 scales too, any K, and any N that is a multiple of 8 (vLLM's CUDA
    kernel wants float16, K a multiple of 8 and N of 64). The values are the same: each element is
    rounded once there too.
    """
    return lowbit.awq_dequantize(qweight, scales, zeros)


def awq_gemm(
    input: Tensor, qweight: Tensor, scales: Tensor, qzeros: Tensor, split_k_iters: int
) -> Tensor:
    """vLLM's `awq_gemm`: `input @ W` with int4 words.

    Args:
        input: float16 or bfloat16 [..., K], of the scales' dtype.
        qweight, scales, qzeros: as for `scaled_mm.awq_gemm`. Scales come before zero points; older
            releases of vLLM name the third argument qzeros and the fourth scales, but are called
            in this order too.
        split_k_iters: ignored. vLLM cuts K into so many parts and rounds each to float16 before it
            adds them; here all of K is summed in float32 (docs/lowbit.md has the bound).

    Returns:
        D [..., N] of input's dtype.

    Differs from vLLM's: bfloat16 too, any N that is a multiple of 8, any group size that divides K,
    any number of dimensions (vLLM's CUDA kernel wants float16 matrices, N a multiple of 64, and a
    group size that is a multiple of 32 and divides N).
    """
    return lowbit.awq_gemm(input, qweight, scales, qzeros)


def int8_scaled_mm(
    mat_a: Tensor,
    mat_b: Tensor | PackedWeight,
    scales_a: Tensor,
    scales_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None = None,
) -> Tensor:
    """sgl-kernel's `int8_scaled_mm`: `D = scales_a * scales_b * (A B) + bias`.

    Args:
        mat_a: int8 [..., K].
        mat_b: int8 [K, N].
        scales_a: float32, one per token, or one element.
        scales_b: float32, one per channel, or one element.
        out_dtype: bfloat16, float16 or float32.
        bias: out_dtype or float32, N elements.

    Returns:
        D [..., N] of out_dtype.

    Differs from sgl-kernel's: there mat_a is a row-major matrix, mat_b column-major, K a multiple
    of 16 and N of 8, both scales contiguous vectors of M and N elements, and float32 is neither an
    output nor a bias. Refusals name a, b, scale_a, scale_b.
    """
    return cutlass_scaled_mm(mat_a, mat_b, scales_a, scales_b, out_dtype, bias)


def _scaled_mm(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    out_dtype: torch.dtype,
    bias: Tensor | None,
    **more: Any,
) -> Tensor:
    """`scaled_mm` of [tokens, K], as the peers see a: their scales have an element for each token,
    whatever the dimensions of a."""
    accept({"a": a, "scale_a": scale_a, "scale_b": scale_b})
    if bias is not None:
        accept({"bias": bias})
        more["bias"] = _row(bias)
    rows = a.flatten(0, -2) if a.ndim > 2 else a.view(1, -1) if a.ndim == 1 else a
    d = scaled_mm(rows, b, _column(scale_a), _row(scale_b), out_dtype=out_dtype, **more)
    return d.view(*a.shape[:-1], b.shape[1])


def _column(x: Tensor) -> Tensor:
    return x.reshape(-1, 1)


def _row(x: Tensor) -> Tensor:
    return x.reshape(1, -1)
