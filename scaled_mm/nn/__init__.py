"""Quantised layers: `ScaledLinear` in int8, `AWQLinear` with an int4 weight."""

from .awq_linear import AWQLinear
from .scaled_linear import MAX_K as MAX_K
from .scaled_linear import ScaledLinear

__all__ = ["AWQLinear", "ScaledLinear"]
