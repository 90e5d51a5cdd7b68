"""`save_pretrained` of a quantised transformers model: made right, or refused.

That method writes the state dict and the config as they are. Without a `quantization_config` in the
config, `from_pretrained` takes int8 weights for float ones and says nothing. With it, the folder is
a checkpoint of compressed-tensors, which `load_quantized` and `from_pretrained` read.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from ..nn import ScaledExperts
from .compressed_tensors import (
    AnyLayerScheme,
    Saved,
    homeless,
    is_linear,
    one_format,
    quantization_config,
    scheme_of_layer,
)
from .rotation import Rotation
from .stored_names import expert_schemes, stored_name

_METHOD = "save_pretrained"


def prepare_saving(
    model: nn.Module, conv1d: Sequence[str], rotation: Rotation | None = None
) -> None:
    """Sees to every `save_pretrained` of a quantised model.

    Args:
        model: quantised.
        conv1d: names of those of its layers that were no `nn.Linear` before.
        rotation: what was folded into its weights.
    """
    for prefix, owner in _savers(model):
        reason = f"{conv1d[0]} was a Conv1D" if conv1d else _configure(prefix, owner, rotation)
        if reason is not None:
            _refuse(owner, reason)


def _savers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """The outermost modules that can save themselves, with the prefix of names inside them."""
    seen: list[str] = []
    for name, module in model.named_modules():
        inside = any(name.startswith(prefix) for prefix in seen)
        if callable(getattr(module, _METHOD, None)) and not inside:
            seen.append(f"{name}." if name else "")
            yield seen[-1], module


def _configure(prefix: str, owner: nn.Module, rotation: Rotation | None) -> str | None:
    """Gives the model's config its quantization_config; a text: why there can be none."""
    schemes: dict[str, AnyLayerScheme] = {}
    floats = []
    stored: dict[str, str | None] = {}
    for name, module in owner.named_modules(remove_duplicate=False):
        if isinstance(module, Saved):
            if (what := homeless(module)) is not None:
                return f"{prefix}{name} has {what}"
            schemes[name] = scheme_of_layer(module)
        elif isinstance(module, ScaledExperts):
            found = expert_schemes(owner, name, module)
            schemes |= found
            stored |= {file: file for file in found}
        elif is_linear(module):
            floats.append(name)
    config: Any = getattr(owner, "config", None)
    if not callable(getattr(config, "to_diff_dict", None)):
        return f"{type(owner).__name__} has no config of transformers"
    try:
        one_format(schemes)
    except ValueError:
        return "it has W8A8 and weight-only layers"
    for name in (*schemes, *floats):
        stored.setdefault(name, stored_name(owner, name))
    for name in schemes:
        if stored[name] is None:
            return f"{prefix}{name} is several layers in transformers' files"
    if schemes:
        config.quantization_config = quantization_config(
            {stored[name] or name: scheme for name, scheme in schemes.items()},
            [stored[name] or name for name in floats],
            rotation,
        )
    if any(isinstance(module, ScaledExperts) for module in owner.modules()):
        from .unsaved import Stacked  # transformers is there, since the model is its

        owner.hf_quantizer = Stacked()
    return None


def _refuse(owner: Any, reason: str) -> None:
    """transformers asks a model's quantiser before it saves; of other libraries' models nothing is
    known, so that all there is to do is to warn."""
    rule = f"must have a form in compressed-tensors' format to be saved by {_METHOD}"
    instead = "save model.state_dict(), and load it into scaled_mm.prepare_model(model, config)"
    text = f"model {rule}, but {reason}, which the format has no place for: {instead}"
    if not callable(getattr(getattr(owner, "config", None), "to_diff_dict", None)):
        warnings.warn(text, stacklevel=2)
        return
    from .unsaved import Unsaved  # transformers is there, since the model is its

    owner.hf_quantizer = Unsaved(text)
