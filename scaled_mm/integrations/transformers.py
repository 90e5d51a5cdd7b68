"""Quantised folders of Hugging Face, loaded by `transformers` and run by this library.

    import scaled_mm.integrations.transformers

    model = AutoModelForCausalLM.from_pretrained(folder)

After the import, `from_pretrained` of a compressed-tensors, AutoAWQ, GPTQ or block-int8 folder
gives a model whose quantised Linears are layers of `scaled_mm.nn`: the layers, and so the bits, of
`scaled_mm.load_quantized`. No parameter asks for gradients; adapters may train. `save_pretrained`
writes the folder's form again. Neither compressed-tensors nor any other package of kernels is
needed.

What the checkpoint reader of this library refuses is refused here in the same words, with one
exception: settings of quantization_config that it does not serve (such as another `format`, or 3
bits of GPTQ) are left to transformers' own quantiser, with one warning that says why. Where that
quantiser cannot run either, the refusal stands.

The import replaces entries of transformers' two tables; `unregister()` puts transformers' own back,
`register()` these again. While these are in place a `quantization_config` given to
`from_pretrained` beside the folder's own is refused by transformers: call `unregister()` first.

Source: transformers' `HfQuantizer` and its tables, as of release 5.23.
"""

from __future__ import annotations

import copy
import re
import warnings
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from transformers.quantizers import auto
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from .._torch import not_unexpected
from ..checkpoint.config import read_settings
from ..checkpoint.folder import Checkpoint
from ..checkpoint.loading import layer_for, layers_to_load, linears_of, places_of, put_in, whole
from ..checkpoint.names import Names
from ..nn.experts import layers_in
from ..nn.weight_only_linear import INT8_INPUTS
from ..quantization.swap import unfuse
from .stored import stored_tensors

__all__ = ["register", "unregister"]

METHODS = ("compressed-tensors", "awq", "gptq", "auto-round", "blockwise_int8")
"""The values of `quant_method` that are taken over."""

_int8_input: str | None = None
_theirs: dict[str, tuple[type[QuantizationConfigMixin], type[HfQuantizer]] | None] = {}
"""What stood in the tables, by method (None: nothing did); empty: nothing is registered."""


def register(*, int8_input: str | None = None) -> None:
    """Puts this library's quantiser into transformers' tables; done by the import, and harmless
    when done again.

    Args:
        int8_input: as for `scaled_mm.load_quantized`, for every model that is loaded from now on.
            Saving writes the checkpoint's own form, which says nothing of it.
    """
    global _int8_input
    if int8_input not in (None, *INT8_INPUTS):
        rule = f"int8_input must be None, {' or '.join(INT8_INPUTS)}"
        raise ValueError(f"{rule}, got {int8_input}")
    _int8_input = int8_input
    for method in METHODS:
        if method not in _theirs:
            config = auto.AUTO_QUANTIZATION_CONFIG_MAPPING.pop(method, None)
            quantizer = auto.AUTO_QUANTIZER_MAPPING.pop(method, None)
            _theirs[method] = None if config is None else (config, quantizer)
            auto.register_quantization_config(method)(ScaledMMConfig)
            auto.register_quantizer(method)(ScaledMMQuantizer)


def unregister() -> None:
    """Puts back what `register` replaced. Models that are loaded stay as they are."""
    for method in tuple(_theirs):
        theirs = _theirs.pop(method)
        tables = auto.AUTO_QUANTIZATION_CONFIG_MAPPING, auto.AUTO_QUANTIZER_MAPPING
        for at, table in enumerate(tables):
            del table[method]
            if theirs is not None:
                table[method] = theirs[at]


class ScaledMMConfig(QuantizationConfigMixin):
    """quantization_config as config.json has it, kept whole so that it is saved as it was."""

    def __init__(self, **fields: Any) -> None:
        self.quant_method = fields["quant_method"]
        self.fields = fields

    @classmethod
    def from_dict(
        cls, config_dict: dict[str, Any], return_unused_kwargs: bool = False, **kwargs: Any
    ) -> Any:
        """The settings; of transformers' own class where this library does not serve them.

        Raises:
            ValueError: neither this library nor transformers' own quantiser can run them.
        """
        try:
            read_settings("quantization_config", config_dict)
        except ValueError as refusal:
            made = _left_to_transformers(config_dict, str(refusal))
        else:
            made = cls(**config_dict)
        return (made, kwargs) if return_unused_kwargs else made

    def to_dict(self) -> dict[str, Any]:
        return copy.deepcopy(self.fields)


def _left_to_transformers(fields: dict[str, Any], refusal: str) -> QuantizationConfigMixin:
    theirs = _theirs[fields["quant_method"]]
    if theirs is None:
        raise ValueError(refusal)
    config, quantizer = theirs
    try:
        made = config.from_dict(copy.deepcopy(fields))
        quantizer(made).validate_environment(device_map=None, weights_only=True)
    except Exception as error:
        why = f"transformers' own quantiser cannot run it either: {error}"
        raise ValueError(f"{refusal}; {why}") from error
    text = f"{refusal}: not served by scaled_mm, transformers' own quantiser runs this model"
    warnings.warn(text, stacklevel=2)
    return made


class ScaledMMQuantizer(HfQuantizer):
    """transformers' way to load and save a quantised model, by this library.

    Before the float weights are read, every file's header is checked and each quantised Linear is
    taken out of the model. After they are, the layers are made of the files' tensors and put in.

    `from_pretrained` puts the model on one device: a device_map over several, and tensor
    parallelism, are refused.
    """

    requires_calibration = True
    is_trainable = True  # adapters: gradients pass through the quantised layers
    is_compileable = True

    def __new__(cls, quantization_config: QuantizationConfigMixin, **kwargs: Any) -> Any:
        """One of transformers' own for settings that `ScaledMMConfig` left to it."""
        if isinstance(quantization_config, ScaledMMConfig):
            return super().__new__(cls)
        theirs = _theirs[str(quantization_config.quant_method.value)]
        assert theirs is not None
        return theirs[1](quantization_config, **kwargs)

    def update_device_map(self, device_map: dict[str, Any] | None) -> dict[str, Any] | None:
        if device_map is not None and (
            not isinstance(device_map, dict) or len({str(x) for x in device_map.values()}) > 1
        ):
            raise ValueError(f"device_map must name one device, got {device_map}")
        return device_map

    def _process_model_before_weight_loading(self, model: Any, **kwargs: Any) -> None:
        if getattr(model.config, "distributed_config", None) is not None:
            raise ValueError(
                "distributed_config and tp_plan must be None with a model that scaled_mm quantises"
            )
        self.checkpoint = _checkpoint(kwargs.get("checkpoint_files"))
        self.layers = Names(model).layers(layers_to_load(self.checkpoint))
        self.places = places_of(model, linears_of(model, self.checkpoint, self.layers))
        for module in {model.get_submodule(place) for place in self.places}:
            for part in _without_tensors(module):  # transformers fills the rest
                for place in self.places:
                    model.all_tied_weights_keys.pop(f"{place}.{part}", None)
        taken = "|".join(re.escape(place) for place in self.places)
        not_unexpected(model, rf"^(?:{taken})\..+$")

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> None:
        def make(name: str, linear: nn.Linear) -> nn.Module:
            return layer_for(self.checkpoint, self.layers[name], linear, given).to(model.device)

        given = partial(whole, int8_input=_int8_input)

        put_in(model, self.places, make)
        for place in self.places:
            model.get_submodule(place).train(model.training)
        model.requires_grad_(False)  # quantised weights have no gradients
        unfuse(model)

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        state = model.state_dict()
        for place, name in self.places.items():
            module = model.get_submodule(place)
            for part in module.state_dict():
                del state[f"{place}.{part}"]
            for part, made in layers_in(module).items():
                layer = self.layers[f"{name}.{part}" if part else name]
                tensors = stored_tensors(self.checkpoint, layer, made())
                at = layer.name if part else place
                state |= {f"{at}.{key}": x for key, x in tensors.items()}
        return state, {}

    def is_serializable(self) -> bool:
        return True


def _without_tensors(module: nn.Module) -> list[str]:
    """Leaves a module's parameters as plain tensors without values, which no state dict has: a
    model's own code reads their sizes while transformers fills the model. Returns their names."""
    found = dict(module.named_parameters(recurse=False))
    for part, x in found.items():
        delattr(module, part)
        setattr(module, part, x.detach().to("meta"))
    return [*found]


def _checkpoint(files: list[str] | None) -> Checkpoint:
    """The checkpoint of the files that transformers will read.

    Raises:
        ValueError: it is malformed, or these are not its files.
    """
    if not files:
        raise ValueError("a quantised model must be loaded from a folder, got no files")
    paths = [Path(file) for file in files]
    checkpoint = Checkpoint(paths[0] if len(paths) == 1 else paths[0].parent)
    if {path.name for path in paths} != set(checkpoint.files):
        names = sorted(path.name for path in paths)
        raise ValueError(
            f"{checkpoint.folder}: must have its tensors in {names}, which transformers reads, "
            f"got {sorted(checkpoint.files)}"
        )
    return checkpoint


register()
