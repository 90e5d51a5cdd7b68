"""compressed-tensors' formats, as they are written: a layer's tensors, and the config.

int-quantized (W8A8):

    NAME.weight             int8 [N, K]
    NAME.weight_scale       float32 [N, 1]
    NAME.bias               float [N], where the layer has one
    NAME.input_scale        float32 [1], static
    NAME.input_zero_point   int8 [1], static asymmetric

Zero-point terms (`azp_adj`, `azp_with_adj`) follow from these and are left out.

pack-quantized (W8A16, W4A16, W4A8): what the state dict of a `WeightOnlyLinear` holds;
`layers_packed.py` lists it, and the bytes in which int-quantized has values of 4 bits.

The formats have no place for a factor on each input channel (`input_smooth`, `pre_scale`), nor for
zero points that are floats or an activation; a layer that has one is refused.

Source: the format of the compressed-tensors package, 0.20.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..lowbit.stored import to_bytes
from ..nn import ScaledBlockLinear, ScaledLinear, WeightOnlyLinear
from .blockwise_int8 import METHOD, BlockScheme, block_config
from .rotation import Rotation


@dataclass(frozen=True)
class W8A8Scheme:
    """How the Linears of one group are quantised."""

    dynamic: bool
    """Activation scales (and zero points) at run time, not from the checkpoint."""
    symmetric: bool
    """Activations without zero points. (Weights never have them.)"""
    per_token: bool
    """Dynamic: a scale for each token, or one for all."""
    per_channel: bool
    """A weight scale for each output channel, or one for all."""
    rotate: int | None = None
    """Columns of the blocks over which the input is rotated; the weight is already."""

    @property
    def term(self) -> str | None:
        """The name of the azp term that a layer of this scheme needs."""
        if self.symmetric:
            return None
        return "azp_adj" if self.dynamic else "azp_with_adj"

    def __str__(self) -> str:
        return (
            f"{'dynamic' if self.dynamic else 'static'} "
            f"{'symmetric' if self.symmetric else 'asymmetric'}, "
            f"per {'token' if self.per_token else 'tensor'}, "
            f"weights per {'channel' if self.per_channel else 'tensor'}"
            + (f", inputs rotated by {self.rotate}" if self.rotate else "")
        )


@dataclass(frozen=True)
class PackedScheme:
    """How the Linears of one group are quantised: 4- or 8-bit weights, activations in float."""

    bits: int
    """Of a weight, 4 or 8."""
    group_size: int
    """Input features that share a scale; -1: all of them."""
    symmetric: bool
    """Without zero points."""
    act_order: bool = False
    """The features of a group lie scattered; `weight_g_idx` says where."""
    int8_input: str | None = None
    """Activations in int8, each token by its own range: "symmetric" or "asymmetric"."""
    in_bytes: bool = False
    """Values of 4 bits lie one to a byte: int-quantized."""

    def __str__(self) -> str:
        groups = "one group" if self.group_size == -1 else f"groups of {self.group_size}"
        kind = "symmetric" if self.symmetric else "asymmetric"
        inputs = f", {self.int8_input} int8 inputs" if self.int8_input else ""
        how = "int4 in bytes" if self.in_bytes else f"packed int{self.bits}"
        return f"{how}, {kind}, {groups}{inputs}"


Saved = ScaledLinear | WeightOnlyLinear | ScaledBlockLinear
"""The layers that a format has a place for; blocks have one of their own."""
AnyLayerScheme = W8A8Scheme | PackedScheme | BlockScheme
INT, PACKED, _ = FORMATS = ("int-quantized", "pack-quantized", METHOD)


def format_of(scheme: AnyLayerScheme) -> str:
    """The format that has a place for it."""
    if isinstance(scheme, BlockScheme):
        return METHOD
    return PACKED if isinstance(scheme, PackedScheme) and not scheme.in_bytes else INT


def stored_as(scheme: AnyLayerScheme, name: str, wanted: str | None) -> AnyLayerScheme:
    """The scheme of a layer as a format stores it; None: as that one which is usual.

    Raises:
        ValueError: it is none of `FORMATS`, or has no place for the scheme.
    """
    if wanted is not None and wanted not in FORMATS:
        raise ValueError(f"format must be None, {' or '.join(FORMATS)}, got {wanted}")
    if isinstance(scheme, PackedScheme) and scheme.bits == 4:
        scheme = replace(scheme, in_bytes=wanted == INT)
    if wanted not in (None, format_of(scheme)):
        raise ValueError(f"format must be {format_of(scheme)} for {name}, which is {scheme}")
    return scheme


def scheme_of_layer(layer: Saved) -> AnyLayerScheme:
    """How a layer is quantised, in the formats' words."""
    if isinstance(layer, ScaledBlockLinear):
        return BlockScheme()
    if isinstance(layer, ScaledLinear):
        of_inputs = layer.dynamic, layer.symmetric, layer.per_token
        return W8A8Scheme(*of_inputs, per_channel=True, rotate=layer.rotate or None)
    group = -1 if layer.group_size == layer.in_features else layer.group_size
    kinds = layer.bits, group, layer.zero == "none", layer.act_order
    return PackedScheme(*kinds, layer.int8_input)


def is_linear(module: nn.Module) -> bool:
    """Whether the target "Linear" means the module: its class or a base of it has that name."""
    return any(each.__name__ == "Linear" for each in type(module).__mro__)


def layer_tensors(
    name: str, layer: Saved, float_dtype: torch.dtype, in_bytes: bool = False
) -> dict[str, Tensor]:
    """The tensors of one layer by their names in the file.

    Args:
        name: of the layer.
        layer: any that the formats have a place for.
        float_dtype: of the model's other tensors; the bias gets it where it loses nothing by that.
        in_bytes: as `PackedScheme` has it.

    Raises:
        ValueError: the layer has something that the formats have no place for.
    """
    refuse_homeless(name, layer)
    state = layer.state_dict()
    if isinstance(layer, WeightOnlyLinear):
        if (bias := state.get("bias")) is not None:
            state["bias"] = narrowed(bias, float_dtype)
        if in_bytes:
            state = to_bytes(state, layer.in_features)
        return {f"{name}.{part}": x for part, x in state.items()}
    scales = "weight_scale_inv" if isinstance(layer, ScaledBlockLinear) else "weight_scale"
    tensors = {"weight": state["weight"], scales: state[scales]}
    if (bias := state.get("bias")) is not None:
        tensors["bias"] = narrowed(bias, float_dtype)
    if isinstance(layer, ScaledLinear) and not layer.dynamic:
        tensors["input_scale"] = state["input_scale"]
        if not layer.symmetric:
            tensors["input_zero_point"] = state["input_zero_point"].to(torch.int8)
    return {f"{name}.{part}": x for part, x in tensors.items()}


def narrowed(x: Tensor, dtype: torch.dtype) -> Tensor:
    """x in the dtype if that loses nothing, else as it is."""
    narrow = x.to(dtype)
    return narrow if torch.equal(narrow.to(x.dtype), x) else x


NO_PLACE = (
    "has no place in compressed-tensors' format: smooth only layers whose norm can be "
    "divided instead, or save the state_dict"
)


def homeless(layer: Saved) -> str | None:
    """What of a layer the formats have no place for; None: nothing."""
    if not isinstance(layer, WeightOnlyLinear):
        return None if layer.input_smooth is None else "input_smooth"
    if layer.pre_scale is not None:
        return "pre_scale"
    if layer.zero == "float":
        return "weight_offset"
    return None if layer.activation is None else "activation"


def refuse_homeless(name: str, layer: Saved) -> None:
    """ValueError where a layer has something that the formats have no place for."""
    if (what := homeless(layer)) is not None:
        raise ValueError(f"{name}: {what} {NO_PLACE}")


def quantization_config(
    schemes: Mapping[str, AnyLayerScheme],
    floats: Sequence[str] | None,
    rotation: Rotation | None = None,
) -> dict[str, Any]:
    """The `quantization_config` of config.json.

    Args:
        schemes: name of each quantised layer -> its scheme.
        floats: names of all Linears that stay float; None: unknown, so that each layer is named.
        rotation: what was folded into the weights.

    Raises:
        ValueError: the schemes are of several formats.
    """
    if one_format(schemes) == METHOD:
        return block_config(list(floats or ()))
    groups: dict[AnyLayerScheme, list[str]] = {}
    for name, scheme in schemes.items():
        groups.setdefault(scheme, []).append(name)
    by_class = len(groups) == 1 and floats is not None
    named = {scheme: ["Linear"] if by_class else names for scheme, names in groups.items()}
    transforms = {} if rotation is None else transforms_of(rotation)
    transforms |= _of_inputs(named, list(floats or ()) if by_class else [])
    return {
        **({"transform_config": {"config_groups": transforms}} if transforms else {}),
        "quant_method": "compressed-tensors",
        "format": one_format(schemes),
        # Without it, transformers takes the int8 weights for float ones.
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(floats or ()),
        "config_groups": {
            f"group_{at}": _group(scheme, names) for at, (scheme, names) in enumerate(named.items())
        },
    }


def _of_inputs(
    targets: Mapping[AnyLayerScheme, Sequence[str]], ignore: Sequence[str]
) -> dict[str, Any]:
    """The groups of transforms of layers that rotate their input, by the block."""
    blocks: dict[int, list[str]] = {}
    for scheme, names in targets.items():
        if isinstance(scheme, W8A8Scheme) and scheme.rotate:
            blocks.setdefault(scheme.rotate, []).extend(names)
    return {
        f"input_{block}": {
            "type": "hadamard",
            "apply": [
                {"targets": names, "ignore": list(ignore), "location": at, "inverse": inverse}
                for at, inverse in (("input", False), ("weight_input", True))
            ],
            "randomize": False,
            "head_dim": block,
        }
        for block, names in blocks.items()
    }


def transforms_of(rotation: Rotation) -> dict[str, Any]:
    """The groups of transforms that were folded into weights, as compressed-tensors says it. It
    has no place for the seed: `rotation_metadata` has one."""
    groups = {}
    for name, size, writes, reads in (
        ("R1", rotation.residual and rotation.block, _WRITERS, _READERS),
        ("R2", rotation.value_output and rotation.head_block, ("v_proj",), ("o_proj",)),
    ):
        if size:
            places = (("weight_output", False, writes), ("weight_input", True, reads))
            groups[name] = {
                "type": "random-hadamard",
                "apply": [
                    {"targets": [rf"re:.*{x}$" for x in of], "location": at, "inverse": inverse}
                    for at, inverse, of in places
                ],
                "randomize": name == "R2",
                "head_dim": size,
            }
    return groups


_WRITERS = ("embed_tokens", "o_proj", "down_proj")
_READERS = ("[qkv]_proj", "gate_proj", "up_proj", "lm_head")


def one_format(schemes: Mapping[str, AnyLayerScheme]) -> str:
    """The one format of all schemes; a file of two is read by few.

    Raises:
        ValueError: there are two kinds of schemes, with a layer of each.
    """
    first = {type(schemes[name]): name for name in reversed(list(schemes))}
    if len(first) > 1:
        got = " and ".join(f"{schemes[name]} at {name}" for name in reversed(first.values()))
        kinds = "all W8A8, all weight-only or all in blocks"
        raise ValueError(f"layers must be {kinds} to be saved, got {got}")
    return format_of(next(iter(schemes.values()))) if schemes else INT


def _group(scheme: AnyLayerScheme, targets: Sequence[str]) -> dict[str, Any]:
    assert not isinstance(scheme, BlockScheme)
    inputs = None
    if isinstance(scheme, W8A8Scheme):
        weights = _said("channel" if scheme.per_channel else "tensor", True)
        by = "token" if scheme.per_token else "tensor"
        inputs = _said(by, scheme.symmetric, scheme.dynamic)
    else:
        group = None if scheme.group_size == -1 else scheme.group_size
        by = "channel" if group is None else "group"
        weights = _said(by, scheme.symmetric, bits=scheme.bits, group_size=group)
        weights["actorder"] = "group" if scheme.act_order else None
        if scheme.int8_input is not None:
            inputs = _said("token", scheme.int8_input == "symmetric", True)
    return {
        "targets": list(targets),
        "weights": weights,
        "input_activations": inputs,
        "output_activations": None,
        "format": format_of(scheme),
    }


def _said(
    strategy: str,
    symmetric: bool,
    dynamic: bool = False,
    *,
    bits: int = 8,
    group_size: int | None = None,
) -> dict[str, Any]:
    """Of weights or of activations: how they are quantised."""
    return {
        "num_bits": bits,
        "type": "int",
        "strategy": strategy,
        "group_size": group_size,
        "symmetric": symmetric,
        "dynamic": dynamic,
    }
