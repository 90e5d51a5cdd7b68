"""How a layer is cut: which features a rank has, and which part of each tensor belongs to them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from torch.distributed.device_mesh import DeviceMesh

from ..nn import MAX_K, WeightOnlyLinear


class Side(Enum):
    """Which features of a layer are shared out among the ranks."""

    OUT = "out_features"
    IN = "in_features"


@dataclass(frozen=True)
class Share:
    """The features [begin, end) of a rank, of `size` in all.

    They are cut as `torch.chunk` and DTensor do: pieces of ceil(size / world), the last ones
    shorter where that does not divide. So what one layer puts out is what the next one takes.
    """

    side: Side
    size: int
    world: int
    begin: int
    end: int

    @classmethod
    def of(cls, side: Side, size: int, mesh: DeviceMesh) -> Share:
        """This rank's."""
        if mesh.ndim != 1:
            raise ValueError(f"device_mesh must have 1 dimension, got {mesh.ndim}")
        world, rank = mesh.size(), mesh.get_local_rank()
        piece = -(-size // world)
        return cls(side, size, world, min(rank * piece, size), min((rank + 1) * piece, size))

    @property
    def count(self) -> int:
        return self.end - self.begin

    def must_be_whole(self, unit: int, what: str) -> None:
        """Refuses a cut through one of the `unit` features that only make sense together."""
        piece = -(-self.size // self.world)
        if piece % unit and self.world > 1:
            raise ValueError(
                f"{self.side.value} must be cut into multiples of {unit} ({what}), got "
                f"{self.size} over {self.world} ranks, {piece} each"
            )

    def within(self, cut: Cut, shape: tuple[int, ...]) -> Part | None:
        """Which part of a tensor of the whole layer it is; None: all of it, for every rank.

        A vector may lie along any axis, [N], [N, 1] or [1, N]; one element stands for all.
        """
        length, count = -(-self.size // cut.unit), math.prod(shape)
        if count == 1 != length:
            return None
        axis = shape.index(length) if count == length and length in shape else cut.axis
        return Part(axis, self.begin // cut.unit, -(-self.end // cut.unit))


@dataclass(frozen=True)
class Cut:
    """Along which axis a tensor has the features, and how many of them to an element."""

    axis: int
    unit: int = 1


@dataclass(frozen=True)
class Part:
    """Elements [begin, end) along an axis."""

    axis: int
    begin: int
    end: int


INT8_CUTS: Mapping[Side, Mapping[str, Cut]] = {
    Side.OUT: {
        "weight": Cut(0),
        "weight_scale": Cut(0),
        "bias": Cut(0),
        "azp_adj": Cut(1),
        "azp_with_adj": Cut(1),
    },
    Side.IN: {"weight": Cut(1), "input_smooth": Cut(0), "folded_smooth": Cut(0)},
}
"""The tensors of a `ScaledLinear` that are cut; the others belong to every rank whole."""


def packed_cuts(side: Side, bits: int, group: int | None) -> Mapping[str, Cut]:
    """Of compressed-tensors' pack-quantized tensors; group None: one for all input features, whose
    scales belong to every rank."""
    if side is Side.IN:
        grouped = ("weight_scale", "weight_zero_point") if group is not None else ()
        return {"weight_packed": Cut(1, 32 // bits)} | dict.fromkeys(grouped, Cut(1, group or 1))
    return {
        "weight_packed": Cut(0),
        "weight_scale": Cut(0),
        "weight_zero_point": Cut(0, 32 // bits),
        "bias": Cut(0),
    }


def words_cuts(side: Side, bits: int, group: int | None, along_k: bool) -> Mapping[str, Cut]:
    """Of AWQ's and GPTQ's tensors, whose words hold neighbours of a row, or along K; group None:
    one for all input features, as for `packed_cuts`."""
    words = 32 // bits
    if side is Side.IN:
        grouped = ("scales", "qzeros") if group is not None else ()
        qweight = Cut(0, words if along_k else 1)
        return {"qweight": qweight} | dict.fromkeys(grouped, Cut(0, group or 1))
    return {
        "qweight": Cut(1, 1 if along_k else words),
        "qzeros": Cut(1, words),
        "scales": Cut(1),
        "bias": Cut(0),
    }


def check(kind: type, share: Share, group: int = 1) -> None:
    """Refuses shares that the kernels could not take.

    Raises:
        ValueError: a share would cut a word or a group, or K is too large for int8.
    """
    if issubclass(kind, WeightOnlyLinear):
        if share.side is Side.IN and group != share.size:  # one group may be cut: it has one scale
            share.must_be_whole(group, "group_size")
    elif share.side is Side.IN:
        if share.size > MAX_K:  # the sum of all ranks could wrap
            raise ValueError(f"in_features must be at most {MAX_K}, got {share.size}")
        share.must_be_whole(group, "rotate")
