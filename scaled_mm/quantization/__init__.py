"""Models in int8: calibrated, smoothed, replaced, and looked at.

model.py         QuantConfig, Scheme, quantize_model, prepare_model
calibrate.py     ranges of activations
smoothquant.py   which layers are smoothed by what; feeds.py which norm feeds which Linears
observe.py       the inputs and outputs of layers on batches
inspect.py       a layer's own noise, and its bits against the reference
"""

from .model import SCHEMES, QuantConfig, Scheme, prepare_model, quantize_model

__all__ = ["SCHEMES", "QuantConfig", "Scheme", "prepare_model", "quantize_model"]
