"""A loaded layer's tensors in the form of the file that they came from.

The inverse of `QuantisedLayer.module`: names, shapes and dtypes are those of the file, GPTQ's words
run along K again, and the terms that this library adds are left out. A layer that nobody has
changed gives the very bytes that were read.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from ..checkpoint.compressed_tensors import narrowed
from ..checkpoint.files import DTYPES
from ..checkpoint.folder import Checkpoint
from ..checkpoint.layer import QuantisedLayer
from ..checkpoint.layers_awq_gptq import AwqGptqLayer
from ..checkpoint.layers_packed import PackedLayer
from ..lowbit.gptq import to_gptq_words
from ..lowbit.int4 import Int4, from_awq, to_gptq
from ..lowbit.words import unsigned
from ..nn import AWQLinear, WeightOnlyLinear


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
    if isinstance(layer, AwqGptqLayer) and layer.scheme.method == "gptq":
        held |= _as_gptq(module, layer.scheme.version)
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


def _as_gptq(module: nn.Module, version: int) -> dict[str, Tensor]:
    if isinstance(module, WeightOnlyLinear):
        return _as_gptq_of_8_bits(module, version)
    weight = _unpacked(module)
    made = to_gptq(weight, version=version)
    g_idx = weight.group_of_rows() if made.g_idx is None else made.g_idx
    return {
        "qweight": made.qweight,
        "scales": made.scales,
        "qzeros": made.qzeros,
        "g_idx": g_idx,
    }


def _as_gptq_of_8_bits(module: WeightOnlyLinear, version: int) -> dict[str, Tensor]:
    packed = module.filled()
    q, scales, zeros, _ = packed.unpack()
    if zeros is None:
        q, zeros = unsigned(q, 8), torch.full_like(scales, 128, dtype=torch.uint8)
    words = to_gptq_words(packed.by_channel(q), zeros, version=version, bits=8)
    return {"qweight": words[0], "scales": scales, "qzeros": words[1], "g_idx": packed.g_idx()}


def _unpacked(module: nn.Module) -> Int4:
    assert isinstance(module, AWQLinear)
    weight = from_awq(module.qweight, module.scales, module.qzeros)
    return weight if module.order is None else weight.out_of_order(module.order)
