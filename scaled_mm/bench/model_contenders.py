"""The models of `scaled-mm bench --model`: each is made in the place of a bfloat16 one.

Contenders of other libraries take part where these can be imported. The last layer, `lm_head`,
stays as it is in all of them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn

from .._extras import needed
from ..quantization.config import QuantConfig
from ..quantization.model import quantize_model
from .contenders import CPU, GPU, Contender

DTYPE = torch.bfloat16
BASE = "bf16"
"""The contender that all times are set against."""


def ours(scheme: str, model: nn.Module) -> nn.Module:
    return quantize_model(model, QuantConfig(scheme), inplace=True)


def fused(scheme: str, model: nn.Module) -> nn.Module:
    device = next(model.parameters()).device
    batch = {"input_ids": torch.zeros(1, 4, dtype=torch.int64, device=device)}
    return quantize_model(model, QuantConfig(scheme), fuse=batch, inplace=True)


def torch_dynamic(model: nn.Module) -> nn.Module:
    quantize_dynamic = torch.ao.quantization.quantize_dynamic
    model = model.float()
    head = model.get_submodule("lm_head")
    made: nn.Module = quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8, inplace=True)
    made.set_submodule("lm_head", head)
    return made


def torchao(config: str, options: dict[str, Any], model: nn.Module) -> nn.Module:
    (quantization,) = needed("the contender", "torchao.quantization")

    def meant(module: nn.Module, name: str) -> bool:
        return isinstance(module, nn.Linear) and name != "lm_head"

    quantization.quantize_(model, getattr(quantization, config)(**options), filter_fn=meant)
    return model


def bitsandbytes(bits: int, model: nn.Module) -> nn.Module:
    (bnb,) = needed("the contender", "bitsandbytes")
    frozen = {"requires_grad": False}
    for name, old in [*model.named_modules()]:
        if not isinstance(old, nn.Linear) or name == "lm_head":
            continue
        weight, sizes = old.weight.data, (old.in_features, old.out_features, old.bias is not None)
        if bits == 8:
            new = bnb.nn.Linear8bitLt(*sizes, has_fp16_weights=False)
            new.weight = bnb.nn.Int8Params(weight.cpu(), has_fp16_weights=False, **frozen)
        else:
            new = bnb.nn.Linear4bit(*sizes, compute_dtype=DTYPE, quant_type="nf4")
            new.weight = bnb.nn.Params4bit(weight.cpu(), quant_type="nf4", **frozen)
        new.bias = old.bias
        model.set_submodule(name, new.to(weight.device))
    return model


INT8_AO = partial(torchao, "Int8DynamicActivationInt8WeightConfig", {})
INT4_AO = partial(torchao, "Int4WeightOnlyConfig", {"group_size": 128})
CONTENDERS = [
    Contender(BASE, "the model in bfloat16", lambda model: model),
    Contender("w8a8", "int8, activations by each token's range, fused", partial(fused, "dynamic")),
    Contender("w8a16", "weights of 8 bits", partial(ours, "W8A16")),
    Contender("w4a16", "weights of 4 bits in groups of 128", partial(ours, "W4A16")),
    Contender(
        "torch dynamic",
        "torch's quantize_dynamic, float32 between Linears",
        torch_dynamic,
        CPU,
    ),
    Contender("torchao int8", "torchao: int8, dynamic activations", INT8_AO),
    Contender("torchao int4", "torchao: weights of 4 bits in groups of 128", INT4_AO, GPU),
    Contender("bnb int8", "bitsandbytes: LLM.int8()", partial(bitsandbytes, 8), GPU),
    Contender("bnb nf4", "bitsandbytes: NF4", partial(bitsandbytes, 4), GPU),
]
