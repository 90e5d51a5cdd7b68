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
from ..ops.packed_weight import rows

_LOCK = RLock()  # threads may run a layer while others read its weight
_DEVICES = ("cpu", "cuda")  # that have kernels, and so a layout


class OneWeight(dict[str, "Tensor | None"]):
    """A module's `_buffers`, of which "weight", int8 [N, K], is in one of two forms.

        packed   `packed` is the weight and the entry is None: the kernels' layout, the only copy
        plain    the entry is the weight and `packed` is None: everybody may read and write it

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

    def settle(self, cut: bool = False) -> PackedWeight | None:
        """Packs a plain weight if the layer alone holds it, or, with cut, leaves it to the others.

        Returns:
            The packed weight; None where the plain one stays: others hold it, the device's kernels
            read it as well in place (CUDA, rows of whole 16 bytes), or there are no kernels.
        """
        with _LOCK:
            entry = dict.get(self, "weight")
            if entry is None or type(entry) is not Tensor or entry.device.type not in _DEVICES:
                return self.packed
            # Rows of whole 16 bytes at such an address: on CUDA the kernels read them in place.
            if entry.is_cuda and entry.shape[-1] % 16 == 0 == entry.storage_offset() % 16:
                return self.packed
            del entry
            if not cut and _holders(self) != _ALONE:
                return self.packed
            weight = cast(Tensor, dict.__getitem__(self, "weight"))
            self.packed = pack_weight_int8(weight.t())
            dict.__setitem__(self, "weight", None)
            return self.packed

    def lend(self) -> None:
        """Makes the weight plain."""
        with _LOCK:
            if self.packed is not None:
                dict.__setitem__(self, "weight", _plain(self.packed))
                self.packed = None

    def __getitem__(self, key: str) -> Tensor | None:
        if key == "weight" and self.packed is not None:
            if torch.compiler.is_compiling():  # a program that reads the weight gets a copy
                return rows(self.packed)
            self.lend()
        return super().__getitem__(key)

    def __setitem__(self, key: str, value: Tensor | None) -> None:
        with _LOCK:
            super().__setitem__(key, value)
            if key == "weight":
                self.packed = None

    def __delitem__(self, key: str) -> None:
        with _LOCK:
            super().__delitem__(key)
            if key == "weight":
                self.packed = None

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
        entries = dict(super().items())
        if self.packed is not None:
            entries["weight"] = _plain(self.packed)
        return OneWeight, (entries,)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()


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
