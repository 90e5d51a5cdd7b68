"""`ScaledGroupedLinear`, `WeightOnlyGroupedLinear`: the quantised Linears of many experts in one
layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from ..lowbit.grouped import GroupedWeight
from ..lowbit.stored import plain, stored
from ..ops.azp import azp_adj
from ..ops.experts import grouped_mm
from ..ops.int8 import pack_weight_int8
from ..ops.mixed import grouped_mixed_mm
from ..ops.mixed_weight import MixedWeight, pack_weight
from ..ops.packed_weight import PackedWeight
from ..ops.quantize import quantize_int8
from .packed_layer import PackedLayer
from .scaled_linear import ScaledLinear
from .weight_only_linear import WeightOnlyLinear

Grouped = TypeVar("Grouped", bound="GroupedLinear")
States = Sequence[Sequence[dict[str, Any]]]
"""Of each expert the state dicts of its parts."""


class GroupedLinear(PackedLayer):
    """E quantised Linears of one shape and scheme, each for its own rows of the input.

        y[i] = linear_e(x[rows[i]]),   offsets[e - 1] <= i < offsets[e]

    with the bits of those layers. An expert's may have two parts, gate and up, whose rows lie one
    part behind the other or in turns: the latter is what a gated activation takes. All buffers
    [E, ...] are in the state dict; the weight is kept once, packed. Make one with `stacked`.

    Attributes:
        parts: of an expert.
        in_turns: whether their rows lie so.
    """

    parts: int
    in_turns: bool

    @property
    def experts(self) -> int:
        held = self.packed.data if self.packed is not None else self._buffers[self._SCALES]
        assert held is not None
        return len(held)

    @classmethod
    def stacked(
        cls: type[Grouped], experts: Sequence[Sequence[nn.Module]], in_turns: bool = False
    ) -> Grouped:
        """A layer of those of E experts.

        Args:
            experts: of each expert its parts, which have one input. One shape and scheme for all.
            in_turns: whether the rows of parts are to lie in turns.

        Raises:
            ValueError: a layer has what a stack has no place for: smoothing, act-order, float zero
                points, one dynamic scale over all tokens; or the parts of an expert quantise their
                input by different static scales.
        """
        layer = cls()
        layer.parts, layer.in_turns = len(experts[0]), in_turns
        layer._begin()
        layer._fill(experts[0][0], [[part.state_dict() for part in expert] for expert in experts])
        layer._absent_last()
        return layer.pack()

    @abstractmethod
    def _fill(self, first: Any, states: States) -> None:
        """Makes attributes and buffers, of the first layer and of all state dicts."""

    def _rows(self, states: States, name: str) -> Tensor | None:
        """What every layer has for each of its rows, for all experts."""
        if name not in states[0][0]:
            return None
        return torch.stack([self._joined([part[name] for part in each]) for each in states])

    def _joined(self, parts: Sequence[Tensor]) -> Tensor:
        """Rows of an expert's parts as the layer has them."""
        if len(parts) == 1:
            return parts[0]
        parts = list(parts)
        return torch.stack(parts, 1).flatten(0, 1) if self.in_turns else torch.cat(parts)

    def _own(self, rows: Tensor, part: int) -> Tensor:
        """Those of a part."""
        return rows[part :: self.parts] if self.in_turns else rows.chunk(self.parts)[part]

    def forward(
        self,
        x: Tensor,
        offsets: Tensor,
        *,
        rows: Tensor | None = None,
        activation: str | None = None,
    ) -> Tensor:
        """y [T', N] of x's dtype; [T', N/2] with a gated activation.

        Args:
            x: float [T, K].
            offsets: int32 [E], where the rows of each expert end.
            rows: int32 [T'], the row of x that each sorted row is; None: x is sorted itself.
            activation: as for `grouped_mm`.
        """
        return self.product(x, offsets, rows, activation)

    @abstractmethod
    def product(
        self, x: Tensor, offsets: Tensor, rows: Tensor | None, activation: str | None
    ) -> Tensor:
        """What `forward` returns."""

    @abstractmethod
    def linear(self, expert: int, part: int = 0) -> nn.Module:
        """One expert's layer, or a part of it: a copy."""

    def some(self: Grouped, experts: Iterable[int]) -> Grouped:
        """The layer of some of its experts: a copy."""
        own = [[self.linear(e, part) for part in range(self.parts)] for e in experts]
        return type(self).stacked(own, self.in_turns)


class ScaledGroupedLinear(GroupedLinear):
    """`GroupedLinear` of `ScaledLinear`s.

    Buffers:
        weight            int8 [E, N, K]
        weight_scale      float32 [E, N]
        bias              float32 [E, N], or None
        azp_adj           int32 [E, N], asymmetric
        input_scale       float32 [E], static
        input_zero_point  int32 [E], static asymmetric
    """

    _WEIGHT: ClassVar = ("weight",)
    _SCALES: ClassVar = "weight_scale"
    _FOLLOWS: ClassVar = False

    weight: Tensor
    weight_scale: Tensor
    bias: Tensor | None
    azp_adj: Tensor | None
    input_scale: Tensor | None
    input_zero_point: Tensor | None

    def _fill(self, first: ScaledLinear, states: States) -> None:
        if first.dynamic and not first.per_token:
            raise ValueError("experts must be dynamic per token or static, got one dynamic scale")
        if first.input_smooth is not None:
            raise ValueError("experts must not be smoothed, got input_smooth")
        self.dynamic, self.symmetric, self.rotate = first.dynamic, first.symmetric, first.rotate
        for name in ("weight", "weight_scale", "bias"):
            self.register_buffer(name, self._rows(states, name))
        self.weight_scale = self.weight_scale.squeeze(-1)
        self.register_buffer("azp_adj", None if first.symmetric else _sums(self.weight))
        for name in ("input_scale", "input_zero_point"):
            self.register_buffer(name, _of_inputs(name, states))

    def linear(self, expert: int, part: int = 0) -> ScaledLinear:
        weight = self._weight(expert)
        state = {"weight": self._own(weight, part)}
        for name in ("weight_scale", "bias", "input_scale", "input_zero_point"):
            if (x := self._buffers[name]) is not None:
                state[name] = self._own(x[expert], part) if x.ndim > 1 else x[expert].view(1)
        state["weight_scale"] = state["weight_scale"].unsqueeze(-1)
        n, k = state["weight"].shape
        layer = ScaledLinear(
            k,
            n,
            "bias" in state,
            dynamic=self.dynamic,
            symmetric=self.symmetric,
            rotate=self.rotate or None,
            device="meta",
        )
        if self.rotate:
            state["input_rotate"] = torch.tensor([self.rotate], dtype=torch.int32)
        copies = {key: x.clone(memory_format=torch.contiguous_format) for key, x in state.items()}
        layer.load_state_dict(copies, assign=True)
        return layer

    def _weight(self, expert: int) -> Tensor:
        """int8 [N, K]."""
        if self.packed is None:
            return self.weight[expert]
        packed: PackedWeight = self.packed
        return packed.on(packed.data[expert]).unpack().t()

    def pack(self) -> ScaledGroupedLinear:
        if self.packed is None and not self.weight.is_meta:
            self._hold(pack_weight_int8(self.weight.mT))
        return self

    def _plain(self, packed: PackedWeight) -> dict[str, Tensor]:
        return {"weight": packed.unpack().mT}

    def product(
        self, x: Tensor, offsets: Tensor, rows: Tensor | None, activation: str | None
    ) -> Tensor:
        if self.input_scale is not None:  # each expert has its own for the same token
            x, rows = (x if rows is None else x[rows]), None
        q, scale, azp = self.quantize_input(x, offsets)
        return grouped_mm(
            q,
            self._current(),
            offsets,
            scale,
            self.weight_scale,
            bias=self.bias,
            azp=azp,
            azp_adj=self.azp_adj,
            activation=activation,
            out_dtype=x.dtype,
            rows=rows,
        )

    def quantize_input(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """q int8 [T, K], scale and zero point of its rows; static, of rows that are sorted."""
        options: dict[str, Any] = {"symmetric": self.symmetric, "rotate": self.rotate or None}
        if self.input_scale is not None:
            expert = experts_of(offsets, len(x))
            options["scale"] = self.input_scale[expert]
            if self.input_zero_point is not None:
                options["azp"] = self.input_zero_point[expert]
        return quantize_int8(x, **options)

    def extra_repr(self) -> str:
        e, n = self.weight_scale.shape
        return (
            f"experts={e}, out_features={n}, bias={self.bias is not None}, "
            f"dynamic={self.dynamic}, symmetric={self.symmetric}"
        )


class WeightOnlyGroupedLinear(GroupedLinear):
    """`GroupedLinear` of `WeightOnlyLinear`s.

    Buffers: weight_packed, weight_scale, weight_zero_point and bias of `WeightOnlyLinear`, [E, ...]
    each.
    """

    _WEIGHT: ClassVar = ("weight_packed", "weight_scale", "weight_zero_point")
    _SCALES: ClassVar = "weight_scale"
    _FOLLOWS: ClassVar = True

    weight_packed: Tensor
    weight_scale: Tensor
    weight_zero_point: Tensor | None
    bias: Tensor | None

    def _fill(self, first: WeightOnlyLinear, states: States) -> None:
        for what, there in (
            ("act-order", first.act_order),
            ("float zero points", first.zero == "float"),
            ("pre_scale", first.pre_scale is not None),
            ("int8_input", first.int8_input is not None),
        ):
            if there:
                raise ValueError(f"experts must have no {what}, which a stack has no place for")
        self.bits, self.in_features = first.bits, first.in_features
        made = []
        for each in states:
            parts = [self._unpacked(part) for part in each]
            made.append(stored(_by_rows(self._joined, *parts), self.bits))
        for name in self._WEIGHT:
            stack = torch.stack([each[name] for each in made]) if name in made[0] else None
            self.register_buffer(name, stack)
        self.register_buffer("bias", self._rows(states, "bias"))

    def _unpacked(self, state: dict[str, Any]) -> GroupedWeight:
        packed, scales, zeros = (state.get(name) for name in self._WEIGHT)
        assert packed is not None and scales is not None
        return plain(packed, scales, zeros, bits=self.bits, k=self.in_features)

    def _weight(self, expert: int) -> GroupedWeight:
        if self.packed is None:
            held = ((name, self._buffers[name]) for name in self._WEIGHT)
            return self._unpacked({name: x[expert] for name, x in held if x is not None})
        q, scales, zeros, _ = self.packed[expert].unpack()
        return GroupedWeight(q, scales, zeros)

    def linear(self, expert: int, part: int = 0) -> WeightOnlyLinear:
        weight = _by_rows(lambda x: self._own(x[0], part), self._weight(expert))
        bias = None if self.bias is None else self._own(self.bias[expert], part)
        return WeightOnlyLinear.from_grouped(weight, bits=self.bits, bias=bias)

    def pack(self) -> WeightOnlyGroupedLinear:
        if self.packed is None and not self.weight_packed.is_meta:
            weights = [self._weight(e) for e in range(len(self.weight_scale))]
            made = [pack_weight(w.q, w.scales, zeros=w.zeros, bits=self.bits) for w in weights]
            self._hold(MixedWeight.stack(made))
        return self

    def _plain(self, packed: MixedWeight) -> dict[str, Tensor]:
        made = [stored(self._weight(e), self.bits) for e in range(len(packed.data))]
        return {name: torch.stack([each[name] for each in made]) for name in made[0]}

    def product(
        self, x: Tensor, offsets: Tensor, rows: Tensor | None, activation: str | None
    ) -> Tensor:
        """x is brought to the scales' dtype, y back to x's."""
        return grouped_mixed_mm(
            x.to(self._dtype),
            self._current(),
            offsets,
            bias=self.bias,
            activation=activation,
            rows=rows,
        ).to(x.dtype)

    def extra_repr(self) -> str:
        return (
            f"bits={self.bits}, in_features={self.in_features}, bias={self.bias is not None}, "
            f"dtype={str(self._dtype)[6:]}"
        )


def stacked(experts: Sequence[Sequence[nn.Module]], in_turns: bool) -> GroupedLinear:
    """The `GroupedLinear` of layers, by what these are."""
    known = {ScaledLinear: ScaledGroupedLinear, WeightOnlyLinear: WeightOnlyGroupedLinear}
    kind = type(experts[0][0])
    if kind not in known:
        names = " or ".join(each.__name__ for each in known)
        raise ValueError(f"experts must be {names}, got {kind.__name__}")
    return known[kind].stacked(experts, in_turns)


def experts_of(offsets: Tensor, count: int) -> Tensor:
    """int64 [count]: of each sorted row its expert; the last one, of rows that are no expert's."""
    places = torch.arange(count, device=offsets.device, dtype=offsets.dtype)
    return torch.searchsorted(offsets, places, right=True).clamp(max=len(offsets) - 1)


def _by_rows(make: Callable[[Sequence[Tensor]], Tensor], *weights: GroupedWeight) -> GroupedWeight:
    """A weight whose output channels `make` makes of those of others, part by part."""
    q, scales, zeros = (
        None if x[0] is None else make([part.t() for part in x]).t()
        for x in zip(*weights, strict=True)
    )
    assert q is not None and scales is not None
    return GroupedWeight(q, scales, zeros)


def _sums(weight: Tensor) -> Tensor:
    """Column sums [E, N] of [E, N, K]."""
    return torch.cat([azp_adj(w.t()) for w in weight])


def _of_inputs(name: str, states: States) -> Tensor | None:
    """One for each expert, whose parts must agree."""
    if name not in states[0][0]:
        return None
    for expert, (first, *others) in enumerate(states):
        for other in others:
            if not first[name].is_meta and not torch.equal(first[name], other[name]):
                got = f"{first[name].item():g} and {other[name].item():g} at expert {expert}"
                raise ValueError(f"{name} must be one for gate and up, which share it, got {got}")
    return torch.cat([expert[0][name] for expert in states])
