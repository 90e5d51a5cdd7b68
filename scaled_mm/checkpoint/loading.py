"""Checkpoints into models: `load_quantized`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import NoReturn

import torch
from torch import Tensor, nn

from .._torch import made_by_the_model
from ..nn import WeightOnlyLinear
from ..nn.float_experts import is_experts
from ..nn.weight_only_linear import check_int8_input
from ..quantization.layers import linears_in, quantisable, quantised_as
from ..quantization.swap import unfuse
from .config import PackedWeights
from .config_awq_gptq import AwqGptq
from .config_blocks import BlockInt8
from .files import DTYPES, NAMES
from .folder import Checkpoint
from .layer import QuantisedLayer
from .layers import int8_layers
from .layers_awq_gptq import awq_gptq_layers
from .layers_blocks import block_layers
from .layers_packed import packed_layers
from .names import Given, Names, without_values

_KINDS = tuple(
    {DTYPES[name] for name in kind.split()}
    for kind in ("F64 F32 F16 BF16", "I64 I32 I16 I8 U8", "BOOL")
)
"""A tensor goes into one of its own kind, widened or narrowed."""
_COMPUTED = "rotary_emb.inv_freq"
"""Older Llamas' checkpoints hold it; models make it themselves."""


def quantised_layers(checkpoint: Checkpoint) -> dict[str, QuantisedLayer]:
    """Every quantised layer, by name; none of a float checkpoint. Only headers are looked at.

    Raises:
        ValueError: a tensor of such a layer is missing, surplus, or not as the config says.
    """
    settings = checkpoint.quantization
    if settings is None:
        return {}
    if isinstance(settings, AwqGptq):
        return {**awq_gptq_layers(checkpoint, settings)}
    if isinstance(settings, PackedWeights):
        return {**packed_layers(checkpoint, settings)}
    if isinstance(settings, BlockInt8):
        return {**block_layers(checkpoint, settings)}
    return {**int8_layers(checkpoint, settings)}


def load_quantized(
    model: nn.Module, path: str | Path | Checkpoint, *, int8_input: str | None = None
) -> nn.Module:
    """Puts a quantised checkpoint into a model, whose quantised layers run as they are stored.

    | checkpoint | each `nn.Linear` with a quantised weight becomes |
    |---|---|
    | compressed-tensors W8A8 | a `scaled_mm.nn.ScaledLinear`, scales widened to float32 |
    | compressed-tensors W4A16, W8A16, W4A8 | a `scaled_mm.nn.WeightOnlyLinear` |
    | AutoAWQ ("gemm"), 4 bits; GPTQ v1 and v2, 4 and 8 bits | the same, W unchanged |
    | int8 in blocks of 128 x 128 ("blockwise_int8") | a `scaled_mm.nn.ScaledBlockLinear` |

    under the same name. The other parameters and buffers are filled from the tensors of their
    names, in the model's own dtypes. The model may be on the meta device: then what is loaded lies
    on the CPU.

    All or nothing: names, dtypes and shapes are checked, and every quantised layer is made and its
    values looked at, before the model changes. So float and quantised weights are in memory
    together, unless the model is on the meta device. (A file that is cut off meanwhile can still
    leave the other tensors half filled.)

    Args:
        model: any module whose names are those of the checkpoint, such as a Llama of transformers
            made from the same config.json (which is not needed here). Where transformers has
            other names than its files, they are changed as `from_pretrained` does.
        path: the checkpoint, as for `Checkpoint`.
        int8_input: "symmetric" or "asymmetric": weights of 4 bits whose activations stay float in
            the checkpoint get int8 ones (`WeightOnlyLinear` says how). That is another
            computation than the checkpoint was made for; `scaled_mm.validate` says what it costs.

    Returns:
        The model, changed in place, in eval mode if it was. No parameter asks for gradients.

    Raises:
        ValueError: the checkpoint is malformed, float, of another format (named), or does not fit
            the model; with int8_input, a layer has 8 bits, int8 activations already, or groups
            that are no multiple of 32. The message names file and tensor.

    Source: compressed-tensors' formats; AutoAWQ's and AutoGPTQ's files; SGLang's block-int8.
    """
    checkpoint = path if isinstance(path, Checkpoint) else Checkpoint(path)
    layers = layers_to_load(checkpoint)
    return load_layers(model, checkpoint, layers, partial(whole, int8_input=int8_input))


def layers_to_load(checkpoint: Checkpoint) -> dict[str, QuantisedLayer]:
    """`quantised_layers`; without any, the checkpoint is refused."""
    if checkpoint.quantization is None:
        raise ValueError(f"{checkpoint.folder}: is a float checkpoint, without quantization_config")
    layers = quantised_layers(checkpoint)
    if not layers:
        raise ValueError(f"{checkpoint.folder}: has no quantised weight")
    return layers


Make = Callable[[Checkpoint, QuantisedLayer, bool], nn.Module]
"""Makes a layer, on the CPU; the last argument: whether the model's Linear has a bias."""


def whole(
    checkpoint: Checkpoint, layer: QuantisedLayer, biased: bool, int8_input: str | None = None
) -> nn.Module:
    """The layer as it is stored; int8_input: as for `load_quantized`."""
    made = layer.module(checkpoint, biased)
    if int8_input is None:
        return made
    if not isinstance(made, WeightOnlyLinear) or made.int8_input is not None:
        rule = "must have float activations with int8_input"
        layer.refuse(checkpoint, layer.main, f"{rule}, got {layer.scheme}")
    try:
        check_int8_input(int8_input, made.bits, made.group_size, made.in_features)
    except ValueError as error:
        layer.refuse(checkpoint, layer.main, f"cannot have int8 inputs: {error}")
    made.int8_input = int8_input
    return made


def load_layers(
    model: nn.Module, checkpoint: Checkpoint, layers: dict[str, QuantisedLayer], make: Make = whole
) -> nn.Module:
    """Puts a checkpoint into a model: the quantised layers as `make` makes them, the other tensors
    as they are."""
    names = Names(model)
    taken = {f"{layer.name}.{part}" for layer in layers.values() for part in layer.parts}
    given = names.given(name for name in checkpoint.where if name not in taken)
    layers = names.layers(layers)
    linears = linears_of(model, checkpoint, layers)
    places = places_of(model, linears)
    targets = _targets(model, places)
    _check(model, checkpoint, given, targets)
    for name, buffer in model.named_buffers():
        if buffer.is_meta and name not in targets:
            reason = "must not be on the meta device: a buffer that no checkpoint holds"
            raise ValueError(f"{name} {reason}, got device=meta")
    with torch.no_grad():
        put_in(model, places, lambda name, x: layer_for(checkpoint, layers[name], x, make))
        unfuse(model)
        owners: dict[int, Tensor] = {}  # a tied tensor stays tied, on the meta device too
        for each in given:
            for name, value in each.made(model, checkpoint.read).items():
                if (target := targets.get(name)) is not None:
                    owners[id(target)] = _fill(model, name, target, value)
        for name, target in targets.items():
            if target.is_meta:
                _place(model, name, owners[id(target)])
    if layers:  # quantised weights have no gradients
        model.requires_grad_(False)
    return model


def linears_of(
    model: nn.Module, checkpoint: Checkpoint, layers: dict[str, QuantisedLayer]
) -> dict[str, nn.Linear]:
    """The modules that are replaced, by name; of experts that lie stacked, every Linear."""
    modules = dict(model.named_modules(remove_duplicate=False))
    experts = {name: x for name, x in modules.items() if is_experts(x) and quantisable(x)}
    for name, module in experts.items():
        parts = dict(linears_in(name, module))
        missing = [part for part in parts if part not in layers]
        if len(missing) == len(parts):
            continue
        if missing:
            _refuse(checkpoint, f"has no {missing[0]}, but others of {name}")
        modules |= parts
    found: dict[str, nn.Linear] = {}
    for name, layer in layers.items():
        linear = modules.get(name)
        if type(linear) is not nn.Linear or not name:  # of a subclass others may read the weight
            what = "no such module" if linear is None else f"a {type(linear).__name__}"
            layer.refuse(checkpoint, layer.main, f"must be for an nn.Linear, the model has {what}")
        if (linear.out_features, linear.in_features) != (layer.n, layer.k):
            wanted = f"[{linear.out_features}, {linear.in_features}], as in the model"
            reason = f"must have shape {wanted}, got [{layer.n}, {layer.k}]"
            layer.refuse(checkpoint, layer.main, reason)
        biased, given = linear.bias is not None, "bias" in layer.parts
        if biased != given and not (given and layer.spare_bias):
            layer.refuse(checkpoint, "bias", "must be there just when the model's Linear has one")
        found[name] = linear
    return found


def places_of(model: nn.Module, linears: Iterable[str]) -> dict[str, str]:
    """Every name under which a replaced module stands in the model -> its own name. A module in
    several places has its tensors in the checkpoint once, or for each."""
    known = dict(model.named_modules(remove_duplicate=False))
    own = dict.fromkeys(x if x in known else x.rsplit(".", 2)[0] for x in linears)
    first = {id(known[name]): name for name in reversed([*own])}
    return {
        place: place if place in own else first[id(module)]
        for place, module in model.named_modules(remove_duplicate=False)
        if id(module) in first
    }


def put_in(
    model: nn.Module, places: Mapping[str, str], make: Callable[[str, nn.Linear], nn.Module]
) -> None:
    """Puts quantised layers where `places_of` says; make: makes that of a Linear of a name."""
    made = {name: quantised_as(name, model.get_submodule(name), make) for name in places.values()}
    for place, name in places.items():
        model.set_submodule(place, made[name])


def _targets(model: nn.Module, replaced: Iterable[str]) -> dict[str, Tensor]:
    """Parameters and persistent buffers that stay, by every name they have."""
    # state_dict knows which buffers are persistent, and does not merge tied tensors.
    names = model.state_dict(keep_vars=True)
    gone = set(replaced)
    return {
        name: x
        for name, x in names.items()
        if name.rpartition(".")[0] not in gone and isinstance(x, Tensor)
    }


def _check(
    model: nn.Module, checkpoint: Checkpoint, given: list[Given], targets: dict[str, Tensor]
) -> None:
    """That model and checkpoint have the same tensors, in shape and kind."""
    made: dict[str, tuple[tuple[int, ...], torch.dtype | None, str]] = {}
    for each in given:
        if each.converter is None:
            entry = checkpoint.entry(each.files[0][0])
            made[each.name] = entry.shape, DTYPES.get(entry.dtype), entry.dtype
            continue
        for name, x in each.made(model, without_values(checkpoint)).items():
            made[name] = tuple(x.shape), x.dtype, NAMES[x.dtype]
    filled = {id(target) for name, target in targets.items() if name in made}
    for name, target in targets.items():
        if id(target) not in filled and (target.is_meta or not made_by_the_model(model, name)):
            _refuse(checkpoint, f"has no {name}, which the model has")
    for name, (shape, dtype, stored) in made.items():
        if name not in targets and name.endswith(_COMPUTED):
            continue
        if name not in targets:
            _refuse(checkpoint, f"has {name}, which the model has not")
        target = targets[name]
        if shape != tuple(target.shape):
            shapes = f"{list(target.shape)}, as in the model, got {list(shape)}"
            _refuse(checkpoint, f"{name} must have shape {shapes}")
        if not any(dtype in kind and target.dtype in kind for kind in _KINDS):
            _refuse(checkpoint, f"{name} must be {target.dtype}, as in the model, got {stored}")


def _refuse(checkpoint: Checkpoint, reason: str) -> NoReturn:
    raise ValueError(f"{checkpoint.folder}: {reason}")


def layer_for(
    checkpoint: Checkpoint, layer: QuantisedLayer, linear: nn.Linear, make: Make = whole
) -> nn.Module:
    """The layer that takes a Linear's place, on its device (on the CPU for meta)."""
    made, device = make(checkpoint, layer, linear.bias is not None), linear.weight.device
    if device.type not in ("meta", "cpu"):
        made.to(device)
    return made.train(linear.training)


def _fill(model: nn.Module, name: str, target: Tensor, value: Tensor) -> Tensor:
    """Writes value where target is; returns the tensor that is in the model now."""
    if not target.is_meta:
        return target.copy_(value)
    value = value.to(target.dtype)
    if isinstance(target, nn.Parameter):
        value = nn.Parameter(value, target.requires_grad)
    _place(model, name, value)
    return value


def _place(model: nn.Module, name: str, value: Tensor) -> None:
    owner, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(owner), attribute, value)
