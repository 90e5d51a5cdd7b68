"""The tensors of one int4 layer, as AutoAWQ and GPTQ checkpoints hold them; docs/lowbit.md draws
the words. K input features, N output features, groups of G rows.

                 AutoAWQ ("gemm")        GPTQ
NAME.qweight     int32 [K, N/8]          int32 [K/8, N]
NAME.qzeros      int32 [K/G, N/8]        int32 [K/G, N/8]
NAME.scales      16-bit float [K/G, N]   16-bit float [K/G, N]
NAME.g_idx       none                    int [K], the group of each row; may be absent without
                                         act-order
NAME.bias        float [N], or absent    float [N], or absent; AutoGPTQ writes zeros where the
                                         model's layer has none
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from ..lowbit.int4 import Int4, from_gptq
from ..nn import AWQLinear
from .config import PackedScheme
from .config_int4 import W4A16
from .folder import Checkpoint
from .layer import FLOATS, Part, QuantisedLayer, parts_by_module

_EIGHTS = 0x88888888 - 2**32
"""Eight zero points of 8, in either order, as int32; GPTQ v1 stores seven in each nibble."""
_SEVENS = 0x77777777


@dataclass(frozen=True)
class LowbitLayer(QuantisedLayer):
    """A weight-only layer of any format: its scheme has a group_size, and may have an act_order."""

    scheme: W4A16 | PackedScheme

    spare_bias: ClassVar[bool] = True
    scale_part: ClassVar[str]
    g_idx_part: ClassVar[str]

    def scheme_text(self) -> str:
        return str(self.scheme)

    @property
    def group(self) -> int:
        """Input features in a group, G."""
        return self.k if self.scheme.group_size == -1 else self.scheme.group_size

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

    def _made(self, checkpoint: Checkpoint, weight: Int4, bias: Tensor | None) -> AWQLinear:
        """A layer of a weight whose tensors are in order, but for what g_idx says."""
        try:
            return AWQLinear.from_int4(weight, bias)
        except ValueError as error:
            self.refuse_g_idx(checkpoint, error)

    def refuse_g_idx(self, checkpoint: Checkpoint, error: ValueError) -> NoReturn:
        """All else of the tensors was checked before a layer is made of them."""
        self.refuse(checkpoint, self.g_idx_part, str(error).removeprefix("g_idx "))


@dataclass(frozen=True)
class Int4Layer(LowbitLayer):
    """An int4 layer of AutoAWQ or GPTQ that was found in order, and the checkpoint's settings."""

    scheme: W4A16

    main: ClassVar[str] = "qweight"
    scale_part: ClassVar[str] = "scales"
    g_idx_part: ClassVar[str] = "g_idx"

    def module(self, checkpoint: Checkpoint, biased: bool) -> AWQLinear:
        scales, qzeros = self._scales(checkpoint), self._qzeros(checkpoint)
        bias = self._bias(checkpoint, biased, scales.dtype)
        qweight = self.read(checkpoint, "qweight")
        if self.scheme.method == "gptq":
            return self._from_gptq(checkpoint, qweight, scales, qzeros, bias)
        made = AWQLinear(self.k, self.n, False, group_size=self.group, dtype=scales.dtype)
        made.qweight, made.scales, made.qzeros, made.bias = qweight, scales, qzeros, bias
        return made

    def _from_gptq(
        self,
        checkpoint: Checkpoint,
        qweight: Tensor,
        scales: Tensor,
        qzeros: Tensor,
        bias: Tensor | None,
    ) -> AWQLinear:
        g_idx = self.read(checkpoint, "g_idx") if "g_idx" in self.parts else None
        weight = from_gptq(qweight, scales, qzeros, g_idx, version=self.scheme.version)
        made = self._made(checkpoint, weight, bias)
        if made.order is not None and self.scheme.act_order is False:
            reason = f"must be k // {self.group}, for desc_act is false"
            self.refuse(checkpoint, "g_idx", reason)
        return made

    def _qzeros(self, checkpoint: Checkpoint) -> Tensor:
        qzeros = self.read(checkpoint, "qzeros")
        stored = _SEVENS if self.scheme.version == 1 else _EIGHTS
        if self.scheme.symmetric and bool((qzeros != stored).any()):
            text = f"must hold 8 everywhere in a symmetric scheme ({self.scheme_text()})"
            self.refuse(checkpoint, "qzeros", text)
        return qzeros


def int4_layers(checkpoint: Checkpoint, settings: W4A16) -> dict[str, Int4Layer]:
    """Every layer with an int4 weight, by name; only headers are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, not understood, or of another dtype or
            shape than the settings say; or the settings leave the layer float.
    """
    layers: dict[str, Int4Layer] = {}
    for name, parts in parts_by_module(checkpoint).items():
        if "qweight" in parts and name:
            layers[name] = _layer(checkpoint, name, frozenset(parts), settings)
        elif "qweight" in parts or "qzeros" in parts:
            tensor = ".".join([name, "qzeros"] if name else ["qweight"])
            file = checkpoint.where[tensor].path
            raise ValueError(f"{file}: {tensor} belongs to no layer with a qweight")
    return layers


def _layer(checkpoint: Checkpoint, name: str, parts: frozenset[str], settings: W4A16) -> Int4Layer:
    shape = checkpoint.entry(f"{name}.qweight").shape
    rows, columns = shape if len(shape) == 2 else (0, 0)
    k, n = (rows, 8 * columns) if settings.method == "awq" else (8 * rows, columns)
    layer = Int4Layer(name, n, k, parts, settings)
    if settings.leaves_float(name):
        layer.refuse(checkpoint, "qweight", "is int4, but modules_to_not_convert leaves it float")
    if not k or not n or n % 8:
        form = "[K, N/8]" if settings.method == "awq" else "[K/8, N], N a multiple of 8"
        layer.refuse(checkpoint, "qweight", f"must have shape {form}, got {list(shape)}")
    if k % layer.group:
        reason = f"must have as many rows K as groups of {layer.group} hold, got K={k}"
        layer.refuse(checkpoint, "qweight", reason)
    groups = k // layer.group
    gptq = settings.method == "gptq"
    layer.check(
        checkpoint,
        {
            "qweight": Part(True, ("I32",), (shape,)),
            "qzeros": Part(True, ("I32",), ((groups, n // 8),)),
            "scales": Part(True, ("F16", "BF16"), ((groups, n),)),
            "g_idx": Part((settings.act_order or None) if gptq else False, ("I32", "I64"), ((k,),)),
            "bias": Part(None, FLOATS, ((n,),)),
        },
    )
    return layer
