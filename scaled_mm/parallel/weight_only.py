"""`WeightOnlyLinear` over several ranks: its parts, and the layer that adds them up."""

from __future__ import annotations

from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..lowbit.grouped import GroupedWeight
from ..nn import WeightOnlyLinear
from ..nn.weight_only_linear import ACTIVATIONS
from ..ops.mixed import mixed_mm
from .layers import must_have_features
from .layouts import all_reduce, gather_features
from .shares import Share, Side


class RowwiseWeightOnlyLinear(WeightOnlyLinear):
    """A `WeightOnlyLinear` of which this rank has some of the K input features, in whole groups.

        y = activation(sum over ranks of x' W  + bias)

    Each rank's product is rounded to the scales' dtype, which the kernels put out. The sum over
    ranks, the bias and the activation are float32, and are rounded once. docs/lowbit.md has the
    bound on the error.

    Buffers: all but `bias` are this rank's. With a scale for each output channel, every rank has
    all of them. Of an act-order layer a rank has whole groups, whose rows lie in order; `order`,
    int64 [K of this rank], then says which channel of the whole input each is, and x is gathered
    from all ranks first.

    Attributes:
        mesh: the ranks that share the features, one dimension.
        whole_features: K of the whole layer.
    """

    mesh: DeviceMesh
    whole_features: int
    order: Tensor | None

    def forward(self, x: Tensor, *, out: Tensor | None = None) -> Tensor:
        if out is not None:
            raise ValueError("out must be None where ranks share the features, got a Tensor")
        if self.order is not None:
            x = gather_features(x, self.mesh, self.whole_features)[..., self.order]
        must_have_features(x, self.in_features)
        packed = self.filled()
        dtype = packed.data.dtype
        product = mixed_mm(x.to(dtype), packed, pre_scale=self.pre_scale)
        y = all_reduce(product.float(), self.mesh)
        if self.bias is not None:
            y += self.bias
        return ACTIVATIONS[self.activation](y).to(dtype).to(x.dtype)


def weight_only_part(layer: WeightOnlyLinear, share: Share) -> WeightOnlyLinear:
    """A layer of a rank's features, in memory of its own."""
    if layer.int8_input is not None:
        raise ValueError("int8_input must be None in a layer that is cut, got one of W4A8")
    packed = layer.filled()
    q, scales, zeros, order = packed.unpack()
    bias, pre_scale, mine = layer.bias, layer.pre_scale, slice(share.begin, share.end)
    g_idx = None
    if share.side is Side.OUT:
        q, scales = q[:, mine], scales[:, mine]
        zeros = None if zeros is None else zeros[:, mine]
        bias = None if bias is None else bias[mine]
        if order is not None:
            g_idx, q = packed.g_idx(), packed.by_channel(q)
    else:
        q = q[mine]
        if layer.group_size != share.size:  # else one group: its scales are every rank's
            groups = slice(share.begin // layer.group_size, -(-share.end // layer.group_size))
            scales = scales[groups]
            zeros = None if zeros is None else zeros[groups]
        if pre_scale is not None:
            pre_scale = pre_scale[mine] if order is None else pre_scale[order.long()][mine]
    made = WeightOnlyLinear.from_grouped(
        GroupedWeight(q, scales, zeros),
        bits=layer.bits,
        g_idx=g_idx,
        bias=bias,
        pre_scale=pre_scale,
        activation=layer.activation,
    )
    if layer.folded_smooth is not None:
        made.folded_smooth = (
            layer.folded_smooth if share.side is Side.OUT else (layer.folded_smooth[mine].clone())
        )
    if share.side is Side.IN:
        made.register_buffer("order", None if order is None else order[mine].long())
    return made
