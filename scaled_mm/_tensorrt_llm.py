"""TensorRT-LLM's weight-only names on this library's ops; `scaled_mm.compat` has them in public.

A weight is first prepared, once (`symmetric_quantize_last_axis_of_batched_matrix`, or
`preprocess_weights_for_mixed_gemm` of values that another quantiser found), and then multiplied by.
`mixed_weight` makes a `scaled_mm.MixedWeight` of a prepared weight, which the products take in its
place: then nothing is unpacked at a call.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import layouts
from ._arguments import accept, accept_dense, must_be_bool
from .ops.mixed import mixed_mm
from .ops.mixed_weight import MixedWeight


def preprocess_weights_for_mixed_gemm(
    tensor: Tensor,
    quant_mode: torch.dtype,
    act_dtype: torch.dtype,
    sm_: int = -1,
    do_weight_interleave: bool = True,
) -> Tensor:
    """TensorRT-LLM's `preprocess_weights_for_mixed_gemm`: a weight as its mixed GEMM reads it.

    Args:
        tensor: int8 [K, N], or [experts, K, N]; with quint4x2 [..., K, N/2], two channels to a
            byte, the first in the low nibble.
        quant_mode: int8, or quint4x2 for 4 bits.
        act_dtype: float16, bfloat16 or float8_e4m3fn.
        sm_: the compute capability, 80 for 8.0; -1 for that of the current GPU.
        do_weight_interleave: False: the transposed weight only.

    Returns:
        int8 of tensor's shape. docs/layouts.md draws it; `scaled_mm.layouts` has each step, and the
        inverse.

    Differs from TensorRT-LLM's: 8 bits with fp8 activations are refused by name; the rules on K and
    N are the same.
    """
    accept({"tensor": tensor})
    bits = _bits_of(quant_mode)
    if not isinstance(act_dtype, torch.dtype):
        raise TypeError(f"act_dtype must be a torch.dtype, got {type(act_dtype).__name__}")
    q = tensor if bits == 8 else layouts.unpack_int4(tensor)
    layout = layouts.layout_of(
        _sm_of(sm_),
        bits=bits,
        activation_bits=8 * act_dtype.itemsize,
        interleave=do_weight_interleave,
        experts=tensor.ndim == 3,
    )
    return layouts.preprocess_weights_for_mixed_gemm(q, layout)


def symmetric_quantize_last_axis_of_batched_matrix(
    weight: Tensor, quant_mode: torch.dtype, sm_: int = -1
) -> tuple[Tensor, Tensor]:
    """`torch.ops.trtllm.symmetric_quantize_last_axis_of_batched_matrix`: quantised and laid out.

    Args:
        weight: float16, bfloat16 or float32 [K, N] or [experts, K, N].
        quant_mode: int8, or quint4x2 for 4 bits.
        sm_: as for `preprocess_weights_for_mixed_gemm`; the peer always takes the current GPU's.

    Returns:
        The prepared weight, int8 [..., K, N] or [..., K, N/2], and the scales [..., N] of weight's
        dtype: `scaled_mm.layouts.quantize_symmetric`.

    Differs from TensorRT-LLM's: a channel of zeros has values 0 (there 0 / 0 decides), and what is
    not finite is refused.
    """
    accept({"weight": weight})
    bits = _bits_of(quant_mode)
    q, scale = layouts.quantize_symmetric(weight, bits=bits)
    layout = layouts.layout_of(_sm_of(sm_), bits=bits, experts=weight.ndim == 3)
    return layouts.preprocess_weights_for_mixed_gemm(q, layout), scale


def mixed_weight(
    weight: Tensor,
    weight_dtype: torch.dtype,
    scales: Tensor,
    zeros: Tensor | None = None,
    sm_: int = -1,
    do_weight_interleave: bool = True,
) -> MixedWeight:
    """A weight that was prepared for the engines' mixed GEMM, as `scaled_mm.mixed_mm` takes it.

        W[k, n] = q[k, n] * scales[g, n] (+ zeros[g, n]),    g = k // group_size

    Args:
        weight: int8 [K, N], or [K, N/2] with quint4x2: what `preprocess_weights_for_mixed_gemm`
            gives for 16-bit activations.
        weight_dtype: int8, or quint4x2 for 4 bits.
        scales: float16 or bfloat16, [N] (a scale for each channel) or [K/G, N].
        zeros: of the scales' dtype and shape: the engines' zero points, which are multiplied by
            the scale beforehand (scale * -zero_point) and added.
        sm_: what the weight was prepared for, 80 for 8.0; -1: the current GPU. The bytes do not
            tell, and a wrong one gives a wrong weight.
        do_weight_interleave: as it was prepared.

    Raises:
        ValueError: shape or dtype is not one that the engines take.
    """
    accept_dense({"weight": weight, "scales": scales}, {"zeros": zeros})
    if weight.ndim != 2:
        raise ValueError(f"weight must be of one layer, [K, N], got shape {tuple(weight.shape)}")
    bits = _bits_of(weight_dtype)
    layout = layouts.layout_of(_sm_of(sm_), bits=bits, interleave=do_weight_interleave)
    return MixedWeight.from_tensorrt_llm(weight, scales, zeros, layout=layout)


def weight_only_quant_gemm(
    activation: Tensor,
    weight: Tensor | MixedWeight,
    weight_dtype: torch.dtype,
    weight_scale: Tensor,
    output_dtype: torch.dtype,
    to_userbuffers: bool = False,
    sm_: int = -1,
) -> Tensor:
    """`torch.ops.trtllm.weight_only_quant_gemm`: a product with a scale for each channel.

    Args:
        activation: float16 or bfloat16 [..., K].
        weight: a prepared weight, as for `mixed_weight`; or what that made of it, which is faster:
            a plain one is unpacked at every call.
        weight_dtype: int8, or quint4x2 for 4 bits. It and weight_scale are in a `MixedWeight`
            already, and passed over beside one.
        weight_scale: activation's dtype [N].
        output_dtype: activation's.
        to_userbuffers: False.
        sm_: as for `mixed_weight`.

    Returns:
        D [..., N] of output_dtype.

    Differs from TensorRT-LLM's: no GPU is needed; output_dtype must be the activation's.
    """
    _plain_output(activation, output_dtype)
    if to_userbuffers:
        raise ValueError("to_userbuffers must be False, got True")
    if not isinstance(weight, MixedWeight):
        weight = mixed_weight(weight, weight_dtype, weight_scale, sm_=sm_)
    return mixed_mm(activation, weight)


def finegrained_mixed_dtype_gemm(
    input: Tensor,
    weight: Tensor | MixedWeight,
    scales: Tensor,
    group_size: int,
    has_zero_point: bool,
    output_dtype: torch.dtype,
    alpha: float | None = None,
    bias: Tensor | None = None,
    zeros: Tensor | None = None,
    sm_: int = -1,
) -> Tensor:
    """`torch.ops.trtllm.finegrained_mixed_dtype_gemm`: a product with an int4 weight in groups.

    Args:
        input: float16 or bfloat16 [..., K].
        weight: a prepared weight of 4 bits, as for `mixed_weight`; or what that made of it, which
            is faster. Then scales, zeros and group_size are in it already, and passed over.
        scales: input's dtype [K/group_size, N].
        group_size: rows that share a scale.
        has_zero_point: whether zeros are given.
        output_dtype: input's.
        alpha: None or 1: it is for fp8 activations.
        bias: input's dtype or float32 [N].
        zeros: as for `mixed_weight`.
        sm_: as for `mixed_weight`.

    Returns:
        D [..., N] of output_dtype.

    Differs from TensorRT-LLM's: no GPU is needed; fp8 activations are refused; any group_size that
    divides K is taken.
    """
    _plain_output(input, output_dtype)
    if alpha not in (None, 1):
        raise ValueError(f"alpha must be None or 1 with 16-bit activations, got {alpha}")
    if not isinstance(weight, MixedWeight):
        must_be_bool("has_zero_point", has_zero_point)
        if has_zero_point != (zeros is not None):
            got = "no zeros" if zeros is None else "zeros"
            raise ValueError(f"zeros must be given just with has_zero_point=True, got {got}")
        weight = mixed_weight(weight, torch.quint4x2, scales, zeros, sm_)
        if not isinstance(group_size, int) or weight.group != group_size:
            text = f"be K / rows of scales = {weight.group}"
            raise ValueError(f"group_size must {text}, got {group_size}")
    return mixed_mm(input, weight, bias=bias)


def _plain_output(activation: Tensor, output_dtype: torch.dtype) -> None:
    accept({"activation": activation})
    if output_dtype != activation.dtype:
        own, got = (str(dtype)[6:] for dtype in (activation.dtype, output_dtype))
        raise ValueError(f"output_dtype must be the activation's {own}, got {got}")


def _bits_of(quant_mode: torch.dtype) -> int:
    if not isinstance(quant_mode, torch.dtype):
        raise TypeError(f"quant_mode must be a torch.dtype, got {type(quant_mode).__name__}")
    bits = {torch.int8: 8, torch.quint4x2: 4}.get(quant_mode)
    if bits is None:
        raise ValueError(f"quant_mode must be int8 or quint4x2, got {str(quant_mode)[6:]}")
    return bits


def _sm_of(sm: int) -> int:
    """The compute capability that was given, or for -1 the current GPU's."""
    if not isinstance(sm, int):
        raise TypeError(f"sm_ must be an int, got {type(sm).__name__}")
    if sm > 0:
        return sm
    if not torch.cuda.is_available():
        raise ValueError("sm_ must be given where there is no GPU, got -1")
    major, minor = torch.cuda.get_device_capability()
    return 10 * major + minor
