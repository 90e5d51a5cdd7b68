"""The tensors of one layer of a block-int8 checkpoint; `quantization/blockwise_int8.py` lists them.
Scales of 16 bits are read too, and widened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..nn.block_linear import BLOCK, ScaledBlockLinear
from ..quantization.blockwise_int8 import BlockScheme
from .config_blocks import BlockInt8
from .folder import Checkpoint
from .layer import FLOATS, Part, QuantisedLayer
from .layers import layers_in_bytes

_SCALES = "weight_scale_inv"


@dataclass(frozen=True)
class BlockLayer(QuantisedLayer):
    """A layer in blocks that was found in order."""

    scheme: BlockScheme

    kind: ClassVar = ScaledBlockLinear
    main: ClassVar[str] = "weight"

    def rules(self, checkpoint: Checkpoint) -> dict[str, Part]:
        blocks = -(-self.n // BLOCK), -(-self.k // BLOCK)
        return {
            "weight": Part(True, ("I8",), ((self.n, self.k),)),
            _SCALES: Part(True, FLOATS, (blocks,)),
            "bias": Part(None, FLOATS, ((self.n,),)),
        }

    def module(self, checkpoint: Checkpoint, biased: bool) -> ScaledBlockLinear:
        state = {part: self.read(checkpoint, part) for part in self.parts}
        scales = state[_SCALES]
        if not bool(((scales >= 0) & scales.isfinite()).all()):
            self.refuse(checkpoint, _SCALES, "must be finite and not negative")
        made = ScaledBlockLinear(self.k, self.n, biased)
        made.load_state_dict(state)
        return made


def block_layers(checkpoint: Checkpoint, settings: BlockInt8) -> dict[str, BlockLayer]:
    """Every layer with an int8 weight, by name; only headers are looked at. Raises as
    `int8_layers`."""

    def make(name: str, n: int, k: int, parts: frozenset[str]) -> BlockLayer | None:
        return None if settings.leaves_float(name) else BlockLayer(name, n, k, parts, BlockScheme())

    return layers_in_bytes(checkpoint, _SCALES, make)
