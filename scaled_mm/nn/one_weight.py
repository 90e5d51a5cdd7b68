"""`OneWeight`: the buffers of a layer whose weight is kept once, packed or plain."""

from __future__ import annotations

import copy
import sys
from collections.abc import ItemsView, Mapping, MutableMapping, ValuesView
from threading import RLock
from typing import Any, cast

import torch
from torch import Tensor
from torch._guards import TracingContext

from ..ops import PackedWeight, pack_weight_int8
from ..ops.packed_weight import in_place, rows, settle

_LOCK = RLock()  # threads may run a layer while others read its weight
_DEVICES = ("cpu", "cuda")  # that have kernels, and so a layout


class OneWeight(dict[str, "Tensor | None"]):
    """A module's `_buffers`, of which "weight", int8 [N, K], is in one of two forms.

        packed   `packed` is the weight and the entry is None: the kernels' layout, the only copy
        plain    the entry is the weight and `packed` is None: everybody may read and write it

    On CUDA a plain weight with rows of whole 16 bytes lies as the kernels want it. It stays plain,
    and as long as the layer alone holds it, products read it early, as they do a packed one
    ("Early weights" in docs/tuning.md).

    Whoever reads the entry, by whatever of torch's means (an attribute, a state dict,
    `named_buffers`, `functional_call`, `torch.export`), gets the plain form, which is rebuilt for
    it: from then on it is the weight. `settle` goes back as soon as nobody else holds the tensor or
    another one of the same memory, so a write through either cannot be missed.

    torch.compile looks through all buffers while it traces. That changes nothing, except that the
    first trace settles: a program compiled from the plain form goes on reading that.
    """

    def __init__(self, entries: Mapping[str, Tensor | None] | None = None) -> None:
        super().__init__(entries or {})
        self.packed: PackedWeight | None = None
        self._traced = False
        self._early: _Early | None = None

    def for_product(self) -> PackedWeight | None:
        """`packed`, or what `settle` gives. This asks of a weight that was settled before only what
        can have changed, for a small product waits for it."""
        early = self._early
        if self.packed is not None or early is None or TracingContext.try_get() is not None:
            return self.packed or self.settle()
        weight = cast(Tensor, dict.__getitem__(self, "weight"))
        device = torch._C._cuda_getDevice()
        if (
            weight.get_device() == device
            and (weight.is_inference() or weight._version == early.version)
            and torch._C._cuda_getCurrentRawStream(device) in early.streams
        ):
            return early.weight
        return self.settle()

    def settle(self, cut: bool = False) -> PackedWeight | None:
        """Packs a plain weight if the layer alone holds it, or, with cut, leaves it to the others.

        Returns:
            The packed weight, or a plain one of CUDA as a packed one of the same memory; None where
            others hold the plain one or there are no kernels.
        """
        with _LOCK:
            entry = dict.get(self, "weight")
            if entry is None or type(entry) is not Tensor or entry.device.type not in _DEVICES:
                return self.packed
            if entry.is_cuda and entry.shape[-1] % 16 == 0 == entry.storage_offset() % 16:
                del entry
                return self._settle_in_place()
            del entry
            if not cut and _holders(self) != _ALONE:
                return self.packed
            weight = cast(Tensor, dict.__getitem__(self, "weight"))
            self.packed = pack_weight_int8(weight.t())
            dict.__setitem__(self, "weight", None)
            return self.packed

    def _settle_in_place(self) -> PackedWeight | None:
        if TracingContext.try_get() is not None:
            return None  # compiled programs read the plain one, whose address they know
        weight = cast(Tensor, dict.__getitem__(self, "weight"))
        if weight.device.index != torch.cuda.current_device():
            return None  # is a graph being captured there? Torch does not say
        version = 0 if weight.is_inference() else weight._version
        if self._early is not None and self._early.version != version:
            self._early = None  # a compiled program wrote it
        capturing = torch.cuda.is_current_stream_capturing()
        if self._early is None:
            if capturing or not weight.is_contiguous():
                return None
            del weight
            if _holders(self) != _ALONE:
                return None
            weight = cast(Tensor, dict.__getitem__(self, "weight"))
            with torch.no_grad():
                self._early = _Early(in_place(weight), version)
        # Of each stream, for the writer's may be any. A graph begins with all before it complete.
        if not capturing:
            stream = torch._C._cuda_getCurrentRawStream(weight.device.index)
            if stream not in self._early.streams:
                try:
                    torch.ops.scaled_mm._settle(weight)
                except (NotImplementedError, RuntimeError):
                    return None  # no kernels for this GPU: the product will say so
                self._early.streams.add(stream)
        return self._early.weight

    def lend(self) -> None:
        """Makes the weight plain."""
        with _LOCK:
            self._early = None
            if self.packed is not None:
                dict.__setitem__(self, "weight", _plain(self.packed))
                self.packed = None

    def __getitem__(self, key: str) -> Tensor | None:
        if key == "weight" and self.packed is not None:
            if torch.compiler.is_compiling():  # a program that reads the weight gets a copy
                return rows(self.packed)
            self.lend()
        if key == "weight" and not torch.compiler.is_compiling():
            self._early = None
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Tensor | None) -> None:
        with _LOCK:
            super().__setitem__(key, value)
            if key == "weight":
                self.packed = self._early = None

    def __delitem__(self, key: str) -> None:
        with _LOCK:
            super().__delitem__(key)
            if key == "weight":
                self.packed = self._early = None

    get = Mapping.get  # type: ignore[assignment]
    pop = MutableMapping.pop
    update = MutableMapping.update
    setdefault = MutableMapping.setdefault

    def items(self) -> ItemsView[str, Tensor | None]:  # type: ignore[override]
        self._looked_through()
        return super().items()

    def values(self) -> ValuesView[Tensor | None]:  # type: ignore[override]
        self._looked_through()
        return super().values()

    def _looked_through(self) -> None:
        if TracingContext.try_get() is None:
            self.lend()
        elif not self._traced and not torch.compiler.is_exporting():
            self._traced = True
            self.settle()

    def copy(self) -> OneWeight:
        """Of the plain form: another dict of the same tensors."""
        self.lend()
        return OneWeight(dict(super().items()))

    def __deepcopy__(self, memo: dict[int, Any]) -> OneWeight:
        made = OneWeight(copy.deepcopy(dict(super().items()), memo))
        made.packed = copy.deepcopy(self.packed, memo)
        return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Files hold the plain form: the layout is this machine's and this version's."""
        self._early = None
        entries = dict(super().items())
        if self.packed is not None:
            entries["weight"] = _plain(self.packed)
        return OneWeight, (entries,)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


class _Early:
    """A plain weight of CUDA as a packed one, until somebody else may write it."""

    def __init__(self, weight: PackedWeight, version: int) -> None:
        settle(weight)
        self.weight = weight
        self.version = version  # of the plain tensor
        self.streams: set[int] = set()  # that had an ordinary launch since it was written


def _plain(packed: PackedWeight) -> Tensor:
    with torch.inference_mode(False), torch.no_grad():  # a tensor that may be written anywhere
        return rows(packed)


def _holders(buffers: dict[str, Any]) -> tuple[int, ...]:
    """References to the weight and to its memory, each by Python's and by C++'s count."""
    weight = dict.__getitem__(buffers, "weight")
    memory = weight.untyped_storage()
    return (
        sys.getrefcount(weight),
        weight._use_count(),
        sys.getrefcount(memory),
        torch._C._storage_Use_Count(memory._cdata),
    )


_ALONE = _holders({"weight": torch.empty(1, dtype=torch.int8)})
"""Of a weight that nothing but its dict holds, as this Python and this torch count."""
