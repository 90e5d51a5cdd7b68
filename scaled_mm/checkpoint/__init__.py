"""Checkpoints from files that nobody vouches for: read strictly, and put into a model.

    files.py      one safetensors file; JSON; what is refused before it is opened
    folder.py     a checkpoint: one file, or shards with an index, and its config.json
    config.py     quantization_config: which layer is quantised how
    layers.py     the tensors of one quantised layer, and its azp term
    loading.py    load_quantized, load_float

A refusal is a `ValueError` that names the file, and within it the tensor or the key.
"""

from .config import W8A8, LayerScheme
from .files import Entry, TensorFile
from .folder import Checkpoint
from .layers import Layer, quantised_layers
from .loading import load_float, load_quantized

__all__ = [
    "W8A8",
    "Checkpoint",
    "Entry",
    "Layer",
    "LayerScheme",
    "TensorFile",
    "load_float",
    "load_quantized",
    "quantised_layers",
]
