"""The tensors of one layer, as AutoAWQ and GPTQ checkpoints hold them; docs/lowbit.md draws the
words. K input features, N output features, groups of G rows, values of b bits: 4, or 8 with GPTQ.

                 AutoAWQ ("gemm")        GPTQ
NAME.qweight     int32 [K, N/8]          int32 [K b/32, N]
NAME.qzeros      int32 [K/G, N/8]        int32 [K/G, N b/32]
NAME.scales      16-bit float [K/G, N]   16-bit float [K/G, N]
NAME.g_idx       none                    int [K], the group of each row; may be absent without
                                         act-order
NAME.bias        float [N], or absent    float [N], or absent; AutoGPTQ writes zeros where the
                                         model's layer has none
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor

from ..lowbit.gptq import from_gptq_words
from ..lowbit.grouped import GroupedWeight
from ..lowbit.words import pack_dense, per_word, signed
from ..nn import WeightOnlyLinear
from ..quantization.compressed_tensors import PackedScheme
from .config_awq_gptq import AwqGptq
from .folder import Checkpoint
from .layer import FLOATS, Part, QuantisedLayer, layers_with


@dataclass(frozen=True)
class LowbitLayer(QuantisedLayer):
    """A weight-only layer of any format: its scheme has a group_size, and may have an act_order."""

    scheme: AwqGptq | PackedScheme

    kind: ClassVar = WeightOnlyLinear
    spare_bias: ClassVar[bool] = True
    scale_part: ClassVar[str]
    g_idx_part: ClassVar[str]

    @property
    def group(self) -> int:
        """Input features in a group, G."""
        return self.k if self.scheme.group_size == -1 else self.scheme.group_size

    def groups(self, checkpoint: Checkpoint, what: str) -> int:
        """How many there are; refuses K input features, by the format's word for them, that do not
        fill them."""
        if self.k % self.group:
            rule = f"must have as many {what} K as groups of {self.group} hold"
            self.refuse(checkpoint, self.main, f"{rule}, got K={self.k}")
        return self.k // self.group

    def _scales(self, checkpoint: Checkpoint) -> Tensor:
        scales = self.read(checkpoint, self.scale_part)
        if not bool(scales.isfinite().all()):  # below 0 they may be: some quantisers want it
            self.refuse(checkpoint, self.scale_part, "must be finite")
        return scales

    def _bias(self, checkpoint: Checkpoint, biased: bool, dtype: torch.dtype) -> Tensor | None:
        """As it is where the kernel takes it: the scales' dtype or float32."""
        if "bias" not in self.parts:
            return None
        bias = self.read(checkpoint, "bias")
        if not biased:
            if bool(bias.ne(0).any()):  # NaN too
                self.refuse(checkpoint, "bias", "must be 0, for the model's Linear has none")
            return None
        return bias if bias.dtype == dtype else bias.float()

    def _made(
        self, checkpoint: Checkpoint, weight: GroupedWeight, bias: Tensor | None
    ) -> WeightOnlyLinear:
        """The layer. What its g_idx says may be refused: all else was checked before."""
        bits, part = self.scheme.bits, self.g_idx_part
        g_idx = self.read(checkpoint, part) if part in self.parts else None
        try:
            return WeightOnlyLinear.from_grouped(weight, bits=bits, g_idx=g_idx, bias=bias)
        except ValueError as error:
            self.refuse(checkpoint, part, str(error).removeprefix("g_idx "))


@dataclass(frozen=True)
class AwqGptqLayer(LowbitLayer):
    """A layer of AutoAWQ or GPTQ that was found in order, and the checkpoint's settings."""

    scheme: AwqGptq

    main: ClassVar[str] = "qweight"
    scale_part: ClassVar[str] = "scales"
    g_idx_part: ClassVar[str] = "g_idx"

    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        n, groups = self.n, self.groups(checkpoint, "rows")
        scattered = (self.scheme.act_order or None) if self.scheme.method == "gptq" else False
        return {
            "qweight": Part(True, ("I32",), None),  # of which N and K are
            "qzeros": Part(True, ("I32",), ((groups, n // per_word(self.scheme.bits)),)),
            "scales": Part(True, ("F16", "BF16"), ((groups, n),)),
            "g_idx": Part(scattered, ("I32", "I64"), ((self.k,),)),
            "bias": Part(None, FLOATS, ((n,),)),
        }

    def module(self, checkpoint: Checkpoint, biased: bool) -> WeightOnlyLinear:
        scales, qzeros = self._scales(checkpoint), self._qzeros(checkpoint)
        bias = self._bias(checkpoint, biased, scales.dtype)
        qweight = self.read(checkpoint, "qweight")
        if self.scheme.method == "awq":
            return WeightOnlyLinear.from_awq(qweight, scales, qzeros, bias=bias)
        bits = self.scheme.bits
        q, zeros = from_gptq_words(qweight, qzeros, version=self.scheme.version, bits=bits)
        weight = GroupedWeight(q, scales, zeros)
        if self.scheme.symmetric:  # q s, for which kernels read no zero points
            weight = GroupedWeight(signed(q, bits), scales, None)
        made = self._made(checkpoint, weight, bias)
        if made.act_order and self.scheme.act_order is False:
            reason = f"must be k // {self.group}, for desc_act is false"
            self.refuse(checkpoint, "g_idx", reason)
        return made

    def _qzeros(self, checkpoint: Checkpoint) -> Tensor:
        qzeros, bits = self.read(checkpoint, "qzeros"), self.scheme.bits
        middle = 1 << bits - 1
        stored = middle - (self.scheme.version == 1)
        word = pack_dense(torch.full((per_word(bits),), stored, dtype=torch.uint8), bits)
        if self.scheme.symmetric and bool((qzeros != word).any()):
            text = f"must hold {middle} everywhere in a symmetric scheme ({self.scheme})"
            self.refuse(checkpoint, "qzeros", text)
        return qzeros


def awq_gptq_layers(checkpoint: Checkpoint, settings: AwqGptq) -> dict[str, AwqGptqLayer]:
    """Every layer with a qweight, by name; only headers are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, not understood, or of another dtype or
            shape than the settings say; or the settings leave the layer float.
    """
    make = partial(_layer, checkpoint, settings)
    return layers_with(checkpoint, AwqGptqLayer.main, "qzeros", make)


def _layer(
    checkpoint: Checkpoint, settings: AwqGptq, name: str, parts: frozenset[str]
) -> AwqGptqLayer:
    shape = checkpoint.entry(f"{name}.qweight").shape
    rows, columns = shape if len(shape) == 2 else (0, 0)
    values, gptq = per_word(settings.bits), settings.method == "gptq"
    k, n = (values * rows, columns) if gptq else (rows, values * columns)
    layer = AwqGptqLayer(name, n, k, parts, settings)
    if settings.leaves_float(name):
        reason = f"is int{settings.bits}, but modules_to_not_convert leaves it float"
        layer.refuse(checkpoint, "qweight", reason)
    if not k or not n or n % values:
        form = f"[K/{values}, N], N a multiple of {values}" if gptq else f"[K, N/{values}]"
        layer.refuse(checkpoint, "qweight", f"must have shape {form}, got {list(shape)}")
    return layer
