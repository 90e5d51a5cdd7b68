"""`Together`: layers that read one tensor, by one quantiser and one product."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from .._torch import COUNTS_WRITES, is_exporting
from ..ops.packed_weight import PackedWeight, settle, settle_written

if TYPE_CHECKING:
    from .scaled_linear import ScaledLinear

_PANEL = 16  # columns that lie together in the CPU's layout
_JOINED = ("weight_scale", "bias", "azp_adj", "azp_with_adj")
_SHARED = ("input_scale", "input_zero_point", "input_smooth")
_PARTS = ("kernel_weight", *_JOINED)
_NAMES = {*_PARTS, *_SHARED}


@dataclass(eq=False)
class Held:
    """What the other layers are waiting to be asked for."""

    x: Tensor
    version: int  # of x
    stream: Any
    parts: dict[ScaledLinear, Tensor]


class Together:
    """`ScaledLinear`s of one scheme, all of which are called with the same tensor.

    The one that is called first multiplies by all their weights, which lie one behind the other in
    one buffer; each layer's own is a part of it, and so are its scales, bias and azp terms. The
    others then find their columns here, as views of one output: where they are given the same
    tensor, not written since, on the same stream. Else a layer computes its own. If the columns of
    some were not asked for, the layers part for good.

    A copied, moved or loaded layer has buffers of its own again: the next call lays all of them out
    anew. A compiled graph has each layer's product by its `Part`s, for a pass to put together.
    """

    def __init__(self, layers: Sequence[ScaledLinear]) -> None:
        self.layers = list(layers)
        self.product: Callable[[Tensor], Tensor] | None = None
        self.parts: list[Part] = []  # of each layer, as it was laid out
        self.versions: list[tuple[Tensor, int]] = []
        self.held: Held | None = None
        for layer in self.layers:
            layer.together = self

    def __getstate__(self) -> dict[str, Any]:
        """Of pickles and copies, whose layers have other buffers."""
        return {**vars(self), "product": None, "parts": [], "versions": [], "held": None}

    def output(self, layer: ScaledLinear, x: Tensor) -> Tensor | None:
        """The layer's, of an x that it may take; None: it has to compute that alone."""
        if x.is_inference():  # whose versions nobody counts
            return None
        stream = torch.accelerator.current_stream(x.get_device()) if x.is_cuda else None
        held = self.held
        if held is not None:
            same = held.x is x and held.version == x._version and held.stream == stream
            y = held.parts.pop(layer, None) if same else None
            if not held.parts:
                self.held = None
            if y is not None:
                return y
        if self.held is not None or not (self.is_laid_out() or self.lay_out()):
            self.leave()
            return None
        assert self.product is not None
        whole = self.product(x)
        parts = dict(zip(self.layers, whole.split_with_sizes(self.widths, -1), strict=True))
        y = parts.pop(layer)
        self.held = Held(x, x._version, stream, parts)
        return y

    def leave(self) -> None:
        """The layers are on their own again."""
        self.held = self.product = None
        for layer in self.layers:
            layer.together = layer.part = None

    def is_laid_out(self) -> bool:
        for layer, part in zip(self.layers, self.parts, strict=False):  # without any, no product
            if layer.part is not part:
                return False
            own = map(layer._buffers.get, part.buffers)
            if not all(map(operator.is_, own, part.buffers.values())):
                return False
        for tensor, version in self.versions:
            if tensor._version != version:
                return False
        return self.product is not None

    def lay_out(self) -> bool:
        """Puts the weights, and what goes with their columns, into one buffer each, if the layers
        have one scheme."""
        layers = self.layers
        if not fit(layers):
            return False
        packed = [layer.packed for layer in layers]
        with torch.inference_mode(False), torch.no_grad():
            data = torch.cat([each.data for each in packed if each is not None])
            whole = PackedWeight(data, layers[0].in_features, sum(x.out_features for x in layers))
            settle_written(whole)
            sizes = [each.data.numel() for each in packed if each is not None]
            for layer, memory in zip(layers, data.split(sizes), strict=True):
                weight = PackedWeight(memory, layer.in_features, layer.out_features)
                if whole.settled:
                    settle(weight)
                layer._hold(weight)
            self.widths = [layer.out_features for layer in layers]
            joined = {name: self._join(name) for name in _JOINED}
        self.product = layers[0].product_with(whole, joined)
        self.parts = self._parts()
        for layer, own in zip(layers, self.parts, strict=True):
            layer.part = own
        shared = [own.buffers[name] for own in self.parts for name in _SHARED]
        self.versions = [(x, x._version) for x in shared if x is not None and not x.is_inference()]
        return True

    def _parts(self) -> list[Part]:
        buffers: list[dict[str, Any]] = [
            {name: layer._buffers[name] for name in (*_PARTS, *_SHARED)} for layer in self.layers
        ]
        parts = [Part(self.layers[0], buffers[0], own, {}) for own in buffers]
        for name in _PARTS:
            if buffers[0][name] is None:
                continue
            dim, begin = _dim(name), 0
            sizes = [own[name].shape[dim] for own in buffers]
            for part, size in zip(parts, sizes, strict=True):
                part.spans[name] = dim, sum(sizes), begin, size
                begin += size
        return parts

    def _join(self, name: str) -> Tensor | None:
        """A buffer with an element for each output, of all layers, whose own become its parts."""
        own: list[Any] = [layer._buffers[name] for layer in self.layers]
        if own[0] is None:
            return None
        dim = _dim(name)
        whole = torch.cat(own, dim)
        for layer, part in zip(self.layers, whole.split(self.widths, dim), strict=True):
            layer._buffers[name] = part
        return whole


class Part(NamedTuple):
    """A layer's buffers, and where they lie in those that all share."""

    first: ScaledLinear  # the layer whose buffers lie first
    first_buffers: dict[str, Tensor | None]  # its buffers, as they were laid out
    buffers: dict[str, Tensor | None]  # the layer's own
    spans: dict[str, tuple[int, int, int, int]]  # of each part: dimension, size of all, begin, size

    def is_there(self, layer: ScaledLinear) -> bool:
        """Whether the layer's buffers, and the first's, still are those that were laid out. A trace
        asks: what it reads here is asked again at every call."""
        if is_exporting():
            return False
        for one, buffers in ((layer, self.buffers), (self.first, self.first_buffers)):
            for name in self.spans:
                if one._buffers.get(name) is not buffers[name]:
                    return False
        return True

    def buffer(self, layer: ScaledLinear, name: str) -> Tensor | None:
        """A buffer of the layer's, for a trace: a slice of that which all share."""
        if name not in self.spans:
            return layer._buffers[name]
        dim, size_of_all, begin, size = self.spans[name]
        first = self.first._buffers[name]
        assert first is not None
        sizes = [*first.shape[:dim], size_of_all, *first.shape[dim + 1 :]]
        return first.as_strided(sizes, first.stride()).narrow(dim, begin, size)


def _dim(name: str) -> int:
    """Where a buffer has a layer's outputs."""
    return int(name.startswith("azp"))


def fit(layers: Sequence[ScaledLinear]) -> bool:
    """Whether one product can stand for theirs: packed on one device, of one scheme."""
    first = layers[0]
    if not COUNTS_WRITES:
        return False
    for layer in layers:
        packed = layer.packed
        if packed is None or packed.data.device != first.weight_scale.device:
            return False
        if not layer._buffers.keys() >= _NAMES:  # a bias has become a parameter
            return False
        if layer is not layers[-1] and packed.data.is_cpu and layer.out_features % _PANEL:
            return False
        if scheme_of(layer) != scheme_of(first):
            return False
        if not all(_same(layer._buffers[name], first._buffers[name]) for name in _SHARED):
            return False
    return True


def scheme_of(layer: ScaledLinear) -> tuple[Any, ...]:
    flags = layer.in_features, layer.dynamic, layer.symmetric, layer.per_token, layer.rotate
    return *flags, layer.bias is None


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a is b or (a.device == b.device and torch.equal(a, b))


def version_of(x: Tensor | None) -> int:
    """How often it was written, as far as torch counts that."""
    return 0 if x is None or x.is_inference() else x._version
