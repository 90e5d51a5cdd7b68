"""The layers of which each rank has some input features."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from ..nn import ScaledLinear
from ..ops.int8 import int8_mm
from ..ops.quantize import quantize_int8
from ..ops.rotate import rotated
from .layouts import agreed_range, all_reduce
from .sums import scaled_epilogue

TERMS = ("azp_adj", "azp_with_adj")


class RowwiseScaledLinear(ScaledLinear):
    """A `ScaledLinear` of which this rank has some of the K input features.

        acc = sum over ranks of q weight.T                       int32, exact in any order
        y   = scale_a * weight_scale * (acc - azp terms) + bias  once, by every rank

    Buffers: `weight` and `input_smooth` are this rank's, the others those of the whole layer, the
    zero-point terms included. A dynamic scale is made from the range of all ranks' features. So q,
    acc and y have the bits of the layer that is not cut.

    `RowwiseQuantizedParallel` and `load_quantized_sharded` make one.

    Attributes:
        mesh: the ranks that share the features, one dimension.
    """

    mesh: DeviceMesh

    def quantize_input(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """q int8 [..., K of this rank], and the scale and zero point that all ranks agree on."""
        if not self.dynamic:
            return super().quantize_input(x)
        if self.input_smooth is not None:
            x = x.float() * self.input_smooth
        return ranges_quantized(
            x, self.mesh, symmetric=self.symmetric, per_token=self.per_token, rotate=self.rotate
        )

    def forward(self, x: Tensor) -> Tensor:
        must_have_features(x, self.in_features)
        q, scale, azp = self.quantize_input(x)
        return scaled_epilogue(
            all_reduce(int8_mm(q, self._weight_for_kernels()), self.mesh),
            scale,
            self.weight_scale.view(1, -1),
            bias=self.bias,
            azp=azp if self.dynamic else None,
            azp_adj=self.azp_adj,
            azp_with_adj=self.azp_with_adj,
            out_dtype=x.dtype,
        )

    def set_weight(self, weight: Tensor) -> None:
        """As a `ScaledLinear`'s, of this rank's features; every rank calls it."""
        super().set_weight(weight)
        self.sum_terms(self.terms())

    def terms(self) -> list[str]:
        """The names of its zero-point terms: one, or none."""
        return [name for name in TERMS if getattr(self, name) is not None]

    def sum_terms(self, names: list[str]) -> None:
        """Makes zero-point terms that are of this rank's features those of the whole layer."""
        for name in names:
            term = getattr(self, name)  # it may lie elsewhere than where the ranks talk
            term.copy_(all_reduce(term.to(self.mesh.device_type, copy=True), self.mesh))

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any
    ) -> None:
        absent = [name for name in self.terms() if prefix + name not in state_dict]
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)
        self.sum_terms(absent)  # the layer made them of its own weight


def ranges_quantized(
    x: Tensor, mesh: DeviceMesh, *, symmetric: bool, per_token: bool = True, rotate: int = 0
) -> tuple[Tensor, Tensor, Tensor | None]:
    """q of this rank's features of x, and the scale and zero point that all ranks agree on."""
    if symmetric:
        how: dict[str, Any] = {"per_token": per_token, "rotate": rotate or None}
        scale = quantize_int8(x, **how)[1].abs().view(torch.int32)
        # Scales are positive: their bits have their order, and a NaN's are the largest.
        scale = all_reduce(scale, mesh, dist.ReduceOp.MAX).view(torch.float32)
        return quantize_int8(x, scale=scale, rotate=rotate or None)[0], scale, None
    if rotate:
        x = rotated(x.float(), rotate)
    # The ends of a range have its scale and zero point.
    ends = agreed_range(x, per_token, mesh)
    _, scale, azp = quantize_int8(ends, symmetric=symmetric, per_token=per_token)
    q, _, _ = quantize_int8(x, scale=scale, azp=azp, symmetric=symmetric)
    return q, scale, azp


def must_have_features(x: Tensor, count: int) -> None:
    """Refuses an x that is not cut as the layer is, before the ranks wait for each other."""
    if x.dim() < 1 or x.shape[-1] != count:
        raise ValueError(f"x must have the {count} features of this rank, got {tuple(x.shape)}")
