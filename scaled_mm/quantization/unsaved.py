"""What transformers asks before it saves a quantised model, where the files have no form for it."""

from __future__ import annotations

from typing import Any, NoReturn

from transformers.quantizers.base import HfQuantizer
from transformers.utils.quantization_config import QuantizationConfigMixin


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
