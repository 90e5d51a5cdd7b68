"""`AWQLinear`, a deprecated name."""

from __future__ import annotations

import warnings

import torch

from .weight_only_linear import WeightOnlyLinear


def AWQLinear(
    in_features: int,
    out_features: int,
    bias: bool = True,
    *,
    group_size: int = 128,
    dtype: torch.dtype = torch.float16,
    device: torch.device | str | None = None,
) -> WeightOnlyLinear:
    """Deprecated: a `WeightOnlyLinear` of 4 bits with integer zero points. `WeightOnlyLinear.
    from_awq` makes one of AWQ's tensors, whose names its state dict no longer has."""
    warnings.warn("AWQLinear is deprecated: use WeightOnlyLinear", FutureWarning, stacklevel=2)
    return WeightOnlyLinear(
        in_features,
        out_features,
        bias,
        bits=4,
        group_size=group_size,
        zero="integer",
        dtype=dtype,
        device=device,
    )
