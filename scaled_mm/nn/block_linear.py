"""`ScaledBlockLinear`: an int8 weight in blocks of 128 x 128, as block-int8 checkpoints have it."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn

from .._arguments import must_be_size
from ..ops.int8 import scaled_mm
from ..ops.quantize import quantize_int8, quantize_weight_int8
from .int8_layer import Int8Layer
from .scaled_linear import MAX_K

BLOCK = 128
"""Rows and columns of a block of the weight; columns of a group of activations."""


class ScaledBlockLinear(Int8Layer):
    """A linear layer with int8 values whose scales belong to blocks.

        y = sum over blocks g of K of  scale_a[:, g] weight_scale_inv[:, g] (q_g weight_g.T) + bias
        q, scale_a = quantize(x), each 128 columns of a token by their own range

    Sums of a block are exact, the rest is as docs/numerics.md, section 8, has it for `scaled_mm` in
    blocks, so the bits depend on neither tiles nor instruction sets. On the CPU. No gradient
    passes.

    Buffers, in the state dict under the names of the files (N output, K input features):
        weight            int8 [N, K]
        weight_scale_inv  float32 [ceil(N/128), ceil(K/128)]: what a block is multiplied by
        bias              float32 [N], or None

    The weight is kept once, packed, as `ScaledLinear` says. Scales and bias stay float32. Make one
    with `from_linear`.
    """

    _SCALES: ClassVar = "weight_scale_inv"

    weight_scale_inv: Tensor
    bias: Tensor | None
    rotate = 0  # what the base asks of a layer, and this one has not
    input_scale = input_smooth = input_zero_point = azp_adj = azp_with_adj = None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        device: torch.device | str | None = None,
    ) -> None:
        """An empty layer, to load a state dict into."""
        super().__init__()
        must_be_size("in_features", in_features)
        must_be_size("out_features", out_features)
        if in_features > MAX_K:
            raise ValueError(f"in_features must be at most {MAX_K}, got {in_features}")
        self.in_features, self.out_features = in_features, out_features
        n, k = out_features, in_features
        blocks = -(-n // BLOCK), -(-k // BLOCK)
        self._buffers["weight"] = torch.zeros(n, k, dtype=torch.int8, device=device)
        self.register_buffer("weight_scale_inv", torch.zeros(blocks, device=device))
        self.register_buffer("bias", torch.zeros(n, device=device) if bias else None)
        self._begin()
        self.pack()

    @classmethod
    def from_linear(cls, linear: nn.Linear) -> ScaledBlockLinear:
        """Quantises the weight of a float layer (`scaled_mm.quantize_weight_int8`, in blocks).

        Args:
            linear: the layer; left as it is.

        Raises:
            ValueError: K > 131071.
            TypeError: linear is no `torch.nn.Linear`.
        """
        if not isinstance(linear, nn.Linear):
            raise TypeError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
        sizes, biased = (linear.in_features, linear.out_features), linear.bias is not None
        layer = cls(*sizes, biased, device=linear.weight.device)
        q, scales = quantize_weight_int8(linear.weight.detach(), block_size=BLOCK)
        layer.weight_scale_inv.copy_(scales.t())
        if layer.bias is not None:
            layer.bias.copy_(linear.bias.detach())
        layer.set_weight(q)
        return layer

    def _scale_of_values(self) -> Tensor:
        scales = self.weight_scale_inv.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return scales[: self.out_features, : self.in_features]

    def quantize_input(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the product is made of: q int8 [..., K] and scale_a float32 [..., ceil(K/128)]."""
        q, scale, _ = quantize_int8(x, group_size=BLOCK)
        return q, scale

    def forward(self, x: Tensor) -> Tensor:
        """y [..., N] of x's dtype, which is float32, bfloat16 or float16 [..., K]."""
        q, scale = self.quantize_input(x)
        weight, scales = self._weight_for_kernels(), self.weight_scale_inv.t()
        return scaled_mm(q, weight, scale, scales, bias=self.bias, out_dtype=x.dtype)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}, blocks of {BLOCK} x {BLOCK}"
        )
