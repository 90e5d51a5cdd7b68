"""`azp_adj` and `azp_with_adj`: the part of a zero point that depends on the weight alone."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .._arguments import called
from .packed_weight import PackedWeight, weight_arguments
from .shapes import must_share_device, weight_sizes

_azp_adj = torch.ops.scaled_mm.azp_adj.default
_azp_with_adj = torch.ops.scaled_mm.azp_with_adj.default


def azp_adj(b: Tensor | PackedWeight) -> Tensor:
    """Column sums of a weight, `1 B`: what a zero point is multiplied by in the epilogue.

        A (B) with A = scale_a * (Q - azp)  =>  scale_a * (Q B - azp * (1 B))

    Args:
        b: int8 [K, N] or `PackedWeight`.

    Returns:
        int32 [1, N], for `scaled_mm(..., azp=..., azp_adj=...)`.

    Raises:
        ValueError: b is not an int8 matrix, or K > 131071.
    """
    weight, packed = weight_arguments(b)
    return called(_azp_adj, (weight,), {"b": weight}, settings=packed)


def azp_with_adj(b: Tensor | PackedWeight, azp: Tensor) -> Tensor:
    """Column sums of a weight times one per-tensor zero point, `azp * 1 B`, modulo 2^32.

    Args:
        b: int8 [K, N] or `PackedWeight`.
        azp: int32, one element: the activations' static zero point.

    Returns:
        int32 [1, N], for `scaled_mm(..., azp_with_adj=...)`.

    Raises:
        ValueError: b is not an int8 matrix, K > 131071, or azp is not one int32.
    """
    weight, packed = weight_arguments(b)
    return called(_azp_with_adj, (weight, azp), {"b": weight, "azp": azp}, settings=packed)


# --- shapes only ----------------------------------------------------------------------------------


@torch.library.register_fake("scaled_mm::azp_adj")
def _(b: Tensor, *, b_shape: Sequence[int] | None = None) -> Tensor:
    return b.new_empty([1, weight_sizes(b, b_shape)[1]], dtype=torch.int32)


@torch.library.register_fake("scaled_mm::azp_with_adj")
def _(b: Tensor, azp: Tensor, *, b_shape: Sequence[int] | None = None) -> Tensor:
    must_share_device("b", b, azp=azp)
    return b.new_empty([1, weight_sizes(b, b_shape)[1]], dtype=torch.int32)
