"""The tensors of one layer in compressed-tensors' pack-quantized format. K input features, N output
features, groups of G input features, values of b = 4 or 8 bits; `lowbit/stored.py` draws the words.

NAME.weight_packed      int32 [N, ceil(K b / 32)]
NAME.weight_scale       16-bit float [N, K/G]
NAME.weight_zero_point  int32 [ceil(N b / 32), K/G], asymmetric
NAME.weight_shape       int [2]: N and K
NAME.weight_g_idx       int [K], with act-order: the group of each input feature
NAME.bias               float [N], or absent

W[n, k] = (q[n, k] - z[n, g]) * scale[n, g], with q and z in -2^(b-1)..2^(b-1)-1; z = 0 in a
symmetric scheme. In int-quantized the same with 4 bits, one value to a byte:

NAME.weight             int8 [N, K]
NAME.weight_zero_point  int8 [N, K/G], asymmetric; zeros may be there where they are none

Source: the formats of the compressed-tensors package, 0.20.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from torch import Tensor

from ..lowbit.grouped import GroupedWeight
from ..lowbit.stored import of_bytes, plain
from ..lowbit.words import per_word
from ..nn import WeightOnlyLinear
from ..quantization.compressed_tensors import PackedScheme
from .config import PackedWeights
from .folder import Checkpoint
from .layer import FLOATS, Part, layers_with
from .layers import layers_in_bytes
from .layers_awq_gptq import LowbitLayer


@dataclass(frozen=True)
class PackedLayer(LowbitLayer):
    """A packed layer that was found in order: a `QuantisedLayer` and its scheme."""

    scheme: PackedScheme

    main: ClassVar[str] = "weight_packed"
    scale_part: ClassVar[str] = "weight_scale"
    g_idx_part: ClassVar[str] = "weight_g_idx"

    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        n, scheme, groups = self.n, self.scheme, self.groups(checkpoint, "features")
        zeros = -(-n // per_word(scheme.bits)), groups
        return {
            "weight_packed": Part(True, ("I32",), None),  # of which N and K are
            "weight_scale": Part(True, ("F16", "BF16"), ((n, groups),)),
            "weight_zero_point": Part(not scheme.symmetric, ("I32",), (zeros,)),
            "weight_shape": Part(True, ("I64", "I32"), ((2,),)),
            "weight_g_idx": Part(scheme.act_order, ("I32", "I64"), ((self.k,),)),
            "bias": Part(None, FLOATS, ((n,),)),
        }

    def module(self, checkpoint: Checkpoint, biased: bool) -> WeightOnlyLinear:
        scales, part = self._scales(checkpoint), "weight_zero_point"
        zeros = self.read(checkpoint, part) if part in self.parts else None
        weight = self._grouped(checkpoint, scales, zeros)
        layer = self._made(checkpoint, weight, self._bias(checkpoint, biased, scales.dtype))
        layer.int8_input = self.scheme.int8_input
        return layer

    def _grouped(
        self, checkpoint: Checkpoint, scales: Tensor, zeros: Tensor | None
    ) -> GroupedWeight:
        words = self.read(checkpoint, self.main)
        return plain(words, scales, zeros, bits=self.scheme.bits, k=self.k)


@dataclass(frozen=True)
class ByteLayer(PackedLayer):
    """The same with a value to a byte."""

    main: ClassVar[str] = "weight"

    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        rules = super().rules(checkpoint)
        del rules["weight_packed"], rules["weight_shape"]
        zeros = None if self.scheme.symmetric else True
        rules["weight"] = Part(True, ("I8",), ((self.n, self.k),))
        rules["weight_zero_point"] = Part(zeros, ("I8",), rules["weight_scale"].shapes)
        return rules

    def _grouped(
        self, checkpoint: Checkpoint, scales: Tensor, zeros: Tensor | None
    ) -> GroupedWeight:
        if self.scheme.symmetric and zeros is not None:
            if bool(zeros.ne(0).any()):
                self.refuse(checkpoint, "weight_zero_point", "must be 0 in a symmetric scheme")
            zeros = None
        try:
            return of_bytes(self.read(checkpoint, "weight"), scales, zeros)
        except ValueError as error:
            part, _, reason = str(error).partition(" ")
            self.refuse(checkpoint, part, reason)


def packed_layers(checkpoint: Checkpoint, settings: PackedWeights) -> dict[str, PackedLayer]:
    """Every layer with a packed weight, or one of 4 bits in bytes, by name; headers and
    weight_shape are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, not understood, or of another dtype or
            shape than the settings say; or the settings leave the layer float.
    """

    def in_bytes(name: str, n: int, k: int, parts: frozenset[str]) -> PackedLayer | None:
        scheme = settings.scheme_of(name)
        return None if scheme is None else ByteLayer(name, n, k, parts, scheme)

    if settings.in_bytes:
        return layers_in_bytes(checkpoint, "weight_scale", in_bytes)
    make = partial(_layer, checkpoint, settings)
    return layers_with(checkpoint, PackedLayer.main, "weight_scale", make)


def _layer(
    checkpoint: Checkpoint, settings: PackedWeights, name: str, parts: frozenset[str]
) -> PackedLayer:
    shape = checkpoint.entry(f"{name}.weight_packed").shape
    n, words = shape if len(shape) == 2 else (0, 0)
    scheme = settings.scheme_of(name)
    if scheme is None:
        where = checkpoint.where[f"{name}.weight_packed"].path
        text = f"{name}.weight_packed is packed, but quantization_config leaves {name} float"
        raise ValueError(f"{where}: {text}")
    values = per_word(scheme.bits)
    layer = PackedLayer(name, n, values * words, parts, scheme)
    if not words or not n:
        reason = f"must have shape [N, K/{values}], got {list(shape)}"
        layer.refuse(checkpoint, "weight_packed", reason)
    return replace(layer, k=_features(checkpoint, layer, words))


def _features(checkpoint: Checkpoint, layer: PackedLayer, words: int) -> int:
    """K, which weight_shape says where the last word of a row is not full."""
    if "weight_shape" not in layer.parts:
        return layer.k
    entry = checkpoint.entry(f"{layer.name}.weight_shape")
    if entry.dtype not in ("I64", "I32") or entry.shape != (2,):
        return layer.k  # which is refused with the other headers
    n, k = layer.read(checkpoint, "weight_shape").tolist()
    if n != layer.n or -(-k * layer.scheme.bits // 32) != words:
        reason = f"must hold {[layer.n, layer.k]}, as weight_packed says, got {[n, k]}"
        layer.refuse(checkpoint, "weight_shape", reason)
    return int(k)
