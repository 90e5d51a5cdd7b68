"""How a tensor lies over the ranks, before a layer and behind it; and what the ranks tell each
other."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Shard


def as_dtensor(x: Tensor, mesh: DeviceMesh, placement: Placement, features: int) -> DTensor:
    """This rank's x as what it is a part of.

    `features` are the columns of the whole, so they may be cut unevenly. Of any other axis every
    rank is taken to have as many elements.
    """
    shape = [*x.shape]
    if isinstance(placement, Shard):
        last = placement.dim in (-1, x.dim() - 1)
        shape[placement.dim] = features if last else mesh.size() * x.shape[placement.dim]
    whole = torch.empty(shape, device="meta")
    return DTensor.from_local(
        x, mesh, (placement,), run_check=False, shape=whole.shape, stride=whole.stride()
    )


def bring(
    x: Tensor, mesh: DeviceMesh, given: Placement, wanted: Placement, features: int
) -> Tensor:
    """This rank's part, laid out as `wanted`, of an x that is a DTensor or laid out as `given`."""
    if not isinstance(x, DTensor):
        if given == wanted:
            return x
        x = as_dtensor(x, mesh, given, features)
    return x.redistribute(mesh, (wanted,)).to_local()


def gather_features(x: Tensor, mesh: DeviceMesh, features: int) -> Tensor:
    """The features of all ranks, for every rank."""
    return as_dtensor(x, mesh, Shard(-1), features).full_tensor()


def all_reduce(
    x: Tensor, mesh: DeviceMesh, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> Tensor:
    """x of all ranks, reduced; x itself is overwritten."""
    if x.numel():  # else there is nothing to say, on any rank
        dist.all_reduce(x, op, group=mesh.get_group())
    return x


def agreed_range(x: Tensor, per_token: bool, mesh: DeviceMesh) -> Tensor:
    """Smallest and largest value of each row of all ranks' x, and 0, which every range holds:
    float32 [..., 2]; [2] for all rows together. Infinite where one of the values is not finite.
    """
    if x.numel() == 0:  # this rank has no features, or no rank has rows
        ends = x.new_zeros((*x.shape[:-1], 2) if per_token else (2,), dtype=torch.float32)
    else:
        low, high = torch.aminmax(x, dim=-1) if per_token else torch.aminmax(x)
        ends = torch.stack([-low, high], -1).float()
    # What a maximum over ranks makes of a NaN differs between libraries.
    ends = torch.where(ends.isnan(), torch.inf, ends)
    low, high = all_reduce(ends, mesh, dist.ReduceOp.MAX).unbind(-1)
    return torch.stack([-low, high], -1)
