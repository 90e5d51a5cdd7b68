"""What transformers asks when it saves a model that this library quantised: nothing, but where the
files have no form for it, or another than the model."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import Tensor
from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from ..nn import ScaledExperts
from .compressed_tensors import layer_tensors
from .stored_names import expert_layers


class Unsaved(HfQuantizer):  # type: ignore[misc]
    """A model's `hf_quantizer`: `save_pretrained` asks it first, and gets the refusal."""

    is_trainable = True  # adapters: gradients pass through the quantised layers
    is_compileable = True

    def __init__(self, refusal: str) -> None:
        super().__init__(QuantizationConfigMixin(quant_method="scaled_mm"))
        self.refusal = refusal

    def is_serializable(self) -> NoReturn:
        raise ValueError(self.refusal)

    def dequantize(self, model: Any, dtype: Any = None) -> NoReturn:
        raise ValueError("model must have been quantised by transformers to be dequantised by it")


class Stacked(HfQuantizer):  # type: ignore[misc]
    """A model's `hf_quantizer`: `save_pretrained` gets stacked experts one by one from it."""

    is_trainable = True
    is_compileable = True

    def __init__(self) -> None:
        super().__init__(QuantizationConfigMixin(quant_method="compressed-tensors"))

    def is_serializable(self) -> bool:
        return True

    def get_state_dict_and_metadata(self, model: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
        state, dtype = model.state_dict(), model.dtype
        for name, module in [*model.named_modules()]:
            if isinstance(module, ScaledExperts):
                for part in module.state_dict():
                    del state[f"{name}.{part}"]
                for file, made in expert_layers(model, name, module).items():
                    state |= layer_tensors(file, made(), dtype)
        return state, {}
