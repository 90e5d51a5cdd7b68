"""`PackedWeight`: a weight laid out for the kernels, once."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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
