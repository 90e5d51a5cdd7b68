"""compressed-tensors' int-quantized format, as it is written: a layer's tensors, and the config.

    NAME.weight             int8 [N, K]
    NAME.weight_scale       float32 [N, 1]
    NAME.bias               float [N], where the layer has one
    NAME.input_scale        float32 [1], static
    NAME.input_zero_point   int8 [1], static asymmetric

Zero-point terms (`azp_adj`, `azp_with_adj`) follow from these and are left out. The format has no
place for a factor on each input channel (`input_smooth`); a layer that has one is refused.

Source: the format of the compressed-tensors package, 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from .config import W8A8Scheme

FORMAT = "int-quantized"
_EIGHT_BITS = {"num_bits": 8, "type": "int", "group_size": None}


def scheme_of_layer(layer: ScaledLinear) -> W8A8Scheme:
    """How a layer is quantised, in the format's words."""
    return W8A8Scheme(layer.dynamic, layer.symmetric, layer.per_token, per_channel=True)


def is_linear(module: nn.Module) -> bool:
    """Whether the target "Linear" means the module: its class or a base of it has that name."""
    return any(each.__name__ == "Linear" for each in type(module).__mro__)


def layer_tensors(name: str, layer: ScaledLinear, float_dtype: torch.dtype) -> dict[str, Tensor]:
    """The tensors of one layer by their names in the file.

    Args:
        name: of the layer.
        layer: any `ScaledLinear` without `input_smooth`.
        float_dtype: of the model's other tensors; the bias gets it where it loses nothing by that.

    Raises:
        ValueError: the layer has `input_smooth`.
    """
    refuse_smooth(name, layer)
    state = layer.state_dict()
    tensors = {"weight": state["weight"], "weight_scale": state["weight_scale"]}
    if (bias := state.get("bias")) is not None:
        tensors["bias"] = narrowed(bias, float_dtype)
    if not layer.dynamic:
        tensors["input_scale"] = state["input_scale"]
        if not layer.symmetric:
            tensors["input_zero_point"] = state["input_zero_point"].to(torch.int8)
    return {f"{name}.{part}": x for part, x in tensors.items()}


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the dtype if that loses nothing, else as it is."""
    narrow = x.to(dtype)
    return narrow if torch.equal(narrow.to(x.dtype), x) else x


NO_PLACE = (
    "input_smooth has no place in compressed-tensors' format: smooth only layers whose norm can be "
    "divided instead, or save the state_dict"
)


def refuse_smooth(name: str, layer: ScaledLinear) -> None:
    """ValueError where the layer multiplies its input by a factor for each channel."""
    if layer.input_smooth is not None:
        raise ValueError(f"{name}: {NO_PLACE}")


def quantization_config(
    schemes: Mapping[str, W8A8Scheme], floats: Sequence[str] | None
) -> dict[str, Any]:
    """The `quantization_config` of config.json.

    Args:
        schemes: name of each quantised layer -> its scheme.
        floats: names of all Linears that stay float; None: unknown, so that each layer is named.
    """
    groups: dict[W8A8Scheme, list[str]] = {}
    for name, scheme in schemes.items():
        groups.setdefault(scheme, []).append(name)
    by_class = len(groups) == 1 and floats is not None
    return {
        "quant_method": "compressed-tensors",
        "format": FORMAT,
        # Without it, transformers takes the int8 weights for float ones.
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(floats or ()),
        "config_groups": {
            f"group_{at}": _group(scheme, ["Linear"] if by_class else names)
            for at, (scheme, names) in enumerate(groups.items())
        },
    }


def _group(scheme: W8A8Scheme, targets: Sequence[str]) -> dict[str, Any]:
    weights = {
        **_EIGHT_BITS,
        "strategy": "channel" if scheme.per_channel else "tensor",
        "symmetric": True,
        "dynamic": False,
    }
    inputs = {
        **_EIGHT_BITS,
        "strategy": "token" if scheme.per_token else "tensor",
        "symmetric": scheme.symmetric,
        "dynamic": scheme.dynamic,
    }
    return {
        "targets": list(targets),
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
        "format": FORMAT,
    }
