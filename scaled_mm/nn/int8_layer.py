"""`Int8Layer`: a layer whose int8 weight is kept once, laid out for the kernels of its device."""

from __future__ import annotations

from typing import Any, ClassVar, cast

import torch
from torch import Tensor
from torch.compiler import is_compiling

from .._arguments import accept_dense
from ..ops.azp import azp_adj, azp_with_adj
from ..ops.int8 import pack_weight_int8
from ..ops.packed_weight import PackedWeight, is_read_early, rows_of_panels, settle
from ..ops.rotate import rotated
from .packed_layer import PackedLayer

_DEVICES = ("cpu", "cuda")  # that have kernels, and so a layout


class Int8Layer(PackedLayer):
    """The weight of a `ScaledLinear`, whose docstring says how it is kept."""

    _WEIGHT: ClassVar = ("weight",)
    _SCALES: ClassVar = "weight_scale"
    _FOLLOWS: ClassVar = False

    in_features: int
    out_features: int
    rotate: int
    weight_scale: Tensor
    input_zero_point: Tensor | None
    azp_with_adj: Tensor | None
    azp_adj: Tensor | None
    input_smooth: Tensor | None
    packed: PackedWeight | None
    _of: Tensor | None = None  # the buffer that `packed` was made with

    @property
    def weight(self) -> Tensor:
        """A copy of the weight that x is multiplied by: float32 [N, K], weight_int8 * weight_scale,
        rotated back (* input_smooth)."""
        w = self.weight_int8.float() * self._scale_of_values()
        w = rotated(w, self.rotate) if self.rotate else w
        return w if self.input_smooth is None else w * self.input_smooth

    @weight.setter
    def weight(self, value: Any) -> None:
        raise AttributeError("weight must be written by set_weight or load_state_dict")

    def _scale_of_values(self) -> Tensor:
        """Of each value of the weight: [N, K], or what broadcasts to that."""
        return self.weight_scale

    @property
    def weight_int8(self) -> Tensor:
        """A copy of the int8 weight [N, K]."""
        return self._rows().clone() if self.packed is None else self._rows()

    def set_weight(self, weight: Tensor) -> None:
        """Replaces the int8 weight, and the azp terms by its column sums.

        Args:
            weight: int8 [N, K], copied to the layer's device.
        """
        accept_dense({"weight": weight})
        shape = (self.out_features, self.in_features)
        if weight.dtype != torch.int8 or weight.shape != shape:
            got = f"{str(weight.dtype)[6:]} of shape {tuple(weight.shape)}"
            raise ValueError(f"weight must be int8 of shape {shape}, got {got}")
        scales = cast(Tensor, self._buffers[self._SCALES])
        weight = weight.to(scales.device)
        if self.azp_adj is not None:
            self.azp_adj.copy_(azp_adj(weight.t()))
        if self.azp_with_adj is not None and self.input_zero_point is not None:
            self.azp_with_adj.copy_(azp_with_adj(weight.t(), self.input_zero_point))
        self._buffers["weight"] = weight.contiguous()
        self.packed = self._buffers["kernel_weight"] = None
        self.pack()

    def pack(self) -> Int8Layer:
        """Lays the weight out for the kernels, in its plain form's place. A weight on the meta
        device stays as it is. Returns the layer."""
        weight = self._buffers.get("weight")
        if weight is not None and weight.device.type in _DEVICES:
            self._hold(pack_weight_int8(weight.t()))
        return self

    def unpack(self) -> Int8Layer:
        """Undoes `pack`, until the next call. Returns the layer."""
        super().unpack()
        self._of = None
        return self

    def _hold(self, packed: PackedWeight) -> None:
        """The buffer tells its layout, wherever it is moved: the CPU's has one dimension, CUDA's is
        the plain weight [N, K] with padded rows."""
        super()._hold(packed)
        del self._buffers["weight"]
        if packed.data.is_cuda:
            padded = packed.data.view(torch.int8).view(
                self.out_features, max(16, -(-packed.k // 16) * 16)
            )
            self._buffers["kernel_weight"] = padded
        self._of = self._buffers["kernel_weight"]

    def _plain(self, packed: Any) -> dict[str, Tensor]:
        with torch.inference_mode(False), torch.no_grad():  # a tensor that may be written anywhere
            return {"weight": self._rows()}

    def _rows(self) -> Tensor:
        """The plain weight; a copy, if the layer is packed."""
        held, k, n = self._buffers["kernel_weight"], self.in_features, self.out_features
        if held is None:
            return cast(Tensor, self._buffers["weight"])
        if held.dim() == 1:
            return rows_of_panels(held, k, n)
        return held[:, :k].clone(memory_format=torch.contiguous_format)

    def _weight_for_kernels(self) -> Tensor | PackedWeight:
        memory, early = self._memory(self._buffers["kernel_weight"])
        if memory.dim() == 2:
            return memory.t()
        if self.packed is not None and memory is self.packed.data:
            return self.packed
        packed = PackedWeight(memory, self.in_features, self.out_features)
        if early:
            settle(packed)
        return packed

    def _memory(self, held: Tensor | None) -> tuple[Tensor, bool]:
        """The weight as `scaled_linear` takes it, of this `kernel_weight`; whether settled."""
        if is_compiling():
            if held is None:
                return self._rows(), False
            if held.dim() == 1:
                return held, False
            whole = self.packed is not None and self._buffers["kernel_weight"] is self._of
            early = whole and is_read_early(cast(PackedWeight, self.packed))
            if not early and held.shape[1] == self.in_features:
                return held, False
            return held.view(-1).view(torch.uint8), early
        if held is None or held is not self._of:  # unpacked, or moved by somebody else
            self._buffers["weight"] = self._rows()
            self._buffers["kernel_weight"] = self.packed = self._of = None
            self.pack()
        if self.packed is None:
            return self._rows(), False
        return self.packed.data, is_read_early(self.packed)
