"""A loaded layer's tensors in the form of the file that they came from.

The inverse of `QuantisedLayer.module`: names, shapes and dtypes are those of the file, GPTQ's words
run along K again, and the terms that this library adds are left out. A layer that nobody has
changed gives the very bytes that were read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..checkpoint.config_awq_gptq import AwqGptq
from ..checkpoint.files import DTYPES
from ..checkpoint.folder import Checkpoint
from ..checkpoint.layer import QuantisedLayer
from ..checkpoint.layers_awq_gptq import AwqGptqLayer
from ..checkpoint.layers_packed import ByteLayer, PackedLayer
from ..lowbit.gptq import to_gptq_words
from ..lowbit.stored import to_bytes
from ..lowbit.words import pack, unsigned
from ..nn import WeightOnlyLinear
from ..quantization.compressed_tensors import narrowed


def stored_tensors(
    checkpoint: Checkpoint, layer: QuantisedLayer, module: nn.Module
) -> dict[str, Tensor]:
    """What a checkpoint holds for a layer, without its name in front.

    Args:
        checkpoint: where the layer came from; only what is known of its headers is looked at.
        layer: the layer as it was found there.
        module: what `layer.module` made, on any device.

    Returns:
        A tensor for each of `layer.parts`. Where the values have changed so that the stored dtype
        cannot hold them, they keep the module's.
    """
    held = {name: x for name, x in module.state_dict().items() if isinstance(x, Tensor)}
    if isinstance(layer, AwqGptqLayer):
        held |= _words(module, layer.scheme)
    if isinstance(layer, ByteLayer):
        held = to_bytes(held, layer.k)
    if isinstance(layer, PackedLayer) and "weight_g_idx" not in held:  # where it lies in order
        held["weight_g_idx"] = torch.arange(layer.k) // layer.group
    stored = {}
    for part in sorted(layer.parts):
        entry = checkpoint.entry(f"{layer.name}.{part}")
        dtype, device = DTYPES[entry.dtype], held[layer.main].device
        if part not in held:  # zeros, as was checked: needless zero points, a spare bias
            stored[part] = torch.zeros(entry.shape, dtype=dtype, device=device)
            continue
        x = held[part].reshape(-1)[: math.prod(entry.shape)]  # one scale was spread over channels
        stored[part] = narrowed(x.reshape(entry.shape), dtype)
    return stored


def _words(module: nn.Module, scheme: AwqGptq) -> dict[str, Tensor]:
    """In AWQ's or GPTQ's packing."""
    assert isinstance(module, WeightOnlyLinear)
    packed = module.filled()
    q, scales, zeros, _ = packed.unpack()
    if zeros is None:
        q = unsigned(q, scheme.bits)
        zeros = torch.full_like(scales, 1 << scheme.bits - 1, dtype=torch.uint8)
    if scheme.method == "awq":
        return {"qweight": pack(q), "scales": scales, "qzeros": pack(zeros)}
    q = packed.by_channel(q)
    words = to_gptq_words(q, zeros, version=scheme.version, bits=scheme.bits)
    return {"qweight": words[0], "scales": scales, "qzeros": words[1], "g_idx": packed.g_idx()}
