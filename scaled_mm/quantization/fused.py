"""The modules that `fuse_model` puts in: norms and activations that write int8 for Linears."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..nn.produced import Produced

Options = dict[str, Any]


@dataclass
class Site:
    """What a fused module knows beside what the module in its place had."""

    readers: tuple[ScaledLinear, ...]
    producer: str
    apart: bool = False
    """Whether a state dict has made the readers quantise differently."""
    eps: float = 0.0
    from_one: bool = False
    """Of a norm: whether its weight counts from 1."""
    normed: bool = False
    """Of a norm: whether others read its output too, so that it writes the floats as well."""
    roles: tuple[str, ...] = ()
    """Of a gated MLP: the names of gate, up, down and the activation."""
    activation: nn.Module | None = None
    """Of a gated MLP: the activation, which is not called."""


class Fused(nn.Module):
    """A module that does what another one did, with everything that this one had, under the same
    names, and is an instance of its class too. The site, and with it the readers, is no child.

    Before each call it looks whether the readers still take int8 rows. If not, it does what the
    module did that it stands for."""

    _site: Site

    @classmethod
    def of(cls, module: nn.Module, site: Site) -> Any:
        fused = _empty(cls, type(module))
        fused.__dict__.update(module.__dict__)
        fused.__dict__["_site"] = site
        if len(site.readers) > 1:
            for reader in site.readers:
                reader.register_load_state_dict_post_hook(partial(_loaded, site))
        return fused

    def __reduce__(self) -> Any:
        state = getattr(self, "__getstate__", lambda: self.__dict__)()
        kind, original = type(self).__bases__
        return _empty, (kind, original), state

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        site = self._site
        alone = len(args) == 1 and not kwargs
        if site.apart or not alone or self._watched() or not all(map(takes_int8, site.readers)):
            return super().forward(*args, **kwargs)  # the other class's
        return self._produce(args[0])

    def _produce(self, x: Any) -> Any:
        raise NotImplementedError

    def _watched(self) -> bool:
        """Whether a hook would be shown int8 rows for the module's output."""
        return bool(self._forward_hooks)

    def extra_repr(self) -> str:
        return f"{type(self).__bases__[1].__name__} into {len(self._site.readers)} of int8"


_CLASSES: dict[tuple[type, type], type] = {}


def _empty(kind: type[Fused], original: type[nn.Module]) -> Any:
    """A module of both classes, without anything yet."""
    made: Any = _CLASSES.get((kind, original))
    if made is None:
        made = type(kind.__name__, (kind, original), {"__module__": kind.__module__})
        _CLASSES[kind, original] = made
    return made.__new__(made)


def _loaded(site: Site, reader: nn.Module, keys: Any) -> None:
    # A sharded reader is of another class, and asks for no comparison.
    site.apart = all(map(takes_int8, site.readers)) and not agree(site.readers)


def takes_int8(reader: nn.Module) -> bool:
    """Whether the layer, as it is now, multiplies the int8 rows that it is given: not if it was
    sharded, if something is called before it, or if another forward stands before its own (as
    where weights are offloaded: they arrive when it is called, and its scales with them)."""
    return (
        type(reader) is ScaledLinear
        and not reader._forward_pre_hooks
        and "forward" not in reader.__dict__
    )


class FusedNorm(Fused):
    """A norm that quantises its output for the `ScaledLinear`s that read it, and writes it as
    floats too where others read it."""

    def _produce(self, x: Tensor) -> Produced:
        site = self._site
        weight, bias = (self._vector(name, x) for name in ("weight", "bias"))
        if site.from_one and weight is not None:
            weight = 1 + weight.float()
        given: Options = {"producer": site.producer, "weight": weight, "eps": site.eps}
        if site.producer == "layer_norm":
            given["bias"] = bias
        return Produced.make({"x": x}, given | input_options(site.readers[0]), site.normed)

    def _vector(self, name: str, x: Tensor) -> Tensor | None:
        t = getattr(self, name, None)
        if t is None:
            return None
        return t.detach() if t.dtype in (x.dtype, torch.float32) else t.detach().float()


class FusedActivation(Fused):
    """An activation that quantises its output for the one `ScaledLinear` that reads it."""

    def _produce(self, x: Tensor) -> Produced:
        site = self._site
        return Produced.make({"x": x}, {"producer": site.producer} | input_options(site.readers[0]))


class FusedGatedMLP(Fused):
    """down(activation(gate(x)) * up(x)), whose product is quantised as it is made. gate, up and
    down are the children that they were."""

    def _watched(self) -> bool:
        """Whether something hangs on the activation, or it or down is another module now."""
        site = self._site
        _, _, down, activation = (getattr(self, name) for name in site.roles)
        same = activation is site.activation
        return not (same and down is site.readers[0] and unwatched(activation))

    def _produce(self, x: Any) -> Tensor:
        site = self._site
        gate, up, down, _ = (getattr(self, name) for name in site.roles)
        inputs = {"x": gate(x), "times": up(x)}
        return cast(
            Tensor, down(Produced.make(inputs, {"producer": site.producer} | input_options(down)))
        )


def input_options(linear: ScaledLinear) -> Options:
    """How the layer quantises its input, as a producer takes it."""
    return {
        "scale": linear.input_scale,
        "azp": linear.input_zero_point,
        "symmetric": linear.symmetric,
        "smooth": linear.input_smooth,
    }


def agree(linears: tuple[ScaledLinear, ...]) -> bool:
    """Whether they quantise their input alike, and by rows or by a scale that is known."""
    first = linears[0]
    if first.dynamic and not first.per_token:
        return False
    mine = input_options(first)
    return all(
        other.dynamic == first.dynamic
        and all(_equal(mine[name], x) for name, x in input_options(other).items())
        for other in linears
    )


def unwatched(*modules: nn.Module) -> bool:
    """Whether nobody has hooked the modules, or put another forward in their own one's place: what
    is called before or after them would get int8 rows for a tensor."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(
        "forward" in module.__dict__ or any(getattr(module, name, None) for name in hooks)
        for module in modules
    )


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        # Offloaded ones have no values, and of two devices neither can see the other's.
        return x is y or (x.device == y.device and not x.is_meta and torch.equal(x, y))
    return bool(x is y or (not isinstance(x, Tensor) and x == y))
