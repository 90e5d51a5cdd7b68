"""Ranges of activations: what a static scale, and SmoothQuant, are calculated from."""

from .quantization.calibrate import CalibrationWarning, Ranges, clip, collect, merge, static_scale

__all__ = ["CalibrationWarning", "Ranges", "clip", "collect", "merge", "static_scale"]
