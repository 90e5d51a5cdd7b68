"""LoRA adapters of Hugging Face's PEFT on quantised layers.

    from scaled_mm.integrations.peft import LORA_LAYERS

    config = LoraConfig(target_modules=["q_proj", "v_proj"])
    config._register_custom_module(LORA_LAYERS)
    model = get_peft_model(quantised, config)

`_register_custom_module` is PEFT's documented way to wrap layers that it does not know ("Custom
models" in its guide; it calls it experimental). A loaded adapter wants the same: give
`PeftModel.from_pretrained` such a config.

Source: PEFT's `lora.Linear`, as of release 0.21.
"""

from __future__ import annotations

from typing import Any

from peft.tuners import lora

from ..nn import ScaledLinear, WeightOnlyLinear

__all__ = ["LORA_LAYERS", "QuantizedLora"]


class QuantizedLora(lora.Linear):
    """A quantised layer, kept as it is, and low-rank matrices beside it, which train.

        y = layer(x) + scaling * B A x

    An adapter is not merged: the sum would have to be quantised anew. Load the float model, merge
    there, and quantise the result.
    """

    def merge(self, safe_merge: bool = False, adapter_names: list[str] | None = None) -> None:
        """Raises ValueError: a quantised weight takes no adapter in."""
        kind = type(self.get_base_layer()).__name__
        raise ValueError(f"merge must be called on an adapter of a float layer, got a {kind}")


LORA_LAYERS: dict[type, Any] = dict.fromkeys((ScaledLinear, WeightOnlyLinear), QuantizedLora)
"""For `LoraConfig`: the layers and what wraps them."""
