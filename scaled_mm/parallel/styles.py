"""The styles that `parallelize_module` takes for quantised layers."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Placement, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    ParallelStyle,
    RowwiseParallel,
    parallelize_module,
)

from .._torch import become
from ..nn import ScaledLinear, WeightOnlyLinear
from ..ops.gradients import wants_gradient
from .layers import RowwiseScaledLinear
from .layouts import as_dtensor, bring
from .shares import INT8_CUTS, Share, Side, check
from .weight_only import RowwiseWeightOnlyLinear, weight_only_part

Quantised = ScaledLinear | WeightOnlyLinear
_ROWWISE = {ScaledLinear: RowwiseScaledLinear, WeightOnlyLinear: RowwiseWeightOnlyLinear}


class QuantizedParallel(ParallelStyle):
    """What both styles do: cut the layer in place, and bring its input and output where they are
    wanted. Layers of torch are left to torch's own style."""

    side: ClassVar[Side]
    takes: ClassVar[Placement]
    """How the cut layer's forward takes its input, and how it gives its output."""
    gives: ClassVar[Placement]
    of_torch: ClassVar[type[ColwiseParallel] | type[RowwiseParallel]]

    def __init__(
        self,
        *,
        input_layouts: Placement | None = None,
        output_layouts: Placement | None = None,
        use_local_output: bool = True,
    ) -> None:
        super().__init__()
        self.input_layouts = input_layouts or self.takes
        self.output_layouts = output_layouts or self.gives
        self.use_local_output = use_local_output

    def _apply(self, module: nn.Module, device_mesh: DeviceMesh) -> nn.Module:
        if isinstance(module, (nn.Linear, nn.Embedding)):
            style = self.of_torch(
                input_layouts=self.input_layouts,
                output_layouts=self.output_layouts,
                use_local_output=self.use_local_output,
            )
            return parallelize_module(module, device_mesh, style, src_data_rank=self.src_data_rank)
        if not isinstance(module, Quantised):
            raise TypeError(
                "module must be a ScaledLinear, WeightOnlyLinear, nn.Linear or nn.Embedding, "
                f"got {type(module).__name__}"
            )
        if (before := getattr(module, "share", None)) is not None:
            raise ValueError(f"module must not be cut already, got one of {before.world} shares")
        features = getattr(module, self.side.value)
        group = getattr(module, "group_size", 0) or getattr(module, "rotate", 0) or 1
        share = self.share(type(module), features, group, device_mesh)
        with torch.no_grad():
            _become(module, cut(module, share))
        self.finish(module, share, device_mesh)
        return module

    def share(self, kind: type, features: int, group: int, mesh: DeviceMesh) -> Share:
        """This rank's part of the features of a whole layer, of int4 in groups of `group` rows.

        Raises:
            ValueError: the layer cannot be cut so.
        """
        share = Share.of(self.side, features, mesh)
        check(kind, share, group)
        return share

    def finish(self, layer: nn.Module, share: Share, mesh: DeviceMesh) -> None:
        """Makes a layer of this rank's features work together with those of the other ranks."""
        if self.side is Side.IN:
            become(layer, next(made for kind, made in _ROWWISE.items() if isinstance(layer, kind)))
            if isinstance(layer, RowwiseWeightOnlyLinear) and not hasattr(layer, "order"):
                layer.register_buffer("order", None)
            layer.mesh = mesh  # type: ignore[assignment]
            layer.whole_features = share.size  # type: ignore[assignment]
        features = {side: getattr(layer, side.value) for side in Side} | {share.side: share.size}
        layer.register_forward_pre_hook(partial(self._enter, mesh, features[Side.IN]))
        layer.register_forward_hook(partial(self._leave, mesh, features[Side.OUT]))
        layer.share = share  # type: ignore[assignment]

    def _enter(self, mesh: DeviceMesh, features: int, layer: nn.Module, inputs: Any) -> Any:
        x, *rest = inputs
        if wants_gradient(x, layer.bias):
            raise ValueError("x must not require grad where ranks have parts of a layer, got one")
        return (bring(x, mesh, self.input_layouts, self.takes, features), *rest)

    def _leave(
        self, mesh: DeviceMesh, features: int, layer: nn.Module, inputs: Any, y: Tensor
    ) -> Tensor:
        if self.use_local_output:
            return bring(y, mesh, self.gives, self.output_layouts, features)
        whole = as_dtensor(y, mesh, self.gives, features)
        return whole.redistribute(mesh, (self.output_layouts,))

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(input_layouts={self.input_layouts}, "
            f"output_layouts={self.output_layouts}, use_local_output={self.use_local_output})"
        )


class ColwiseQuantizedParallel(QuantizedParallel):
    """Shares out the output features N of a `ScaledLinear` or `WeightOnlyLinear`, as torch's
    `ColwiseParallel` does those of an `nn.Linear`, which it takes too.

    Each rank has the scales, bias and zero-point terms of its columns and computes them as the
    whole layer would; no rank waits for another. A `ScaledLinear` has the bits of the layer that is
    not cut. So has a `WeightOnlyLinear` on the CPU; on a GPU, where the kernel depends on N, it
    keeps within the bound of docs/lowbit.md.

    Args:
        input_layouts: how the input lies over the ranks: a tensor that is no DTensor is taken to
            lie so. Default `Replicate()`.
        output_layouts: how the output is wanted. Default `Shard(-1)`: each rank its columns.
        use_local_output: give this rank's tensor (the default), or a DTensor.

    Raises:
        ValueError: when it is applied: the mesh has several dimensions; the layer is cut already.
        TypeError: the module is no such layer.

    Columns are cut as `torch.chunk` does, so N need not be a multiple of the ranks. Every rank
    must hold the same layer: nothing is sent, whatever `src_data_rank` says.
    """

    side = Side.OUT
    takes, gives = Replicate(), Shard(-1)
    of_torch = ColwiseParallel


class RowwiseQuantizedParallel(QuantizedParallel):
    """Shares out the input features K of a `ScaledLinear` or `WeightOnlyLinear`, as torch's
    `RowwiseParallel` does those of an `nn.Linear`, which it takes too.

    | layer | ranks exchange | result |
    |---|---|---|
    | `ScaledLinear` | int32 sums; before, if dynamic, the range of each token | the same bits |
    | `WeightOnlyLinear` | float32 sums; before, with act-order, the activations | within a bound |

    "The same bits" are those of the layer that is not cut: integer sums do not depend on their
    order, and what follows them (zero points, scales, bias) is done once, on the whole sum. The
    bound is in docs/lowbit.md.

    Args:
        input_layouts: as for `ColwiseQuantizedParallel`. Default `Shard(-1)`: each rank brings its
            features, such as a layer that is cut by columns puts out.
        output_layouts: default `Replicate()`: every rank has the sum.
        use_local_output: give this rank's tensor (the default), or a DTensor.

    Raises:
        ValueError: when it is applied: the mesh has several dimensions; the layer is cut already;
            K that is not cut at multiples of the group, where there are several.
        TypeError: the module is no such layer.

    Features are cut as `torch.chunk` does. Every rank must hold the same layer: nothing is sent,
    whatever `src_data_rank` says.
    """

    side = Side.IN
    takes, gives = Shard(-1), Replicate()
    of_torch = RowwiseParallel


def cut(layer: Quantised, share: Share) -> Quantised:
    """A layer of this rank's features."""
    if isinstance(layer, WeightOnlyLinear):
        return weight_only_part(layer, share)
    features = {side: getattr(layer, side.value) for side in Side} | {share.side: share.count}
    made = ScaledLinear(
        features[Side.IN],
        features[Side.OUT],
        layer.bias is not None,
        dynamic=layer.dynamic,
        symmetric=layer.symmetric,
        per_token=layer.per_token,
        smooth=layer.input_smooth is not None,
        rotate=layer.rotate,
        device=layer.weight_scale.device,
    )
    if layer.folded_smooth is not None:  # not in the state dict
        made.folded_smooth = _part(layer.folded_smooth, "folded_smooth", share)
    state = {name: _part(x, name, share) for name, x in layer.state_dict().items()}
    made.load_state_dict(state, assign=True)
    return made


def _part(x: Tensor, name: str, share: Share) -> Tensor:
    """This rank's part of a tensor, in memory of its own."""
    cut = INT8_CUTS[share.side].get(name)
    part = None if cut is None else share.within(cut, tuple(x.shape))
    own = x if part is None else x.narrow(part.axis, part.begin, part.end - part.begin)
    return own.clone()


def _become(layer: nn.Module, made: nn.Module) -> None:
    """Turns a layer into another in place, for whoever holds it. Its hooks and its mode stay."""
    kept = {name: x for name, x in vars(layer).items() if "hook" in name or name == "training"}
    vars(layer).update({**vars(made), **kept})
