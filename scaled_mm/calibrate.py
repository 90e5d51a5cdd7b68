"""Ranges of activations: what a static scale, and SmoothQuant, are calculated from."""

from .quantization.calibrate import CalibrationWarning

__all__ = ["CalibrationWarning"]
