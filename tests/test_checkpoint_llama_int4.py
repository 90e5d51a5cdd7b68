"""Tiny Llamas and a Phi-3, whose qkv is one Linear, in AutoAWQ's and GPTQ's formats, read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_cases import state_of, write
from helpers import assert_bits, extra
from int4_cases import FORMS, Form, dequantised, layers_of, plainly, state_of_int4
from llamas import IDS, llama, relative
from test_checkpoint_int4 import weight_of
from torch import nn
from weight_only_cases import assert_layers_within_their_bound

from scaled_mm import load_quantized
from scaled_mm.checkpoint.folder import Checkpoint
from scaled_mm.nn import WeightOnlyLinear

transformers = extra("transformers")

NAMES = [
    "awq",
    "awq-bfloat16",
    "gptq-v1",
    "gptq-v1-act-order",
    "gptq-v1-one-group",
    "gptq-v2",
    "gptq-v2-act-order",
    "gptq8-v1-symmetric",
    "gptq8-v1-act-order",
    "gptq8-v2",
]


def written(folder: Path, model: nn.Module, form: Form, shards: int) -> None:
    """A checkpoint with an index and transformers' whole config.json."""
    write(folder, state_of_int4(model, form, ("lm_head",)), None, shards)
    config = {**model.config.to_dict(), "quantization_config": form.config()}
    (folder / "config.json").write_text(json.dumps(config))


def check(folder: Path, model: nn.Module, exact: nn.Module, form: Form, layers: int) -> None:
    """Weights bit for bit, every layer within its bound, logits near the float reference's."""
    state = state_of(folder)
    for name, tensors in layers_of(state).items():
        assert_bits(weight_of(model.get_submodule(name)), plainly(tensors, form), name)
    assert type(model.lm_head) is nn.Linear
    assert assert_layers_within_their_bound(model, IDS) == layers
    logits, expected = model(IDS).logits, dequantised(exact, state, form)(IDS).logits
    # The inputs and outputs of the int4 layers are rounded to 16 bits; 1.2 to 1.4 eps were seen.
    assert 0 < relative(logits, expected) < 4 * torch.finfo(form.dtype).eps


@pytest.mark.parametrize("name", NAMES)
def test_llama(name: str, tmp_path: Path) -> None:
    form = FORMS[name]
    written(tmp_path, llama(torch.float32), form, shards=3)
    assert len(Checkpoint(tmp_path).files) == 3
    model = load_quantized(llama(torch.float32), tmp_path)
    check(tmp_path, model, llama(torch.float32), form, layers=14)
    original = llama(torch.float32)(IDS).logits
    cost = {4: 0.05, 8: 0.005}[form.bits]  # of the bits themselves, at least
    assert relative(model(IDS).logits, original) > cost


@pytest.mark.parametrize("name", ["awq", "gptq-v2-act-order"])
def test_phi3_with_its_fused_layers(name: str, tmp_path: Path) -> None:
    def phi3() -> nn.Module:
        torch.manual_seed(0)
        config = transformers.Phi3Config(
            vocab_size=128,
            hidden_size=48,
            intermediate_size=80,
            num_hidden_layers=1,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=64,
            original_max_position_embeddings=64,
            initializer_range=0.2,
            pad_token_id=0,
            attn_implementation="eager",
        )
        return transformers.Phi3ForCausalLM(config).eval().requires_grad_(False)

    form = FORMS[name]
    written(tmp_path, phi3(), form, shards=1)
    model = load_quantized(phi3(), tmp_path)
    for layer in ("self_attn.qkv_proj", "mlp.gate_up_proj"):
        assert isinstance(model.model.layers[0].get_submodule(layer), WeightOnlyLinear)
    check(tmp_path, model, phi3(), form, layers=4)
