"""Experts of a mixture over several processes: each has some of them."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ParallelStyle

from .._torch import become
from ..nn import ScaledExperts
from ..nn.grouped_linear import GroupedLinear
from ..ops.experts import moe_combine, moe_sort


class ExpertParallel(ParallelStyle):
    """Shares out the experts of a `ScaledExperts`: each rank keeps E / ranks of them whole.

    Every rank calls the module with tokens of its own, or all with the same. A token's rows go to
    the ranks that have its experts, and their outputs come back (all-to-all, twice). So every rank
    gets the bits of the module that is not shared out. The numbers of rows that the ranks exchange
    are read by the host.

    Raises:
        TypeError: when it is applied: the module is no `ScaledExperts`.
        ValueError: the mesh has several dimensions, or more ranks than there are experts; the
            experts are shared out already.
    """

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        module = whole_experts(module)
        if device_mesh.ndim != 1:
            raise ValueError(f"mesh must have one dimension, got {device_mesh.ndim}")
        world, rank, experts = device_mesh.size(), device_mesh.get_rank(), module.num_experts
        if world > experts:
            raise ValueError(f"mesh must have at most {experts} ranks, as experts, got {world}")
        ends = [(i + 1) * experts // world for i in range(world)]
        begin = rank * experts // world
        for name in module.layers():
            layer = module.get_submodule(name)
            assert isinstance(layer, GroupedLinear)
            module.set_submodule(name, layer.some(range(begin, ends[rank])))
        become(module, SpreadExperts)
        vars(module).update(mesh=device_mesh, ends=ends, begin=begin)
        module.num_experts = ends[rank] - begin
        return module


def whole_experts(module: nn.Module) -> ScaledExperts:
    """The module; TypeError or ValueError where no style for experts can be applied to it."""
    if not isinstance(module, ScaledExperts):
        raise TypeError(f"module must be a ScaledExperts, got {type(module).__name__}")
    if type(module) is not ScaledExperts or hasattr(module, "share"):
        raise ValueError("module must not be shared out already, got one that is")
    return module


class SpreadExperts(ScaledExperts):
    """A `ScaledExperts` of which this rank has some experts. `ExpertParallel` makes one.

    Attributes:
        mesh: the ranks.
        ends: behind which expert each rank's end.
        begin: this rank's first.
    """

    mesh: DeviceMesh
    ends: list[int]
    begin: int

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        experts, group = top_k_index.contiguous(), self.mesh.get_group()
        ends = torch.tensor(self.ends, device=experts.device, dtype=experts.dtype)
        to = torch.searchsorted(ends, experts, right=True)
        tokens, offsets, places = moe_sort(to, len(self.ends))
        sent = offsets.diff(prepend=offsets.new_zeros(1))
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent, group=group)
        there, back = sent.tolist(), got.tolist()

        def bring(x: Tensor, given: list[int], wanted: list[int]) -> Tensor:
            made = x.new_empty((sum(wanted), *x.shape[1:]))
            dist.all_to_all_single(made, x.contiguous(), wanted, given, group=group)
            return made

        rows = bring(hidden_states[tokens], there, back)
        sorted_ = experts.new_empty(len(tokens)).index_put((places.long(),), experts)
        index = bring(sorted_, there, back).unsqueeze(-1) - self.begin
        y = super().forward(rows, index, torch.ones_like(index, dtype=torch.float32))
        return moe_combine(bring(y, back, there), top_k_weights, places)

    def extra_repr(self) -> str:
        return f"experts {self.begin} to {self.begin + self.num_experts - 1} of {self.ends[-1]}"
