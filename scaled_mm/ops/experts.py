"""`grouped_mm`, `moe_sort`, `moe_combine`: mixtures of experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .._arguments import accept, accepted_settings, called, must_be_size
from .packed_weight import PackedWeight, weight_arguments
from .shapes import must_have_shape, must_share_device, out_columns, shape_text, sizes_text

_grouped_mm = torch.ops.scaled_mm.grouped_mm.default
_moe_combine = torch.ops.scaled_mm.moe_combine.default
_moe_sort = torch.ops.scaled_mm._moe_sort.default


def grouped_mm(
    a: Tensor,
    b: Tensor | PackedWeight,
    offsets: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    bias: Tensor | None = None,
    azp: Tensor | None = None,
    azp_adj: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype = torch.bfloat16,
    out_scale: Tensor | None = None,
    out_azp: Tensor | None = None,
    rows: Tensor | None = None,
) -> Tensor:
    """`scaled_mm` of several experts, each by its own rows.

        D[i] = scaled_mm(a[rows[i]], b[e], ...),   offsets[e - 1] <= i < offsets[e]

    with the bits of `scaled_mm`. Rows from offsets[-1] on are 0. Nothing waits for the device: on
    CUDA values of offsets and rows are not refused, and those that name nothing stand for the
    nearest that do.

    Args:
        a: int8 [T, K], any strides.
        b: int8 [E, K, N], any strides; or a packed stack, `pack_weight_int8` of it: same bits,
            faster. Fast: `weight.mT` of a weight [E, N, K].
        offsets: int32 [E], where the rows of each expert end, as `torch._grouped_mm` and `moe_sort`
            have them.
        scale_a: float32, one element, or one for each row of a in shape [T] or [T, 1].
        scale_b: float32 [E, N].
        bias: [E, N] of a dtype that `scaled_mm` takes.
        azp: int32, the zero points of a, shaped like scale_a; needs azp_adj.
        azp_adj: int32 [E, N], the column sums of b.
        residual: [T', N], as for `scaled_mm`.
        activation: as for `scaled_mm`.
        out_dtype: as for `scaled_mm`.
        out_scale: float32, one element, or [T'] or [T', 1].
        out_azp: int32, shaped like out_scale.
        rows: int32 [T'], the row of a, scale_a and azp that each row of D is of; None: T' = T, and
            each is its own.

    Returns:
        D [T', N] of out_dtype; [T', N/2] with a gated activation.

    Raises:
        ValueError: an operand breaks a rule above or of `scaled_mm`; on the CPU, offsets fall or
            lie beyond T', or rows name no row of a.
        TypeError: an operand is no tensor, or out_dtype no dtype.
    """
    settings = accepted_settings(activation, out_dtype)
    weight, packed = weight_arguments(b)
    operands = {"a": a, "b": weight, "offsets": offsets, "scale_a": scale_a, "scale_b": scale_b}
    options = {"bias": bias, "azp": azp, "azp_adj": azp_adj, "residual": residual, "rows": rows}
    options |= {"out_scale": out_scale, "out_azp": out_azp}
    return called(_grouped_mm, tuple(operands.values()), operands, options, {**settings, **packed})


class SortedTokens(NamedTuple):
    """What `moe_sort` gives."""

    rows: Tensor
    """int32 [T * k]: of each sorted row the token."""
    offsets: Tensor
    """int32 [E]: where the rows of each expert end."""
    places: Tensor
    """int32 [T, k]: the sorted row of each token's j-th expert."""


def moe_sort(top_k_index: Tensor, num_experts: int) -> SortedTokens:
    """Tokens sorted by their experts, those of one expert in their own order. Nothing waits for the
    device.

    Args:
        top_k_index: int32 or int64 [T, k], the experts of each token. A number that names no expert
            is sorted behind all that do.
        num_experts: E.

    Raises:
        ValueError: top_k_index is no such matrix, or num_experts no size.
        TypeError: top_k_index is no tensor, or num_experts no int.
    """
    accept({"top_k_index": top_k_index})
    must_be_size("num_experts", num_experts)
    if top_k_index.dtype not in (torch.int32, torch.int64):
        raise ValueError(f"top_k_index must be int32 or int64, got {str(top_k_index.dtype)[6:]}")
    if top_k_index.dim() != 2:
        raise ValueError(f"top_k_index must be a matrix [T, k], got {shape_text(top_k_index)}")
    if top_k_index.is_cuda:  # one kernel, where torch's ops are a dozen
        return SortedTokens(*_moe_sort(top_k_index.contiguous(), num_experts))
    flat = top_k_index.flatten()
    flat = torch.where((flat >= 0) & (flat < num_experts), flat, num_experts)
    expert, order = flat.sort(stable=True)
    experts = torch.arange(num_experts, dtype=flat.dtype, device=flat.device)
    offsets = torch.searchsorted(expert, experts, right=True, out_int32=True)
    rows = order // torch.sym_max(top_k_index.shape[1], 1)
    places = order.argsort().int().view(top_k_index.shape)
    return SortedTokens(rows.int(), offsets, places)


def moe_combine(
    y: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """The sum of what experts made of each token.

        D[t] = sum over j of weights[t, j] * y[places[t, j]] (+ residual[t])

    Each product is rounded to float32, they are added in float32 in the order of j, then the
    residual, and the sum is rounded to out_dtype once: the same bits on every run.

    Args:
        y: float16, bfloat16 or float32 [R, N], sorted.
        weights: [T, k] of such a dtype.
        places: int32 [T, k], those of `moe_sort`: rows of y, which only the CPU checks.
        residual: [T, N] of such a dtype.
        out_dtype: of D; None: y's.

    Returns:
        D [T, N].

    Raises:
        ValueError: an operand breaks a rule above.
        TypeError: an operand is no tensor, or out_dtype no dtype.
    """
    if out_dtype is not None and not isinstance(out_dtype, torch.dtype):
        raise TypeError(f"out_dtype must be a torch.dtype, got {type(out_dtype).__name__}")
    operands = {"y": y, "weights": weights, "places": places}
    settings = {"out_dtype": out_dtype}
    return called(_moe_combine, (y, weights, places), operands, {"residual": residual}, settings)


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::grouped_mm")
def _(
    a: Tensor,
    b: Tensor,
    offsets: Tensor,
    scale_a: Tensor,
    scale_b: Tensor,
    *,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    rows: Tensor | None = None,
    b_shape: Sequence[int] | None = None,
    **others: Any,
) -> Tensor:
    must_share_device("a", a, b=b, offsets=offsets, scale_a=scale_a, scale_b=scale_b, rows=rows)
    must_share_device("a", a, **others)
    must_have_shape("a", a, a.dim() == 2, "be a matrix [T, K]")
    if b_shape is None:
        must_have_shape("b", b, b.dim() == 3, "be a stack of matrices [E, K, N]")
    elif len(b_shape) != 3:
        raise ValueError(f"b_shape must be (E, K, N), got {sizes_text(b_shape)}")
    _, k, n = b.shape if b_shape is None else b_shape
    must_have_shape("a", a, a.shape[1] == k, f"have K={k} columns, the rows of b")
    if rows is not None:
        must_have_shape("rows", rows, rows.dim() == 1, "be a vector")
    count = (a if rows is None else rows).shape[0]
    n = out_columns("b", n, activation)
    return a.new_empty([count, n], dtype=out_dtype or torch.bfloat16)


@torch.library.register_fake("scaled_mm::moe_combine")
def _(
    y: Tensor,
    weights: Tensor,
    places: Tensor,
    *,
    residual: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    must_share_device("y", y, weights=weights, places=places, residual=residual)
    must_have_shape("y", y, y.dim() == 2, "be a matrix [R, N]")
    must_have_shape("weights", weights, weights.dim() == 2, "be a matrix [T, k]")
    rule = f"have the shape of weights, {shape_text(weights)}"
    must_have_shape("places", places, places.shape == weights.shape, rule)
    return y.new_empty([weights.shape[0], y.shape[1]], dtype=out_dtype or y.dtype)


@torch.library.register_fake("scaled_mm::_moe_sort")
def _(top_k_index: Tensor, num_experts: int) -> tuple[Tensor, Tensor, Tensor]:
    sizes = ([top_k_index.numel()], [num_experts], top_k_index.shape)
    rows, offsets, places = (top_k_index.new_empty(size, dtype=torch.int32) for size in sizes)
    return rows, offsets, places
