"""`PackedLayer`: a layer whose weight of few bits is kept once, packed or as plain buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from ..lowbit.grouped import HALVES

Layer = TypeVar("Layer", bound="PackedLayer")


class PackedLayer(nn.Module):
    """What layers share whose buffers are words, 16-bit floats and float32.

    `pack` puts the buffers of `_WEIGHT` together for the kernels: `packed` is then the weight's
    only copy, and they are None until `unpack`. A state dict has them under their names all the
    same. Moving, converting or loading a packed layer packs it again.

    Words stay words, whatever the module is converted to. Scales, offsets and bias follow to the
    16-bit floats and leave every other dtype alone, for the kernels take 16 bits.
    """

    _WEIGHT: ClassVar[tuple[str, ...]]  # the buffers that `packed` stands for
    _SCALES: ClassVar[str]  # that of them whose dtype is the layer's
    _OFFSETS: ClassVar[tuple[str, ...]] = ()  # of the scales' dtype, always
    _FACTORS: ClassVar[tuple[str, ...]] = ()  # float32, always

    packed: Any  # a PackedAWQ or a MixedWeight, or None
    bias: Tensor | None  # of the scales' dtype or float32

    def pack(self: Layer) -> Layer:
        """Lays the weight out for the kernels. Returns the layer."""
        raise NotImplementedError

    def _plain(self, packed: Any) -> dict[str, Tensor]:
        """The buffers that it stands for."""
        raise NotImplementedError

    def _make_room(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Makes buffers for what a state dict has and the layer has not."""
        raise NotImplementedError

    def unpack(self: Layer) -> Layer:
        """Undoes `pack`: the weight's buffers are there again. Returns the layer."""
        if self.packed is not None:
            self._buffers.update(self._plain(self.packed))
            self.packed = None
        return self

    def _hold(self, packed: Any) -> None:
        self.packed = packed
        for name in self._WEIGHT:  # last: torch.export miscounts buffers behind one that is None
            self._buffers.pop(name, None)
            self._buffers[name] = None

    @property
    def _dtype(self) -> torch.dtype:
        """Of the scales."""
        held = self.packed.data if self.packed is not None else self._buffers[self._SCALES]
        return cast(Tensor, held).dtype

    def _apply(self: Layer, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        packs = self.packed is not None
        self.unpack()
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        halves = self._dtype in HALVES
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is None or moved is None or moved.dtype == buffer.dtype:
                continue
            if not halves or not buffer.is_floating_point() or name in self._FACTORS:
                self._buffers[name] = buffer.to(moved.device)  # words stay words
        return self.pack() if packs else self

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        made = {} if self.packed is None else self._plain(self.packed)
        destination.update({prefix + name: x for name, x in made.items()})

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        packs = self.packed is not None
        self.unpack()._make_room(state_dict, prefix)
        dtypes = {name: x.dtype for name, x in self._buffers.items() if x is not None}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        floats: dict[str, tuple[torch.dtype, ...]] = {"bias": (*HALVES, torch.float32)}
        floats.update(dict.fromkeys((self._SCALES, *self._OFFSETS), HALVES))
        for name, dtype in dtypes.items():  # assign=True takes tensors as they are
            self._bring(name, floats.get(name, (dtype,)), dtype)
        for name in self._OFFSETS:
            self._bring(name, (self._dtype,), self._dtype)
        self._bring("bias", (self._dtype, torch.float32), self._dtype)
        if packs:
            self.pack()

    def _bring(self, name: str, taken: tuple[torch.dtype, ...], dtype: torch.dtype) -> None:
        """Converts a buffer to this dtype, unless its own is one of those taken."""
        buffer = self._buffers[name]
        if buffer is not None and buffer.dtype not in taken:
            self._buffers[name] = buffer.to(dtype)
