"""A weight in compressed-tensors' pack-quantized tensors, there and back. K input features, N
output features, groups of G input features, values of b = 4 or 8 bits, h = 2^(b-1).

    weight_packed       int32 [N, ceil(K b / 32)]: the values q + h (q where asymmetric) of
                        neighbours along K, the first in the lowest bits
    weight_scale        16-bit float [N, K/G]
    weight_zero_point   int32 [ceil(N b / 32), K/G], asymmetric: z of neighbours along N

The format speaks of q and z in -h..h-1 and stores both with h added; what is stored is what
`GroupedWeight` has. The last word of a row may be half empty.

int-quantized files have 4 bits too, one value to a byte and nothing added:

    weight              int8 [N, K]
    weight_scale        16-bit float [N, K/G]
    weight_zero_point   int8 [N, K/G], asymmetric

Source: the two formats of the compressed-tensors package, 0.20.
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


def to_bytes(tensors: dict[str, Tensor], k: int) -> dict[str, Tensor]:
    """int-quantized tensors of pack-quantized ones of 4 bits; others go through."""
    weight = signed(unpack_dense(tensors["weight_packed"], 4, k), 4)
    words = ("weight_packed", "weight_shape")
    made = {"weight": weight, **{name: x for name, x in tensors.items() if name not in words}}
    if (zeros := made.get("weight_zero_point")) is not None:
        unpacked = unpack_dense(zeros.t(), 4, len(weight))
        made["weight_zero_point"] = signed(unpacked, 4).t().contiguous()
    return made


def of_bytes(weight: Tensor, scales: Tensor, zeros: Tensor | None) -> GroupedWeight:
    """The weight of int-quantized tensors.

    Raises:
        ValueError: a value that 4 bits do not have.
    """
    for name, x in (("weight", weight), ("weight_zero_point", zeros)):
        if x is not None and bool((x.clamp(-8, 7) != x).any()):
            raise ValueError(f"{name} must be in -8..7, got {x.min()} to {x.max()}")
    q = weight.t().contiguous()
    scales = scales.t().contiguous()
    if zeros is None:
        return GroupedWeight(q, scales, None)
    return GroupedWeight(unsigned(q, 4), scales, unsigned(zeros.t().contiguous(), 4))


def stored_sizes(
    n: int,
    k: int,
    bits: int,
    group: int,
    symmetric: bool,
    dtype: torch.dtype,
) -> dict[str, tuple[torch.dtype, tuple[int, ...]]]:
    """Dtype and shape of what `stored` makes, by name."""
    per_word, groups = 32 // bits, k // group if group else 0
    sizes: dict[str, tuple[torch.dtype, tuple[int, ...]]] = {
        "weight_packed": (torch.int32, (n, -(-k // per_word))),
        "weight_scale": (dtype, (n, groups)),
    }
    if not symmetric:
        sizes["weight_zero_point"] = (torch.int32, (-(-n // per_word), groups))
    return sizes


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
