"""The tensors of one int4 layer in compressed-tensors' pack-quantized format. K input features, N
output features, groups of G input features.

NAME.weight_packed      int32 [N, K/8]: q + 8 of eight neighbours along K, the first in the low bits
NAME.weight_scale       16-bit float [N, K/G]
NAME.weight_zero_point  int32 [N/8, K/G], asymmetric: z + 8 of eight neighbours along N
NAME.weight_shape       int [2]: N and K
NAME.weight_g_idx       int [K], with act-order: the group of each input feature
NAME.bias               float [N], or absent

W[n, k] = (q[n, k] - z[n, g]) * scale[n, g], with q and z in -8..7; z = 0 in a symmetric scheme.

Source: the format of the compressed-tensors package, 0.20.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..lowbit.int4 import Int4
from ..lowbit.words import SEQUENTIAL, pack, unpack
from ..nn import AWQLinear
from .config import PackedScheme, PackedW4A16
from .folder import Checkpoint
from .layer import FLOATS, Part, parts_by_module
from .layers_int4 import LowbitLayer


@dataclass(frozen=True)
class PackedLayer(LowbitLayer):
    """A packed int4 layer that was found in order: a `QuantisedLayer` and its scheme."""

    scheme: PackedScheme

    main: ClassVar[str] = "weight_packed"
    scale_part: ClassVar[str] = "weight_scale"
    g_idx_part: ClassVar[str] = "weight_g_idx"

    def module(self, checkpoint: Checkpoint, biased: bool) -> AWQLinear:
        if "weight_shape" in self.parts:
            shape = self.read(checkpoint, "weight_shape").tolist()
            if shape != [self.n, self.k]:
                reason = f"must hold {[self.n, self.k]}, as weight_packed says, got {shape}"
                self.refuse(checkpoint, "weight_shape", reason)
        scales = self._scales(checkpoint).t().contiguous()
        zeros = torch.full(scales.shape, 8, dtype=torch.uint8)
        if "weight_zero_point" in self.parts:
            zeros = unpack(self.read(checkpoint, "weight_zero_point").t(), SEQUENTIAL)
        q = unpack(self.read(checkpoint, "weight_packed"), SEQUENTIAL).t()
        g_idx = None
        if "weight_g_idx" in self.parts:
            g_idx = self.read(checkpoint, "weight_g_idx")
        bias = self._bias(checkpoint, biased, scales.dtype)
        return self._made(checkpoint, Int4(q, scales, zeros, g_idx), bias)


def packed_tensors(weight: Int4) -> dict[str, Tensor]:
    """A weight in the tensors of the format, by part; with those that not every scheme has."""
    k, n = weight.q.shape
    return {
        "weight_packed": pack(weight.q.t(), SEQUENTIAL),
        "weight_scale": weight.scales.t().contiguous(),
        "weight_zero_point": pack(weight.zeros, SEQUENTIAL).t().contiguous(),
        "weight_shape": torch.tensor([n, k], device=weight.q.device),
        "weight_g_idx": weight.group_of_rows(),
    }


def packed_layers(checkpoint: Checkpoint, settings: PackedW4A16) -> dict[str, PackedLayer]:
    """Every layer with a packed weight, by name; only headers are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, not understood, or of another dtype or
            shape than the settings say; or the settings leave the layer float.
    """
    layers: dict[str, PackedLayer] = {}
    for name, parts in parts_by_module(checkpoint).items():
        if "weight_packed" in parts and name:
            layers[name] = _layer(checkpoint, name, frozenset(parts), settings)
        elif "weight_packed" in parts or "weight_scale" in parts:
            tensor = ".".join([name, "weight_scale"] if name else ["weight_packed"])
            file = checkpoint.where[tensor].path
            raise ValueError(f"{file}: {tensor} belongs to no layer with a weight_packed")
    return layers


def _layer(
    checkpoint: Checkpoint, name: str, parts: frozenset[str], settings: PackedW4A16
) -> PackedLayer:
    shape = checkpoint.entry(f"{name}.weight_packed").shape
    n, words = shape if len(shape) == 2 else (0, 0)
    k = 8 * words
    scheme = settings.scheme_of(name)
    if scheme is None:
        where = checkpoint.where[f"{name}.weight_packed"].path
        raise ValueError(
            f"{where}: {name}.weight_packed is int4, but quantization_config leaves {name} float"
        )
    layer = PackedLayer(name, n, k, parts, scheme)
    if not k or not n or n % 8:
        reason = f"must have shape [N, K/8], N a multiple of 8, got {list(shape)}"
        layer.refuse(checkpoint, "weight_packed", reason)
    if k % layer.group:
        reason = f"must have as many features K as groups of {layer.group} hold, got K={k}"
        layer.refuse(checkpoint, "weight_packed", reason)
    groups = k // layer.group
    layer.check(
        checkpoint,
        {
            "weight_packed": Part(True, ("I32",), (shape,)),
            "weight_scale": Part(True, ("F16", "BF16"), ((n, groups),)),
            "weight_zero_point": Part(not scheme.symmetric, ("I32",), ((n // 8, groups),)),
            "weight_shape": Part(True, ("I64", "I32"), ((2,),)),
            "weight_g_idx": Part(scheme.act_order, ("I32", "I64"), ((k,),)),
            "bias": Part(None, FLOATS, ((n,),)),
        },
    )
    return layer
