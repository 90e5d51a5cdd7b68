"""vLLM's parameters of a linear layer as this library's ops take them. Nothing here imports vLLM.

int8, as the checkpoint's loaders fill them; a fused layer (q, k and v in one) has P partitions:

    weight             int8 [N, K]
    weight_scale       float32 [N, 1] per channel, [P] per tensor: one for each partition
    input_scale        float32, one element or one for each partition: static
    input_zero_point   integer, the same: static asymmetric

int4, and 8 bits with 16-bit activations: words run along K, P = 8 or 4 rows to a word, the first in
the lowest bits:

                       GPTQ, AWQ (converted)     compressed-tensors
    words              int32 [K/P, N]            int32 [N, K/P]
    scales             [K/G, N]                  [N, K/G]
    zero points        int32 [N/P, K/G]          int32 [N/P, K/G]

The words of zero points run along N. A symmetric layer has none: each is 8, or 128. The parameters
say in `input_dim` and `output_dim` which of their dimensions is which.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .. import _library
from ..lowbit.words import per_word
from ..ops.azp import azp_adj, azp_with_adj
from ..ops.int8 import pack_weight_int8, scaled_mm
from ..ops.mixed import mixed_mm
from ..ops.mixed_weight import MixedWeight
from ..ops.packed_weight import PackedWeight
from ..ops.quantize import quantize_int8

MEASURED = 90
"""10 * major + minor of the compute capability whose GPUs were measured: the kernels win there."""
_FAMILIES = {"int8": "int8", "lowbit": "weight-only"}


def why_not_here(family: str, platform: str, capability: int | None) -> str | None:
    """Why a family of ops is not offered on a platform; None: it is.

    Args:
        family: `int8` or `lowbit` (weights of 4 and 8 bits).
        platform: vLLM's name of it, such as "CPU" or "CUDA".
        capability: of a GPU, as 10 * major + minor.
    """
    if platform == "CPU":
        return None
    if platform != "CUDA":
        return f"needs a CPU or CUDA, got {platform}"
    if not _library.HAS_CUDA:
        return "needs the CUDA library of scaled_mm, which is not built or not for this torch"
    if capability != MEASURED:
        got = "none" if capability is None else f"{capability // 10}.{capability % 10}"
        return f"needs compute capability 9.0, where it was measured to win, got {got}"
    arch = _library.arch_of(capability)
    if not arch or not _library.cuda_kernels(arch, family):
        return f"needs {_FAMILIES[family]} kernels for compute capability 9.0, which are not built"
    return None


# ---- int8 ----------------------------------------------------------------------------------------


class Int8Weight(NamedTuple):
    """What an int8 product takes beside the activation."""

    b: Tensor | PackedWeight
    """int8 [K, N]; packed on the CPU."""
    scale: Tensor
    """float32 [N, 1] or [1, 1]."""
    input_scale: Tensor | None
    """float32 [1]: static."""
    zero_point: Tensor | None
    """int32 [1]: static asymmetric."""
    term: Tensor | None
    """int32 [1, N]: `azp_with_adj` when static, `azp_adj` when dynamic; None when symmetric."""


def int8_weight(
    weight: Tensor,
    weight_scale: Tensor,
    input_scale: Tensor | None = None,
    input_zero_point: Tensor | None = None,
    *,
    symmetric: bool,
    widths: list[int],
) -> Int8Weight:
    """The operands of `int8_linear`.

    Args:
        weight, weight_scale, input_scale, input_zero_point: as at the top of this file.
        symmetric: activations without zero points; then input_zero_point is not looked at.
        widths: output channels of each partition, N together.
    """
    b = weight.t()
    if weight_scale.numel() not in (1, len(weight)):
        each = torch.tensor(widths, device=weight_scale.device)
        weight_scale = weight_scale.reshape(-1).repeat_interleave(each)
    zero_point = None
    if input_scale is not None:
        input_scale, zero_point = _one_range(
            input_scale.float().reshape(-1),
            None if symmetric or input_zero_point is None else input_zero_point.reshape(-1).int(),
        )
    term = None
    if not symmetric:
        term = azp_adj(b) if zero_point is None else azp_with_adj(b, zero_point)
    packed = b if b.is_cuda else pack_weight_int8(b)
    return Int8Weight(packed, weight_scale.float().reshape(-1, 1), input_scale, zero_point, term)


def _one_range(scale: Tensor, zero_point: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Scale and zero point of a layer that may have one for each partition.

    Where all are the same they stay as they are. Else they become those of the range that holds
    all of theirs, 255 steps long, and the zero point is rounded half to even. (vLLM's own kernels
    do this for a single one too, and on CUDA cut off the fraction, which moves some zero points.)
    """
    if zero_point is None:
        return scale.max().reshape(1), None
    if bool((scale == scale[0]).all()) and bool((zero_point == zero_point[0]).all()):
        return scale[:1], zero_point[:1]
    step, zero = scale.double(), zero_point.double()
    low, high = (step * (-128 - zero)).min(), (step * (127 - zero)).max()
    joint = ((high - low) / 255).float()
    azp = (-128 - low / joint.double()).round().clamp(-128, 127)
    return joint.reshape(1), azp.to(torch.int32).reshape(1)


def int8_linear(x: Tensor, weight: Int8Weight, bias: Tensor | None = None) -> Tensor:
    """y = scale_a * scale * (q - azp) B + bias, of x's dtype; q, scale_a, azp = quantize_int8(x).

    Args:
        x: float [..., K]. Quantised by the weight's input_scale, else per token.
        weight: of `int8_weight`.
        bias: of x's dtype or float32 [N].

    Returns:
        y [..., N].
    """
    symmetric, dynamic = weight.term is None, weight.input_scale is None
    q, scale, azp = quantize_int8(
        x, scale=weight.input_scale, azp=weight.zero_point, symmetric=symmetric, per_token=dynamic
    )
    return scaled_mm(
        q,
        weight.b,
        scale,
        weight.scale.view(1, -1),
        bias=bias,
        azp=azp if dynamic else None,
        azp_adj=weight.term if dynamic else None,
        azp_with_adj=None if dynamic else weight.term,
        out_dtype=x.dtype,
    )


# ---- Weights of 4 and 8 bits ---------------------------------------------------------------------


class WeightOnlyShape(NamedTuple):
    """What vLLM says of a layer with 16-bit activations before its weight is loaded."""

    k: int
    """Input features, of this rank."""
    n: int
    """Output features, of this rank."""
    group: int
    """Rows that share a scale; -1: all."""
    type_name: str
    """vLLM's name of the weight's type."""
    zero_points: bool
    dtype: torch.dtype
    """Of the activations."""
    out_dtype: torch.dtype | None
    """None: that of the activations."""


def why_not_weight_only(shape: WeightOnlyShape, bits: int) -> str | None:
    """Which rule a layer breaks of `packed_weight` and its product; None: none.

    Args:
        bits: of the weight, 4 or 8.
    """
    group = shape.k if shape.group == -1 else shape.group
    wanted = f"uint{bits}" if shape.zero_points else f"uint{bits}b{1 << (bits - 1)}"
    values = per_word(bits)
    dtype = str(shape.dtype).removeprefix("torch.")
    rules = (
        (
            shape.type_name == wanted,
            f"weight_type must be {wanted} with zero_points={shape.zero_points}, "
            f"got {shape.type_name}",
        ),
        (
            shape.dtype in (torch.float16, torch.bfloat16),
            f"act_type must be float16 or bfloat16, got {dtype}",
        ),
        (
            shape.out_dtype in (None, shape.dtype),
            f"out_type must be act_type, {dtype}, got {shape.out_dtype}",
        ),
        (shape.n % values == 0, f"output features must be a multiple of {values}, got {shape.n}"),
        (shape.k % values == 0, f"input features must be a multiple of {values}, got {shape.k}"),
        (
            group > 0 and shape.k % group == 0,
            f"group_size must divide the {shape.k} input features of a rank, got {shape.group}",
        ),
    )
    return next((reason for holds, reason in rules if not holds), None)


def packed_weight(words: Any, scales: Any, zeros: Any = None, *, bits: int) -> MixedWeight:
    """The operand of `weight_only_linear`: W = (q - z) s; without zero points (q - 2^(bits-1)) s,
    q unsigned.

    Args:
        words, scales, zeros: vLLM's parameters, as at the top of this file.
        bits: of the weight, 4 or 8.
    """

    def by_output(x: Any) -> Tensor:
        """With its dimensions as compressed-tensors has them: N first, then K or its groups."""
        return x.data if x.output_dim == 0 else x.data.t()

    packed = by_output(words)
    return MixedWeight.from_compressed_tensors(
        packed,
        by_output(scales),
        None if zeros is None else by_output(zeros),
        bits=bits,
        k=packed.shape[1] * per_word(bits),
    )


def weight_only_linear(x: Tensor, weight: MixedWeight, bias: Tensor | None = None) -> Tensor:
    """y = x W + bias, of x's dtype, which is the scales'."""
    return mixed_mm(x, weight, bias=bias)
