"""What ops do with their arguments: the checks of all, and what a weight may be."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .packed_weight import PackedWeight, is_read_early


def weight_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """What the ops take for a weight: its tensor, and its shape when that is a packed buffer."""
    return (b.data, {"b_shape": [*b.shape]}) if isinstance(b, PackedWeight) else (b, {})


def factor_arguments(b: Tensor | PackedWeight) -> tuple[Tensor, dict[str, Any]]:
    """The same for products, which may be told more of a packed buffer."""
    if not isinstance(b, PackedWeight):
        return b, {}
    packed: dict[str, Any] = {"b_shape": [b.k, b.n]}
    if is_read_early(b):
        packed["b_settled"] = True
    return b.data, packed
