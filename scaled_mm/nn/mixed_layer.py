"""`MixedLayer`: a layer whose weight of 8 or 4 bits is kept once, laid out for the kernels."""

from __future__ import annotations

from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from ..lowbit.grouped import GroupedWeight
from ..lowbit.stored import plain, stored
from ..ops.mixed_weight import MixedWeight, pack_weight
from .packed_layer import PackedLayer

SHAPE = "weight_shape"
Layer = TypeVar("Layer", bound="MixedLayer")


class MixedLayer(PackedLayer):
    """The weight of a `WeightOnlyLinear`, whose docstring says how it is kept."""

    _WEIGHT: ClassVar = (
        *("weight_packed", "weight_scale", "weight_zero_point", "weight_offset", "weight_g_idx"),
    )
    _SCALES: ClassVar = "weight_scale"
    _OFFSETS: ClassVar = ("weight_offset",)
    _FACTORS: ClassVar = ("pre_scale", "folded_smooth")
    _FOLLOWS: ClassVar = True

    weight_packed: Tensor  # this and the next four: None while the layer is packed
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    weight_offset: Tensor | None
    weight_g_idx: Tensor | None
    bias: Tensor | None
    pre_scale: Tensor | None
    folded_smooth: Tensor | None
    packed: MixedWeight | None

    in_features: int
    out_features: int
    bits: int
    zero: str
    _sizes: list[int]  # of the packed weight

    def pack(self: Layer) -> Layer:
        """Lays the weight out for the kernels (`scaled_mm.pack_weight`), which then is its only
        copy. A weight on the meta device stays as it is. Returns the layer."""
        if self.packed is None and not self.weight_packed.is_meta:
            tensors = self.weight_packed, self.weight_scale, self.weight_zero_point
            q, scales, zeros = plain(*tensors, bits=self.bits, k=self.in_features)
            if self.weight_offset is not None:
                zeros = self.weight_offset.t()
            bits, g_idx = self.bits, self.weight_g_idx
            self._hold(pack_weight(q, scales, zeros=zeros, bits=bits, g_idx=g_idx))
        return self

    @property
    def weight(self) -> Tensor:
        """A copy of the weight that x is multiplied by: [N, K] of the scales' dtype, W * pre_scale
        transposed."""
        w = self.filled().dequantize().t()
        return w if self.pre_scale is None else (w * self.pre_scale).to(w.dtype)

    def filled(self) -> MixedWeight:
        """The packed weight; ValueError of a layer on the meta device."""
        packed: MixedWeight | None = self._current()
        if packed is None:
            raise ValueError("weight must have values to be multiplied by, got one on meta")
        return packed

    @property
    def act_order(self) -> bool:
        """Whether the rows of a group lie scattered."""
        order = self.weight_g_idx if self.packed is None else self.packed.order
        return order is not None

    def _plain(self, packed: MixedWeight) -> dict[str, Tensor]:
        q, scales, zeros, order = packed.unpack()
        made: dict[str, Tensor] = {}
        if order is not None:  # rows back to where they came from
            made["weight_g_idx"] = packed.g_idx()
            q = packed.by_channel(q)
        if self.zero == "float" and zeros is not None:
            made["weight_offset"] = zeros.t().contiguous()
            zeros = None
        return made | stored(GroupedWeight(q, scales, zeros), self.bits)

    def _hold(self, packed: MixedWeight) -> None:
        super()._hold(packed)
        self._sizes = packed.sizes

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + SHAPE] = torch.tensor([self.out_features, self.in_features])

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        shape = state_dict.pop(prefix + SHAPE, None)
        wanted = [self.out_features, self.in_features]
        if shape is not None and not shape.is_meta and shape.tolist() != wanted:
            args[4].append(f"{prefix}{SHAPE} must hold {wanted}, got {shape.tolist()}")
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)

    def _make_room(self, state_dict: dict[str, Any], prefix: str) -> None:
        device = self.weight_scale.device
        for name, dtype in (("weight_g_idx", torch.int32), ("pre_scale", torch.float32)):
            if prefix + name in state_dict and self._buffers[name] is None:
                self._buffers[name] = torch.empty(self.in_features, dtype=dtype, device=device)
        given = state_dict.get(prefix + "bias")
        if self.bias is not None and given is not None and given.dtype == torch.float32:
            self.bias = self.bias.float()
