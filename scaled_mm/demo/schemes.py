"""The four ways to quantise the encoder's activations; its weights are always per channel.

A dynamic scale is computed per token at run time. A static one is fixed beforehand from the
smallest and largest value that each layer's input took on the calibration sentences: nothing to
compute at run time, but one outlier stretches the grid of every token, and a range that is not
centred on zero (after GELU it starts at -0.17) wastes almost half of a symmetric grid. The zero
point gives that half back; when static, its share of the product is computed beforehand too
(`azp_with_adj`).
"""

from __future__ import annotations

from collections.abc import Sequence

from ..quantization.config import QuantConfig
from ..quantization.model import quantize_model
from .bert import Encoder
from .data import Batch
from .measure import calls

COMPARED = {
    "dynamic per token, symmetric": "dynamic",
    "dynamic per token, asymmetric": "dynamic-asymmetric",
    "static per tensor, symmetric": "static",
    "static per tensor, asymmetric": "static-asymmetric",
}
"""What the demo's table says -> the library's name of the scheme."""


def quantise(encoder: Encoder, scheme: str, calibration: Sequence[Batch]) -> Encoder:
    """A copy of `encoder` with the Linears of its layers in int8, by a scheme of `COMPARED`."""
    config = QuantConfig(scheme, targets=("layers.*",))
    return quantize_model(encoder, config, calls(calibration))
