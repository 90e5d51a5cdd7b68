"""vLLM's two kinds of linear kernel (int8, and "mixed precision"), on this library's ops.

vLLM asks `is_supported` and `can_implement` of each kernel that it knows, takes the first that says
yes, and prints the reasons of those that said no. After loading, `process_weights_after_loading`
may lay a layer's parameters out anew; then `apply_weights` is called for every product.

Source: `vllm/model_executor/kernels/linear` of vLLM 0.33.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.kernels.linear import (
    Int8ScaledMMLinearKernel,
    Int8ScaledMMLinearLayerConfig,
    MPLinearKernel,
    MPLinearLayerConfig,
)
from vllm.model_executor.utils import replace_parameter
from vllm.platforms import current_platform

from .vllm_weights import (
    Int8Weight,
    WeightOnlyShape,
    int8_linear,
    int8_weight,
    packed_weight,
    weight_only_linear,
    why_not_here,
    why_not_weight_only,
)


def _why_not_here(family: str, capability: int | None = None) -> str | None:
    if capability is None and (found := current_platform.get_device_capability()) is not None:
        capability = found.to_int()
    on_cpu, on_cuda = current_platform.is_cpu(), current_platform.is_cuda()
    platform = "CPU" if on_cpu else "CUDA" if on_cuda else current_platform.device_name
    return why_not_here(family, platform, capability)


class ScaledMMInt8LinearKernel(Int8ScaledMMLinearKernel):
    """W8A8: dynamic per token or static per tensor, symmetric or with zero points, with or without
    a bias; the bits of `scaled_mm.reference`.

    `weight` becomes [K, N] as with vLLM's own CUDA kernels; on the CPU it is packed instead, and
    None afterwards. `azp_adj` holds the zero points' term as those kernels have it.
    """

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:
        reason = _why_not_here("int8", compute_capability)
        return reason is None, reason

    @classmethod
    def can_implement(cls, c: Int8ScaledMMLinearLayerConfig) -> tuple[bool, str | None]:
        return True, None  # whatever the config can say is served

    def process_weights_after_loading(self, layer: Any) -> None:
        weight, weight_scale, input_scale, zero_point, _ = self._get_layer_params(layer)
        static = self.config.is_static_input_scheme
        made = int8_weight(
            weight.data,
            weight_scale.data,
            input_scale.data if static else None,
            zero_point.data if static and zero_point is not None else None,
            symmetric=self.config.input_symmetric,
            widths=layer.logical_widths,
        )
        plain = made.b if isinstance(made.b, Tensor) else None
        for name, value in zip(self.layer_param_names, (plain, *made[1:]), strict=True):
            _put(layer, name, value)
        layer.scaled_mm_packed = made.b if plain is None else None

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        plain, *rest = self._get_layer_params(layer)
        b = layer.scaled_mm_packed if plain is None else plain
        return int8_linear(x, Int8Weight(b, *rest), bias)


class _WeightOnlyKernel(MPLinearKernel):
    """The weight is packed for `mixed_mm`; the parameters that it came from are None afterwards."""

    bits: int
    """Of the weight."""

    @classmethod
    def get_min_capability(cls) -> int:
        return 0  # can_implement asks for the kernels themselves

    @classmethod
    def can_implement(cls, c: MPLinearLayerConfig) -> tuple[bool, str | None]:
        k, n = c.partition_weight_shape
        shape = WeightOnlyShape(
            k, n, c.group_size, str(c.weight_type), c.zero_points, c.act_type, c.out_type
        )
        reason = _why_not_here("lowbit") or why_not_weight_only(shape, cls.bits)
        return reason is None, reason

    def process_weights_after_loading(self, layer: Any) -> None:
        words, scales, zeros = self._get_weight_params(layer)
        zeros = zeros if self.config.zero_points else None
        layer.scaled_mm_packed = packed_weight(words, scales, zeros, bits=self.bits)
        for name in (self.w_q_name, self.w_s_name, self.w_zp_name):
            if name is not None:
                _put(layer, name, None)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        return weight_only_linear(x, layer.scaled_mm_packed, bias)


class ScaledMMInt4LinearKernel(_WeightOnlyKernel):
    """W4A16 in groups: AWQ, GPTQ (symmetric, as vLLM takes it) and compressed-tensors' packed form,
    with or without zero points."""

    bits = 4


class ScaledMMW8A16LinearKernel(_WeightOnlyKernel):
    """W8A16, per channel or in groups: GPTQ of 8 bits (symmetric, as vLLM takes it) and
    compressed-tensors' packed form of 8 bits, with or without zero points."""

    bits = 8


def _put(layer: Any, name: str, value: Tensor | None) -> None:
    """In place of a parameter, or as a new one; None: there is none any more."""
    if value is None:
        setattr(layer, name, None)
    else:
        replace_parameter(layer, name, nn.Parameter(value, requires_grad=False))
