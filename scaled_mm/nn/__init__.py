"""Quantised layers: `ScaledLinear` in int8, `ScaledBlockLinear` in blocks of int8,
`WeightOnlyLinear` with an 8- or 4-bit weight and 16-bit activations."""

from .awq_linear import AWQLinear as AWQLinear
from .block_linear import ScaledBlockLinear as ScaledBlockLinear
from .experts import ScaledExperts as ScaledExperts
from .scaled_linear import MAX_K as MAX_K
from .scaled_linear import ScaledLinear
from .weight_only_linear import WeightOnlyLinear

__all__ = ["ScaledLinear", "WeightOnlyLinear"]
