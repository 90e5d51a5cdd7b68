"""Experts of a mixture over several processes: each has a part of every expert."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from .._torch import become
from ..nn.grouped_linear import (
    GroupedLinear,
    ScaledGroupedLinear,
    WeightOnlyGroupedLinear,
    experts_of,
)
from ..ops.experts import grouped_mm
from ..ops.mixed import grouped_mixed_mm
from ..ops.packed_weight import PackedWeight
from .experts import whole_experts
from .layers import ranges_quantized
from .layouts import all_reduce
from .shares import Share, Side, check
from .styles import Quantised, cut
from .sums import epilogue_in_torch

_EXACT = 1024
"""Columns of K whose int32 sums float32 holds: 1024 times 128 times 128 is 2^24."""


class ExpertTensorParallel(ParallelStyle):
    """Cuts every expert of a `ScaledExperts` along its inner features I: a rank has the same
    columns of gate and of up, and those rows of down.

    Every rank calls the module with the same tokens. int8 experts exchange int32 sums (and, if
    dynamic, the range of each token), and have the bits of the module that is not cut. Weight-only
    experts exchange float32 sums, as `RowwiseQuantizedParallel` says.

    Raises:
        TypeError: when it is applied: the module is no `ScaledExperts`.
        ValueError: the mesh has several dimensions, or a rank would have no features; I is not cut
            at multiples of the groups or rotated blocks; the experts are shared out already.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = whole_experts(module)
        first, down = (module.get_submodule(name) for name in module.layers())
        assert isinstance(first, GroupedLinear) and isinstance(down, GroupedLinear)
        one = cast(Quantised, down.linear(0))
        inner, world = one.in_features, device_mesh.size()
        shares = {side: Share.of(side, inner, device_mesh) for side in Side}
        share = shares[Side.IN]
        if (world - 1) * -(-inner // world) >= inner:
            raise ValueError(f"mesh must have a feature for each rank, got {world} for {inner}")
        group = getattr(one, "group_size", 0) or getattr(one, "rotate", 0) or 1
        check(type(one), share, group)
        parts = (_part(first, shares[Side.OUT]), _rowwise(_part(down, share), down, device_mesh))
        for name, part in zip(module.layers(), parts, strict=True):
            module.set_submodule(name, part)
        vars(module)["share"] = share
        return module


def _part(layer: GroupedLinear, share: Share) -> GroupedLinear:
    """A layer of a rank's features of every expert."""
    own = [
        [cut(cast(Quantised, layer.linear(e, part)), share) for part in range(layer.parts)]
        for e in range(layer.experts)
    ]
    return type(layer).stacked(own, layer.in_turns)


def _rowwise(part: GroupedLinear, whole: GroupedLinear, mesh: DeviceMesh) -> GroupedLinear:
    if isinstance(part, ScaledGroupedLinear):
        assert isinstance(whole, ScaledGroupedLinear)
        become(part, RowwiseScaledGroupedLinear)
        part.azp_adj = None if whole.azp_adj is None else whole.azp_adj.clone()
    else:
        become(part, RowwiseWeightOnlyGroupedLinear)
    vars(part)["mesh"] = mesh
    return part


class RowwiseScaledGroupedLinear(ScaledGroupedLinear):
    """A `ScaledGroupedLinear` of which this rank has some of the K input features of every expert:
    `RowwiseScaledLinear` for each. Its azp_adj is that of the whole layer.

    Attributes:
        mesh: the ranks that share the features.
    """

    mesh: DeviceMesh

    def quantize_input(self, x: Tensor, offsets: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.input_scale is not None:
            return super().quantize_input(x, offsets)
        return ranges_quantized(x, self.mesh, symmetric=self.symmetric, rotate=self.rotate)

    def product(
        self, x: Tensor, offsets: Tensor, rows: Tensor | None, activation: str | None
    ) -> Tensor:
        assert rows is None and activation is None
        q, scale, azp = self.quantize_input(x, offsets)
        sums = all_reduce(_sums(q, self._current(), offsets), self.mesh)
        expert = experts_of(offsets, len(q))
        y = epilogue_in_torch(
            sums,
            scale,
            self.weight_scale[expert],
            bias=None if self.bias is None else self.bias[expert],
            azp=azp,
            azp_adj=None if self.azp_adj is None else self.azp_adj[expert],
            azp_with_adj=None,
            out_dtype=x.dtype,
        )
        return _theirs(y, offsets)


class RowwiseWeightOnlyGroupedLinear(WeightOnlyGroupedLinear):
    """The same of a `WeightOnlyGroupedLinear`: the sum over ranks and the bias are float32.

    Attributes:
        mesh: the ranks that share the features.
    """

    mesh: DeviceMesh

    def product(
        self, x: Tensor, offsets: Tensor, rows: Tensor | None, activation: str | None
    ) -> Tensor:
        assert rows is None and activation is None
        product = grouped_mixed_mm(x.to(self._dtype), self._current(), offsets)
        y = all_reduce(product.float(), self.mesh)
        if self.bias is not None:
            y += self.bias[experts_of(offsets, len(y))]
        return _theirs(y.to(self._dtype).to(x.dtype), offsets)


def _sums(q: Tensor, b: PackedWeight, offsets: Tensor) -> Tensor:
    """int32 [T, N]: of each row q times its expert's weight, exactly."""
    experts, k, n = b.shape
    one, ones = q.new_ones(1, dtype=torch.float32), q.new_ones(experts, n, dtype=torch.float32)

    def product(a: Tensor, weight: Tensor | PackedWeight) -> Tensor:
        return grouped_mm(a, weight, offsets, one, ones, out_dtype=torch.float32).int()

    if k <= _EXACT:
        return product(q, b)
    plain, total = b.unpack(), q.new_zeros((len(q), n), dtype=torch.int32)
    for begin in range(0, k, _EXACT):
        some = slice(begin, begin + _EXACT)
        total += product(q[:, some], plain[:, some])
    return total


def _theirs(y: Tensor, offsets: Tensor) -> Tensor:
    """y with 0 in the rows that are no expert's."""
    places = torch.arange(len(y), device=y.device)
    return y.masked_fill((places >= offsets[-1]).unsqueeze(1), 0)
