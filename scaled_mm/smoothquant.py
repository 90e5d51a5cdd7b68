"""SmoothQuant: the hard part of an activation's range moves into the weight.

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha),   (X / s) (W s).T = X W.T

for each input channel j; s_j = 1 where either maximum is 0. The division goes into the LayerNorm or
RMSNorm in front of a Linear where nothing else reads that norm, and else into the layer's quantiser
(`ScaledLinear.input_smooth`), one product for each element.

Xiao et al., "SmoothQuant", 2023 (arXiv:2211.10438). The maxima come from calibration;
`scaled_mm.quantize_model` applies what is planned here.
"""

from .quantization.calibrate import CalibrationWarning
from .quantization.smoothquant import ALPHAS as ALPHAS
from .quantization.smoothquant import Smoothing

__all__ = ["CalibrationWarning", "Smoothing"]
