"""`PackedLayer`: a layer whose weight is kept once, packed or as plain buffers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, TypeVar, cast

import torch
from torch import Tensor, nn

from ..lowbit.grouped import HALVES

Layer = TypeVar("Layer", bound="PackedLayer")


class PackedLayer(nn.Module):
    """What the quantised layers share.

    `pack` puts the buffers of `_WEIGHT` together for the kernels: `packed` is then the weight's
    only copy, its memory is the buffer `kernel_weight`, and the plain buffers are None until
    `unpack`. State dicts and pickles hold the plain form, under the plain buffers' names: the
    packed one belongs to a device and a version. Moving, converting or copying a packed layer packs
    it again, and so does loading into any.

    Words stay words, whatever the module is converted to. Scales, offsets and bias stay too, or
    follow to the 16-bit floats and leave every other dtype alone, for the kernels take 16 bits.
    """

    _WEIGHT: ClassVar[tuple[str, ...]]  # the buffers that `packed` stands for
    _SCALES: ClassVar[str]  # the scales, whose dtype is the layer's
    _OFFSETS: ClassVar[tuple[str, ...]] = ()  # of the scales' dtype, always
    _FACTORS: ClassVar[tuple[str, ...]] = ()  # float32, always
    _FOLLOWS: ClassVar[bool]  # whether scales and bias follow to 16-bit floats

    packed: Any  # a PackedWeight or MixedWeight, or None
    kernel_weight: Tensor | None  # its memory
    bias: Tensor | None  # of the scales' dtype or float32

    def pack(self: Layer) -> Layer:
        """Lays the weight out for the kernels. Returns the layer."""
        raise NotImplementedError

    def _plain(self, packed: Any) -> dict[str, Tensor]:
        """The buffers that it stands for."""
        raise NotImplementedError

    def _make_room(self, state_dict: dict[str, Any], prefix: str) -> None:
        """Makes buffers for what a state dict has and the layer has not, and gives the state dict
        what follows from the rest of it."""

    def unpack(self: Layer) -> Layer:
        """Undoes `pack`: the weight's buffers are there again. Returns the layer."""
        if self.packed is not None:
            self._buffers.update(self._plain(self.packed))
            self.packed = self._buffers["kernel_weight"] = None
            self._absent_last()
        return self

    def _current(self) -> Any:
        """`packed`, of the memory that `kernel_weight` has now: somebody else may have moved it, or
        trace it. Of a layer that is not packed, it packs."""
        if self.packed is None:
            return self.pack().packed
        held = self._buffers["kernel_weight"]
        if held is self.packed.data:
            return self.packed
        assert held is not None
        packed = self.packed.on(held)
        if torch.compiler.is_compiling() or held.device == self.packed.data.device:
            return packed
        self.packed = packed
        return self.unpack().pack().packed

    def _begin(self) -> None:
        """Last in a constructor."""
        self.packed = None
        self.register_buffer("kernel_weight", None, persistent=False)
        self._absent_last()

    def _hold(self, packed: Any) -> None:
        self.packed, self._buffers["kernel_weight"] = packed, packed.data
        self._buffers.update(dict.fromkeys(self._WEIGHT))
        self._absent_last()

    def _absent_last(self) -> None:
        """torch.export miscounts buffers behind one that is None."""
        for name in [name for name, x in self._buffers.items() if x is None]:
            self._buffers[name] = self._buffers.pop(name)

    @property
    def _dtype(self) -> torch.dtype:
        """Of the scales."""
        held = self.packed.data if self.packed is not None else self._buffers[self._SCALES]
        return cast(Tensor, held).dtype

    def _converted(self) -> set[str]:
        """The buffers that take the dtype that the module was converted to; now."""
        if not self._FOLLOWS or self._dtype not in HALVES:
            return set()
        held = {
            name for name, x in self._buffers.items() if x is not None and x.is_floating_point()
        }
        return held - set(self._FACTORS)

    def _apply(self: Layer, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Layer:
        packs = self.packed is not None
        self.unpack()
        before = dict(self._buffers)
        super()._apply(fn, recurse)
        converted = self._converted()
        for name, buffer in before.items():
            moved = self._buffers[name]
            if buffer is None or moved is None or moved.dtype == buffer.dtype:
                continue
            if name not in converted or not buffer.is_floating_point():
                self._buffers[name] = buffer.to(moved.device)  # the values as they were
        before.clear()
        return self.pack() if packs else self

    def __getstate__(self) -> dict[str, Any]:
        """Of pickles and copies: the plain form, and whether to pack it again."""
        state = super().__getstate__()
        if self.packed is not None:
            plain = self._plain(self.packed)
            state["_buffers"] = {**self._buffers, **plain, "kernel_weight": None}
        state["packed"] = self.packed is not None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        packs = state["packed"]
        super().__setstate__({**state, "packed": None})
        self._absent_last()
        if packs:
            self.pack()

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        made = {} if self.packed is None else self._plain(self.packed)
        destination.update({prefix + name: x for name, x in made.items()})
        super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        self.unpack()._make_room(state_dict, prefix)
        dtypes = {name: x.dtype for name, x in self._buffers.items() if x is not None}
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        for name, dtype in dtypes.items():  # assign=True takes tensors as they are
            self._bring(name, self._taken(name, dtype), dtype)
        for name in self._OFFSETS:
            self._bring(name, (self._dtype,), self._dtype)
        self._bring("bias", (self._dtype, torch.float32), self._dtype)
        self.pack()

    def _taken(self, name: str, dtype: torch.dtype) -> tuple[torch.dtype, ...]:
        """The dtypes that a buffer may have."""
        if not self._FOLLOWS:
            return (dtype,)
        halves = name == self._SCALES or name in self._OFFSETS
        return HALVES if halves else (*HALVES, torch.float32) if name == "bias" else (dtype,)

    def _bring(self, name: str, taken: tuple[torch.dtype, ...], dtype: torch.dtype) -> None:
        """Converts a buffer to this dtype, unless its own is one of those taken."""
        buffer = self._buffers.get(name)  # a bias may have become a parameter
        if buffer is not None and buffer.dtype not in taken:
            self._buffers[name] = buffer.to(dtype)
