"""`scaled_mm`, `int8_mm`, `pack_weight_int8`: the products.

The checks and the kernels are behind `torch.ops.scaled_mm.*` (csrc/problem.cpp); what stands here
is the public signature, the packed weight, and the shape-only kernels that `torch.compile` and
`torch.export` run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

_scaled_mm = torch.ops.scaled_mm.scaled_mm.default
_int8_mm = torch.ops.scaled_mm.int8_mm.default
_pack_weight_int8 = torch.ops.scaled_mm.pack_weight_int8.default


@dataclass(frozen=True)
class PackedWeight:
    """A weight B [K, N] laid out for the kernels by `pack_weight_int8`; pass it wherever `b` goes.

    Opaque, and particular to this version of the library and to the device: keep the plain int8
    weight in checkpoints and pack it again after loading.

    Attributes:
        data: uint8 [bytes], the buffer.
        k: rows of B.
        n: columns of B.
    """

    data: Tensor
    k: int
    n: int

    @property
    def shape(self) -> tuple[int, int]:
        """(K, N), the shape of the weight that was packed."""
        return (self.k, self.n)


torch.export.register_dataclass(PackedWeight, serialized_type_name="scaled_mm.PackedWeight")


def weight_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """What the ops take for a weight: its tensor, and its shape when that is a packed buffer."""
    return (b.data, {"b_shape": b.shape}) if isinstance(b, PackedWeight) else (b, {})


def accept(**operands: object) -> None:
    """Refuses what only Python can see: an operand that is no tensor, or that wants a gradient
    (these are inference ops). Everything else is asked in csrc/problem.cpp."""
    grad = torch.is_grad_enabled()
    for name, operand in operands.items():
        if not isinstance(operand, Tensor):
            raise TypeError(f"{name} must be a Tensor, got {type(operand).__name__}")
        if grad and operand.requires_grad:
            raise ValueError(
                f"{name} must not require grad (use torch.no_grad() or .detach()), "
                "got requires_grad=True"
            )


def typed(error: RuntimeError) -> RuntimeError:
    """The error that an op raised; a torch.OutOfMemoryError when it tells that (the stable ABI has
    no exception for it)."""
    text = str(error)
    return torch.OutOfMemoryError(text) if text.startswith("could not allocate") else error


def scaled_mm(
    a: Tensor,
    b: Tensor | PackedWeight,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
) -> Tensor:
    """Int8 matrix product with the dequantisation fused into its epilogue.

        D = scale_a * scale_b * (A B - azp * 1 B) + bias

    The product is exact, the rest is float32 in a fixed order (docs/numerics.md), so the bits of D
    do not depend on tiles, threads, instruction set, device, or how M is cut. The operands given
    choose the epilogue: ScaledEpilogue; with bias ScaledEpilogueBias; with azp_with_adj
    ScaledEpilogueAzp; with azp and azp_adj ScaledEpilogueAzpPerToken, both with or without bias.

    Args:
        a: int8 [..., K], the activations; any strides and alignment. Fast: rows contiguous.
        b: int8 [K, N], the weight, any strides; or a `PackedWeight`, same bits, faster. Fast: the
            transpose of a contiguous [N, K] weight; other strides are packed at every call.
        scale_a: float32, one element, or one per token in shape [...] or [..., 1].
        scale_b: float32, one element, or one per channel in shape [N] or [1, N].
        bias: out_dtype or float32, [N] or [1, N].
        azp: int32, the activations' zero points, shaped like scale_a; needs azp_adj.
        azp_adj: int32 [N] or [1, N], the column sums of b (`scaled_mm.azp_adj`). Any other vector
            is legal too: the result then is a rank-1 update of the product.
        azp_with_adj: int32 [N] or [1, N], one per-tensor zero point times the column sums
            (`scaled_mm.azp_with_adj`); instead of azp and azp_adj.
        out_dtype: bfloat16, float16 or float32.

    Returns:
        D [..., N] of out_dtype.

    Raises:
        ValueError: an operand breaks a rule above, K > 131071 (an int32 sum could wrap), or an
            operand requires grad in grad mode. The message names argument, rule and value.
        TypeError: an operand is no tensor, or out_dtype no dtype.
        torch.OutOfMemoryError: there is no memory for D.

    Source: SmoothQuant (Xiao et al., 2023) for the setting, Jacob et al. (2018) for the zero-point
    algebra.
    """
    weight, packed = weight_arguments(b)
    options: dict[str, Any] = {}  # only what is not a default: each costs the dispatcher 0.4 us
    if bias is not None:
        options["bias"] = bias
    if azp is not None:
        options["azp"] = azp
    if azp_adj is not None:
        options["azp_adj"] = azp_adj
    if azp_with_adj is not None:
        options["azp_with_adj"] = azp_with_adj
    accept(a=a, b=weight, scale_a=scale_a, scale_b=scale_b, **options)
    if out_dtype is not torch.bfloat16:
        if not isinstance(out_dtype, torch.dtype):
            raise TypeError(f"out_dtype must be a torch.dtype, got {type(out_dtype).__name__}")
        options["out_dtype"] = out_dtype
    try:
        return _scaled_mm(a, weight, scale_a, scale_b, **options, **packed)
    except RuntimeError as error:
        raise typed(error) from None


def int8_mm(a: Tensor, b: Tensor | PackedWeight) -> Tensor:
    """Exact int8 matrix product, `D = A B` in int32, without an epilogue.

    Args:
        a: int8 [..., K], as for `scaled_mm`.
        b: int8 [K, N] or `PackedWeight`, as for `scaled_mm`.

    Returns:
        int32 [..., N].

    Raises:
        ValueError: a or b breaks a rule, or K > 131071.
        TypeError: a or b is no tensor.
    """
    weight, packed = weight_arguments(b)
    accept(a=a, b=weight)
    try:
        return _int8_mm(a, weight, **packed)
    except RuntimeError as error:
        raise typed(error) from None


def pack_weight_int8(b: Tensor) -> PackedWeight:
    """Lays a weight out the way the kernels read it best, once for many products.

    Args:
        b: int8 [K, N], any strides.

    Returns:
        A `PackedWeight`; products with it have the same bits as with b. On the CPU it takes
        K + 4 bytes per column, with K rounded up to 4 and N to 16; on CUDA it is the transposed
        weight [N, K], its rows padded to a multiple of 16 bytes (at least 16).

    Raises:
        ValueError: b is not an int8 matrix, or K > 131071.
    """
    accept(b=b)
    try:
        return PackedWeight(_pack_weight_int8(b), b.shape[0], b.shape[1])
    except RuntimeError as error:
        raise typed(error) from None


# --- shapes only ----------------------------------------------------------------------------------


def _product_shape(a: Tensor, b: Tensor, b_shape: Sequence[int] | None) -> list[int]:
    return [*a.shape[:-1], b_shape[1] if b_shape is not None else b.shape[1]]


@torch.library.register_fake("scaled_mm::scaled_mm")
def _(
    a: Tensor,
    b: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    azp_with_adj: Tensor | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    b_shape: Sequence[int] | None = None,
) -> Tensor:
    return a.new_empty(_product_shape(a, b, b_shape), dtype=out_dtype)


@torch.library.register_fake("scaled_mm::int8_mm")
def _(a: Tensor, b: Tensor, *, b_shape: Sequence[int] | None = None) -> Tensor:
    return a.new_empty(_product_shape(a, b, b_shape), dtype=torch.int32)


@torch.library.register_fake("scaled_mm::pack_weight_int8")
def _(b: Tensor) -> Tensor:
    k, n = b.shape
    if b.device.type == "cuda":  # csrc/cuda/weight.cu: N rows of K bytes, padded to 16
        size = n * torch.sym_max(16, (k + 15) // 16 * 16)
    else:  # csrc/cpu/packed.h: panels of 16 columns, groups of 4 rows
        size = (n + 15) // 16 * ((k + 3) // 4 + 1) * 64
    return b.new_empty([size], dtype=torch.uint8)


@torch.library.register_fake("scaled_mm::_widen")  # csrc/widen_problem.h: what it is for
def _(words: Tensor, *, bits: int, signed: bool, dtype: torch.dtype) -> Tensor:
    return words.new_empty([*words.shape, 32 // bits], dtype=dtype)
