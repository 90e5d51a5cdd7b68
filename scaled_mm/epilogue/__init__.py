"""Epilogues of one's own: what is computed from the sums of an int8 product before it is written.

    from scaled_mm import epilogue as ep

    @ep.epilogue
    def scaled_gelu(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, residual: ep.Full):
        return ep.gelu(scale_a * (scale_b * ep.to_float(acc))) + residual

    y = scaled_gelu(a, b, scale_a=scale_a, scale_b=scale_b, residual=residual)

The function becomes a program (scaled_mm/_program.py) by being run once on values that note what is
done to them (values.py); traced.py has the decorator.
"""

from .traced import Acc, Col, Epilogue, Full, Row, Scalar, epilogue
from .values import (
    Pairs,
    Value,
    clamp,
    erf,
    exp,
    fma,
    gelu,
    gelu_tanh,
    maximum,
    minimum,
    pairs,
    quantize,
    relu,
    round_to,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    tanh,
    to_float,
    to_int,
    where,
)

__all__ = [
    "Acc",
    "Col",
    "Epilogue",
    "Full",
    "Pairs",
    "Row",
    "Scalar",
    "Value",
    "clamp",
    "epilogue",
    "erf",
    "exp",
    "fma",
    "gelu",
    "gelu_tanh",
    "maximum",
    "minimum",
    "pairs",
    "quantize",
    "relu",
    "round_to",
    "rsqrt",
    "sigmoid",
    "silu",
    "sqrt",
    "tanh",
    "to_float",
    "to_int",
    "where",
]
