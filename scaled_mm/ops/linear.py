"""`scaled_linear`: a layer's product in one op, `quantize_int8` of x, or of a function of it, and
`scaled_mm` of that."""

from __future__ import annotations

import torch
from torch import Tensor

from .._torch import short
from .shapes import must_have_shape, must_rotate, must_share_device

scaled_linear = short(torch.ops.scaled_mm.scaled_linear.default)
"""For eager calls; a trace wants the overload."""


@torch.library.register_fake("scaled_mm::scaled_linear")
def _(
    x: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None,
    k: int,
    settled: bool = False,
    input_smooth: Tensor | None = None,
    symmetric: bool = True,
    per_token: bool = True,
    input_scale: Tensor | None = None,
    input_azp: Tensor | None = None,
    azp_term: Tensor | None = None,
    rotate: int = 0,
    producer: str | None = None,
    times: Tensor | None = None,
) -> Tensor:
    must_have_shape("x", x, x.dim() >= 1, "have at least one dimension [..., K]")
    must_share_device("x", x, weight=weight, weight_scale=weight_scale, bias=bias)
    must_share_device("x", x, input_scale=input_scale, input_azp=input_azp, azp_term=azp_term)
    must_share_device("x", x, input_smooth=input_smooth, times=times)
    must_have_shape("x", x, x.shape[-1] == k, f"have K={k} columns")
    if times is not None:
        must_have_shape("times", times, times.shape == x.shape, "have x's shape")
    must_rotate(rotate, k)
    must_have_shape("weight", weight, weight.dim() in (1, 2), "be packed or have shape [N, K]")
    must_have_shape("weight_scale", weight_scale, weight_scale.dim() == 2, "have shape [N, 1]")
    return x.new_empty([*x.shape[:-1], weight_scale.shape[0]])
