"""The format of block-int8 checkpoints, as it is written: a layer's tensors, and the config.

    NAME.weight             int8 [N, K]
    NAME.weight_scale_inv   float32 [ceil(N/128), ceil(K/128)]
    NAME.bias               float [N], where the layer has one

    {"quant_method": "blockwise_int8", "activation_scheme": "dynamic",
     "weight_block_size": [128, 128], "ignored_layers": ["lm_head"]}

Source: DeepSeek's block-scaled checkpoints in int8, as SGLang (0.5) reads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..nn.block_linear import BLOCK

METHOD = "blockwise_int8"


@dataclass(frozen=True)
class BlockScheme:
    """How every Linear is quantised: activations at run time, by token in groups of 128. The same
    in the words of a config, where it is the scheme `blocks`."""

    static = False  # nothing is calibrated

    def __str__(self) -> str:
        return f"int8 in blocks of {BLOCK} x {BLOCK}"


def block_config(floats: Sequence[str]) -> dict[str, Any]:
    """The `quantization_config` of config.json; floats: names of Linears that stay float."""
    return {
        "quant_method": METHOD,
        "activation_scheme": "dynamic",
        "weight_block_size": [BLOCK, BLOCK],
        "ignored_layers": list(floats),
    }
