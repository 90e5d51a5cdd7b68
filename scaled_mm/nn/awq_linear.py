"""`AWQLinear`: a linear layer with an int4 weight in groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from .._arguments import must_be_size
from ..lowbit.int4 import Int4, from_gptq, to_awq
from ..ops.gradients import mixed_product, wants_gradient
from ..ops.lowbit import awq_dequantize, awq_gemm
from ..ops.mixed_weight import MixedWeight
from ..ops.packed_awq import PackedAWQ, pack_awq
from .packed_layer import PackedLayer
from .weight_only_linear import WeightOnlyLinear


class AWQLinear(PackedLayer):
    """A linear layer whose weight stays in AWQ's words while it is multiplied by.

        y = x W + bias,    W[k, n] = (q[k, n] - z[g, n]) * s[g, n],  g = k // group_size

    Buffers, under the names of AWQ checkpoints, all in the state dict:
        qweight  int32 [K, N/8]
        qzeros   int32 [K/G, N/8]
        scales   float16 or bfloat16 [K/G, N]
        bias     of the scales' dtype or float32 [N], or None
        order    int64 [K], or None: the input channel behind each row (act-order GPTQ only)

    `pack()` lays the weight out for the kernels, which then is its only copy: qweight, qzeros and
    scales are None until `unpack()`. A state dict has them under their names all the same.

    Gradients of x and the bias pass through a packed layer, as in `ScaledLinear`.

    x is brought to the scales' dtype, y back to x's. `.half()` and `.bfloat16()` convert scales and
    bias; `.float()` and `.double()` leave them as they are, for the kernels take 16 bits. A bias
    that is loaded or given in another dtype is brought to one of the two above; scales that are
    loaded with assign=True in another dtype are brought to the dtype they had. Loads what AWQ
    checkpoints hold as it is; `from_int4` and `from_gptq` make one of other packings.
    """

    _WEIGHT: ClassVar = ("qweight", "scales", "qzeros")  # in the order of PackedAWQ.unpack
    _SCALES: ClassVar = "scales"

    qweight: Tensor  # this and the next two: None while the layer is packed
    qzeros: Tensor
    scales: Tensor
    bias: Tensor | None
    order: Tensor | None
    packed: PackedAWQ | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        group_size: int = 128,
        dtype: torch.dtype = torch.float16,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty layer, to load a state dict into. group_size -1 is in_features."""
        super().__init__()
        must_be_size("in_features", in_features)
        must_be_size("out_features", out_features)
        if not isinstance(group_size, int):
            raise TypeError(f"group_size must be an int, got {type(group_size).__name__}")
        group = in_features if group_size == -1 else group_size
        if group < 1 or in_features % group != 0:
            raise ValueError(
                f"group_size must divide in_features={in_features} (or be -1), got {group_size}"
            )
        if out_features % 8 != 0:
            raise ValueError(f"out_features must be a multiple of 8, got {out_features}")
        if dtype not in (torch.float16, torch.bfloat16):
            raise ValueError(f"dtype must be float16 or bfloat16, got {str(dtype)[6:]}")
        self.in_features = in_features
        self.out_features = out_features
        self.group_size = group
        k, n, groups = in_features, out_features, in_features // group
        made: Mapping[str, tuple[tuple[int, ...], torch.dtype]] = {
            "qweight": ((k, n // 8), torch.int32),
            "qzeros": ((groups, n // 8), torch.int32),
            "scales": ((groups, n), dtype),
            "bias": ((n,), dtype),
        }
        for name, (shape, kind) in made.items():
            present = bias or name != "bias"
            buffer = torch.zeros(shape, dtype=kind, device=device) if present else None
            self.register_buffer(name, buffer)
        self.register_buffer("order", None)
        self._begin()

    @classmethod
    def from_int4(cls, weight: Int4, bias: Tensor | None = None) -> AWQLinear:
        """A layer of an unpacked weight; where it has a g_idx, inputs are put in its order.

        Raises:
            ValueError: groups of unequal size, or scales that are not float16 or bfloat16.
        """
        ordered, order = weight.in_order()
        k, n = ordered.q.shape
        size = max(1, k // max(1, len(ordered.scales)))
        dtype, device = ordered.scales.dtype, ordered.q.device
        layer = cls(k, n, bias is not None, group_size=size, dtype=dtype, device=device)
        layer.qweight, layer.scales, layer.qzeros = to_awq(ordered)
        if bias is not None:  # a copy, like all else: the layer may be loaded into
            kind = bias.dtype if bias.dtype in (dtype, torch.float32) else dtype
            layer.bias = bias.detach().to(device, kind, copy=True)
        layer.order = order
        return layer

    @classmethod
    def from_gptq(
        cls,
        qweight: Tensor,
        scales: Tensor,
        qzeros: Tensor,
        g_idx: Tensor | None = None,
        *,
        version: int,
        bias: Tensor | None = None,
    ) -> AWQLinear:
        """A layer of a GPTQ checkpoint's tensors (`scaled_mm.awq.from_gptq`)."""
        return cls.from_int4(from_gptq(qweight, scales, qzeros, g_idx, version=version), bias)

    def pack(self) -> AWQLinear:
        """Lays the weight out for the kernels (`scaled_mm.pack_awq`): faster on a GPU.

        Weights on meta tensors stay as they are. Moving, converting or loading the layer packs it
        again.

        Returns:
            The layer.
        """
        if self.packed is None and not self.qweight.is_meta:
            self._hold(pack_awq(self.qweight, self.scales, self.qzeros))
        return self

    def _plain(self, packed: PackedAWQ) -> dict[str, Tensor]:
        return dict(zip(self._WEIGHT, packed.unpack(), strict=True))

    @property
    def weight(self) -> Tensor:
        """A copy of the weight that x is multiplied by: [N, K] of the scales' dtype."""
        words = self.qweight, self.scales, self.qzeros
        w = awq_dequantize(*(words if self.packed is None else self.packed.unpack()))
        return (w if self.order is None else torch.empty_like(w).index_copy_(0, self.order, w)).t()

    @property
    def act_order(self) -> bool:
        """Whether the rows of a group lie scattered."""
        return self.order is not None

    def forward(self, x: Tensor) -> Tensor:
        if self.order is not None:
            x = x[..., self.order]
        return self._product(x.to(self._dtype), self.bias).to(x.dtype)

    def weight_only(self) -> WeightOnlyLinear:
        """The same weight in a `WeightOnlyLinear`, whose files other programs read."""
        state = self.state_dict()
        words = (state[name] for name in ("qweight", "scales", "qzeros"))
        return WeightOnlyLinear.from_awq(*words, order=self.order, bias=self.bias)

    def _product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        if self.packed is not None:
            packed = self._current()
            if not wants_gradient(x, bias):
                return awq_gemm(x, packed, bias=bias)
            sizes = packed.k, packed.n, packed.group, 4, "integer", packed.layout
            return mixed_product(x, MixedWeight(packed.data, None, *sizes), bias=bias)
        if wants_gradient(x, bias):
            rule = "be packed (see pack) where x or bias requires grad"
            raise ValueError(f"qweight must {rule}, got plain words")
        return awq_gemm(x, self.qweight, self.scales, self.qzeros, bias=bias)

    def _make_room(self, state_dict: dict[str, Any], prefix: str) -> None:
        order = state_dict.get(prefix + "order")
        if order is not None and self.order is None:
            self.order = torch.empty_like(order, dtype=torch.int64, device=self.qweight.device)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, group_size={self.group_size}, "
            f"dtype={str(self._dtype)[6:]}{', packed' if self.packed is not None else ''}"
        )
