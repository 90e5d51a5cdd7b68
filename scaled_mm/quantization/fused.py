"""The modules that `fuse_model` puts in: norms and activations that write int8 for Linears."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..nn.produced import Produced

Options = dict[str, Any]


class Fused(nn.Module):
    """A module with everything that another one has, under the same names, and a forward of its
    own. `readers` are in a tuple, so that they are no children of it.

    Before each call it looks whether the readers still take int8 rows. If not, it does what the
    module did that it stands for."""

    readers: tuple[ScaledLinear, ...]
    stands_for: type[nn.Module]
    apart: bool
    """Whether a state dict has made the readers quantise differently."""

    @classmethod
    def of(cls, module: nn.Module, readers: tuple[ScaledLinear, ...], **more: Any) -> Any:
        fused = cls()
        fused.__dict__.update(module.__dict__)
        fused.__dict__.update(readers=readers, stands_for=type(module), apart=False, **more)
        if len(readers) > 1:
            for reader in readers:
                reader.register_load_state_dict_post_hook(partial(_loaded, fused))
        return fused

    def forward(self, x: Tensor) -> Any:
        if self.apart or self._watched() or not all(map(takes_int8, self.readers)):
            return self.stands_for.forward(self, x)
        return self.produce(x)

    def produce(self, x: Tensor) -> Any:
        raise NotImplementedError

    def _watched(self) -> bool:
        """Whether a hook would be shown int8 rows for the module's output."""
        return bool(self._forward_hooks)

    def extra_repr(self) -> str:
        return f"{self.stands_for.__name__} into {len(self.readers)} of int8"


def _loaded(fused: Fused, reader: nn.Module, keys: Any) -> None:
    # A sharded reader is of another class, and asks for no comparison.
    fused.apart = all(map(takes_int8, fused.readers)) and not agree(fused.readers)


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
    """A norm that quantises its output for the `ScaledLinear`s that read it."""

    producer: str
    eps_used: float
    from_one: bool

    def produce(self, x: Tensor) -> Produced:
        weight, bias = (self._vector(name, x) for name in ("weight", "bias"))
        if self.from_one and weight is not None:
            weight = 1 + weight.float()
        given: Options = {"producer": self.producer, "weight": weight, "eps": self.eps_used}
        if self.producer == "layer_norm":
            given["bias"] = bias
        return Produced.make({"x": x}, given | input_options(self.readers[0]))

    def _vector(self, name: str, x: Tensor) -> Tensor | None:
        t = getattr(self, name, None)
        if t is None:
            return None
        return t.detach() if t.dtype in (x.dtype, torch.float32) else t.detach().float()


class FusedActivation(Fused):
    """An activation that quantises its output for the one `ScaledLinear` that reads it."""

    producer: str

    def produce(self, x: Tensor) -> Produced:
        return Produced.make({"x": x}, {"producer": self.producer} | input_options(self.readers[0]))


class FusedGatedMLP(Fused):
    """down(activation(gate(x)) * up(x)), whose product is quantised as it is made. gate, up and
    down are the children that they were."""

    producer: str
    roles: tuple[str, str, str]
    activation: str
    known: tuple[nn.Module, nn.Module]
    """The activation, which is not called, and down."""

    def _watched(self) -> bool:
        """Whether something hangs on the activation, or another module is in a place of `known`."""
        activation, down = self.known
        same = getattr(self, self.activation) is activation
        return not (same and getattr(self, self.roles[2]) is down and unwatched(activation))

    def produce(self, x: Any) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.roles)
        inputs = {"x": gate(x), "times": up(x)}
        return cast(
            Tensor, down(Produced.make(inputs, {"producer": self.producer} | input_options(down)))
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
