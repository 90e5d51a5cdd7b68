"""A weight in compressed-tensors' pack-quantized tensors, there and back. K input features, N
output features, groups of G input features, values of b = 4 or 8 bits, h = 2^(b-1).

    weight_packed       int32 [N, ceil(K b / 32)]: the values q + h (q where asymmetric) of
                        neighbours along K, the first in the lowest bits
    weight_scale        16-bit float [N, K/G]
    weight_zero_point   int32 [ceil(N b / 32), K/G], asymmetric: z of neighbours along N

The format speaks of q and z in -h..h-1 and stores both with h added; what is stored is what
`GroupedWeight` has. The last word of a row may be half empty.

Source: the pack-quantized format of the compressed-tensors package, 0.20.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .grouped import GroupedWeight
from .words import must_be_words, pack_dense, signed, unpack_dense, unsigned


def stored(weight: GroupedWeight, bits: int) -> dict[str, Tensor]:
    """The tensors of a weight, by their names in the format."""
    q = unsigned(weight.q, bits) if weight.q.dtype == torch.int8 else weight.q
    made = {
        "weight_packed": pack_dense(q.t(), bits),
        "weight_scale": weight.scales.t().contiguous(),
    }
    if weight.zeros is not None:
        made["weight_zero_point"] = pack_dense(weight.zeros, bits).t().contiguous()
    return made


def stored_sizes(
    n: int, k: int, bits: int, group: int, symmetric: bool, dtype: torch.dtype
) -> list[tuple[str, torch.dtype, tuple[int, ...]]]:
    """Name, dtype and shape of what `stored` makes, and of the weight_shape beside it."""
    per_word, groups = 32 // bits, k // group if group else 0
    sizes = {
        "weight_packed": (torch.int32, (n, -(-k // per_word))),
        "weight_scale": (dtype, (n, groups)),
        "weight_zero_point": (torch.int32, (-(-n // per_word), groups)),
        "weight_shape": (torch.int64, (2,)),
    }
    if symmetric:
        del sizes["weight_zero_point"]
    return [(name, kind, shape) for name, (kind, shape) in sizes.items()]


def plain(
    weight_packed: Tensor,
    weight_scale: Tensor,
    weight_zero_point: Tensor | None,
    *,
    bits: int,
    k: int,
) -> GroupedWeight:
    """The weight of those tensors; q is int8 without zero points, uint8 with them.

    Raises:
        ValueError: words that are not int32 of two dimensions, or of another number than K and N
            have; weight_scale that is no matrix.
    """
    must_be_words(weight_packed=weight_packed)
    if not isinstance(k, int) or k < 0:
        raise ValueError(f"k must be the number of input features, got {k!r}")
    if weight_scale.dim() != 2:
        raise ValueError(f"weight_scale must be [N, K/G], got shape {tuple(weight_scale.shape)}")
    q = unpack_dense(weight_packed, bits, k, "weight_packed").t().contiguous()
    scales = weight_scale.t().contiguous()
    zeros = None
    if weight_zero_point is not None:
        must_be_words(weight_zero_point=weight_zero_point)
        words = weight_zero_point.t()
        zeros = unpack_dense(words, bits, q.shape[1], "weight_zero_point").contiguous()
    return GroupedWeight(signed(q, bits) if zeros is None else q, scales, zeros)
