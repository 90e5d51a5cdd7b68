"""Quantised linear layers in one kernel: `D = scale_a * scale_b * (A B - azp * 1 B) + bias`.

`scaled_mm` multiplies int8 activations by int8 weights, exactly, and applies scales, bias and
activation zero points in the epilogue; the rest prepares its operands. `scaled_mm.reference` is
the definition of every op in plain, exact, slow code.
"""

from importlib import import_module
from types import ModuleType

from . import _library as _library  # loads the kernels: nothing below works without them
from . import awq, checkpoint, layouts, nn, reference
from . import calibrate as calibrate
from . import observe as observe
from . import smoothquant as smoothquant
from . import tuning as tuning
from ._version import VERSION
from .checkpoint import load_quantized, save_quantized
from .lowbit.grouped import GroupedWeight, quantize_weight_grouped
from .ops import (
    MixedWeight,
    PackedAWQ,
    PackedWeight,
    awq_dequantize,
    awq_gemm,
    azp_adj,
    azp_with_adj,
    gelu_quantize_int8,
    int8_mm,
    interleave_gate_up,
    layer_norm_quantize_int8,
    mixed_mm,
    pack_awq,
    pack_weight,
    pack_weight_int8,
    quantize_int8,
    quantize_weight_int8,
    relu_quantize_int8,
    rms_norm_quantize_int8,
    scaled_mm,
    silu_mul_quantize_int8,
)
from .quantization import (
    QuantConfig,
    QuantizationReport,
    QuantizationWarning,
    Scheme,
    WeightScheme,
    fuse_model,
    prepare_model,
    quantization_report,
    quantize_model,
)

__version__ = VERSION

tuning.load()

_LATER = ("bench", "compat", "explain", "integrations", "parallel", "precompute", "validate")
"""Modules that are imported when they are first named, as `scaled_mm.validate`."""


def __getattr__(name: str) -> ModuleType:
    if name in _LATER:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "GroupedWeight",
    "MixedWeight",
    "PackedAWQ",
    "PackedWeight",
    "QuantConfig",
    "QuantizationReport",
    "QuantizationWarning",
    "Scheme",
    "WeightScheme",
    "awq",
    "awq_dequantize",
    "awq_gemm",
    "azp_adj",
    "azp_with_adj",
    "checkpoint",
    "fuse_model",
    "gelu_quantize_int8",
    "int8_mm",
    "interleave_gate_up",
    "layer_norm_quantize_int8",
    "layouts",
    "load_quantized",
    "mixed_mm",
    "nn",
    "pack_awq",
    "pack_weight",
    "pack_weight_int8",
    "prepare_model",
    "quantization_report",
    "quantize_int8",
    "quantize_model",
    "quantize_weight_grouped",
    "quantize_weight_int8",
    "reference",
    "relu_quantize_int8",
    "rms_norm_quantize_int8",
    "save_quantized",
    "scaled_mm",
    "silu_mul_quantize_int8",
]
