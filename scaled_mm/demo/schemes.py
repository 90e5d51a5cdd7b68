"""The four ways to quantise the encoder's activations; its weights are always per channel.

A dynamic scale is computed per token at run time. A static one is fixed beforehand from the
smallest and largest value that each layer's input took on the calibration sentences: nothing to
compute at run time, but one outlier stretches the grid of every token, and a range that is not
centred on zero (after GELU it starts at -0.17) wastes almost half of a symmetric grid. The zero
point gives that half back; when static, its share of the product is computed beforehand too
(`azp_with_adj`).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from ..calibrate import collect, static_scale
from ..nn import ScaledLinear
from .bert import Encoder
from .data import Batch
from .measure import calls


@dataclass(frozen=True)
class Scheme:
    """How the activations are quantised."""

    name: str
    dynamic: bool
    """True: a scale per token, at run time. False: one scale per layer, from calibration."""
    symmetric: bool
    """True: no zero point."""


SCHEMES = (
    Scheme("dynamic per token, symmetric", dynamic=True, symmetric=True),
    Scheme("dynamic per token, asymmetric", dynamic=True, symmetric=False),
    Scheme("static per tensor, symmetric", dynamic=False, symmetric=True),
    Scheme("static per tensor, asymmetric", dynamic=False, symmetric=False),
)


def calibrate(encoder: Encoder, batches: Sequence[Batch]) -> dict[str, Tensor]:
    """Name of each Linear -> float32 [2], the smallest and the largest element of its inputs."""
    found = collect(encoder, encoder.linears(), calls(batches))
    return {name: ranges.whole() for name, ranges in found.items()}


def quantise(encoder: Encoder, scheme: Scheme, ranges: Mapping[str, Tensor]) -> Encoder:
    """A copy of `encoder` with the Linears of its layers replaced; it shares all other weights."""
    shared = {id(weight): weight for weight in encoder.parameters()}
    quantised = copy.deepcopy(encoder, memo=shared)
    for name, linear in encoder.linears().items():
        assert isinstance(linear, nn.Linear)
        scale = azp = None
        if not scheme.dynamic:  # the quantiser's own min/max rule, applied to the range seen
            scale, azp = static_scale(ranges[name], scheme.symmetric)
        depth, attribute = name.split(".")
        replacement = ScaledLinear.from_linear(
            linear,
            dynamic=scheme.dynamic,
            symmetric=scheme.symmetric,
            input_scale=scale,
            input_azp=azp,
        )
        setattr(quantised.layers[int(depth)], attribute, replacement)
    return quantised
