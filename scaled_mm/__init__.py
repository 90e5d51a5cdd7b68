"""Quantised linear layers in one kernel: `D = scale_a * scale_b * (A B - azp * 1 B) + bias`.

`scaled_mm` multiplies int8 activations by int8 weights, exactly, and applies scales, bias and
activation zero points in the epilogue; the rest prepares its operands. `scaled_mm.reference` is
the definition of every op in plain, exact, slow code.
"""

from importlib import import_module
from types import ModuleType

from . import _library as _library  # loads the kernels: nothing below works without them
from . import awq, checkpoint, layouts, nn, reference
from ._version import VERSION
from .awq import PackedAWQ as PackedAWQ
from .awq import pack_awq as pack_awq
from .checkpoint import load_quantized, save_quantized
from .compiled import load as _load_compiler
from .lowbit.grouped import quantize_weight_grouped
from .ops import epilogue_mm as _epilogue_mm  # noqa: F401 (shapes of exported programs)
from .ops.azp import azp_adj, azp_with_adj
from .ops.experts import grouped_mm, moe_combine, moe_sort
from .ops.int8 import int8_mm, interleave_gate_up, pack_weight_int8, scaled_mm
from .ops.lowbit import awq_dequantize, awq_gemm
from .ops.mixed import grouped_mixed_mm, mixed_mm
from .ops.mixed_weight import MixedWeight, pack_weight
from .ops.packed_weight import PackedWeight
from .ops.produce import (
    gelu_quantize_int8,
    layer_norm_quantize_int8,
    relu_quantize_int8,
    rms_norm_quantize_int8,
    silu_mul_quantize_int8,
)
from .ops.quantize import quantize_int8, quantize_weight_int8
from .ops.w4a8 import w4a8_mm
from .quantization.calibrate import CalibrationWarning
from .quantization.config import QuantConfig
from .quantization.fuse import fuse_model
from .quantization.model import prepare_model, quantize_model
from .quantization.observe import Call
from .quantization.report import QuantizationReport, QuantizationWarning, quantization_report
from .quantization.rotation import Rotation
from .quantization.schemes import Scheme, WeightScheme
from .quantization.smoothquant import Smoothing
from .tuning.cache import load as _load_tuning

__version__ = VERSION

_load_tuning()
_load_compiler()

_LATER = (
    "bench",
    "compat",
    "epilogue",
    "explain",
    "integrations",
    "parallel",
    "precompute",
    "validate",
)
"""Modules that are imported when they are first named, as `scaled_mm.validate`."""


def __getattr__(name: str) -> ModuleType:
    if name in _LATER:
        return import_module(f".{name}", __name__)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *_LATER})


__all__ = [
    "CalibrationWarning",
    "Call",
    "MixedWeight",
    "PackedWeight",
    "QuantConfig",
    "QuantizationReport",
    "QuantizationWarning",
    "Rotation",
    "Scheme",
    "Smoothing",
    "WeightScheme",
    "awq",
    "awq_dequantize",
    "awq_gemm",
    "azp_adj",
    "azp_with_adj",
    "checkpoint",
    "fuse_model",
    "gelu_quantize_int8",
    "grouped_mixed_mm",
    "grouped_mm",
    "int8_mm",
    "interleave_gate_up",
    "layer_norm_quantize_int8",
    "layouts",
    "load_quantized",
    "mixed_mm",
    "moe_combine",
    "moe_sort",
    "nn",
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
    "w4a8_mm",
]
