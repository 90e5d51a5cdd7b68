"""`quantization_config` of block-int8 checkpoints (`quantization/blockwise_int8.py` has the form).

Which layers are quantised, the tensors say; those that the config leaves float must be.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..nn.block_linear import BLOCK
from ..quantization.blockwise_int8 import BlockScheme
from .config_awq_gptq import named_in
from .fields import Fields, shown

_FLOAT = ("ignored_layers", "modules_to_not_convert")


@dataclass(frozen=True)
class BlockInt8:
    """The settings of a block-int8 checkpoint."""

    skip: tuple[str, ...]
    """Names, or parts of names between dots, of modules that stay float."""

    def leaves_float(self, name: str) -> bool:
        """Whether the config says so of a module."""
        return named_in(name, self.skip)

    def __str__(self) -> str:
        return str(BlockScheme())


class BlockFields(Fields):
    """Reads the form."""

    def quantization(self, fields: dict[str, Any]) -> BlockInt8:
        size = fields.get("weight_block_size")
        if size != [BLOCK, BLOCK]:
            self.refuse(f"weight_block_size must be [{BLOCK}, {BLOCK}], got {shown(size)}")
        if fields.get("activation_scheme") != "dynamic":
            got = shown(fields.get("activation_scheme"))
            self.refuse(f"activation_scheme must be dynamic, got {got}")
        known = {"quant_method", "weight_block_size", "activation_scheme", *_FLOAT}
        self.understood("", fields, known)
        skip = (name for key in _FLOAT for name in self.strings(key, fields.get(key) or []))
        return BlockInt8(tuple(skip))
