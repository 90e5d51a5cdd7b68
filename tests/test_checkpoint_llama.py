"""Real files: tiny Llamas that `compressed-tensors` and llm-compressor wrote, read back and run.

The logits are those of the reference composed in plain torch, bit for bit, and near those of
transformers' own forward, which decompresses the weights.
"""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_cases import VARIANTS, state_of, write
from helpers import assert_bits, extra
from int4_cases import Form, state_of_int4
from llamas import IDS, compressed, llama, relative
from safetensors.torch import load_file
from test_checkpoint import Reference
from torch import Tensor, nn

from scaled_mm import load_quantized
from scaled_mm.nn import ScaledLinear
from scaled_mm.precompute import precompute

extra("compressed_tensors")
transformers = extra("transformers")

DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def written(folder: Path, name: str, dtype: torch.dtype, **weights: Any) -> tuple[Path, nn.Module]:
    """A checkpoint of a variant, and the float model that was quantised."""
    dynamic, symmetric = VARIANTS[name]
    original = llama(dtype)
    ranges: dict[str, Tensor] = {}

    def observe(layer: str) -> Any:
        def hook(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
            ranges[layer] = torch.stack(inputs[0].aminmax())[:, None]

        return hook

    for layer, module in original.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(observe(layer))
    original(IDS)
    inputs = {"num_bits": 8, "strategy": "token" if dynamic else "tensor"}
    inputs |= {"symmetric": symmetric, "dynamic": dynamic}
    of_weights = {"num_bits": 8, "strategy": "channel", **weights}
    compressed(folder, llama(dtype), of_weights, inputs, None if dynamic else ranges)
    return folder, original


def by_reference(folder: Path, name: str, dtype: torch.dtype) -> nn.Module:
    """The Llama with every quantised Linear in the words of the reference."""
    dynamic, symmetric = VARIANTS[name]
    state = state_of(folder)
    model = llama(dtype)
    for layer in [key.removesuffix(".weight_scale") for key in state if key.endswith("t_scale")]:
        own = {
            key.rpartition(".")[2]: x for key, x in state.items() if key.rpartition(".")[0] == layer
        }
        model.set_submodule(layer, Reference(own, symmetric, token=dynamic))
    rest = {k: x for k, x in state.items() if k in model.state_dict()}
    assert rest.keys() == model.state_dict().keys()
    model.load_state_dict(rest)
    return model


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", VARIANTS)
def test_the_logits_are_the_references(name: str, dtype: str, tmp_path: Path) -> None:
    folder, original = written(tmp_path / "ct", name, DTYPES[dtype])
    assert len(list(folder.glob("*.safetensors"))) > 1
    model = load_quantized(llama(DTYPES[dtype]), folder)
    assert sum(isinstance(module, ScaledLinear) for module in model.modules()) == 14
    logits = model(IDS).logits
    assert_bits(logits, by_reference(folder, name, DTYPES[dtype])(IDS).logits, name)

    theirs = transformers.LlamaForCausalLM.from_pretrained(folder, dtype=DTYPES[dtype])(IDS).logits
    exact = original(IDS).logits
    assert 0 < relative(theirs, exact) < 0.1
    # As far from the decompressed forward as that is from the float model, at most.
    assert relative(logits, theirs) < 1.5 * relative(theirs, exact) + 0.01
    assert relative(logits, exact) < 0.1


@pytest.mark.parametrize("name", VARIANTS)
def test_a_precomputed_checkpoint_is_the_same_model(name: str, tmp_path: Path) -> None:
    """For this library, and for transformers, which passes over what it does not know."""
    folder, _ = written(tmp_path / "ct", name, torch.bfloat16)
    report = precompute(folder, tmp_path / "out")
    assert len(report.terms) == (0 if VARIANTS[name][1] else 14)
    for load in (
        lambda path: load_quantized(llama(), path),
        lambda path: transformers.LlamaForCausalLM.from_pretrained(path),
    ):
        assert_bits(load(tmp_path / "out")(IDS).logits, load(folder)(IDS).logits, name)


def written_int4(folder: Path, model: nn.Module, form: Form, shards: int) -> None:
    """A checkpoint with an index and transformers' whole config.json."""
    write(folder, state_of_int4(model, form, ("lm_head",)), None, shards)
    config = {**model.config.to_dict(), "quantization_config": form.config()}
    (folder / "config.json").write_text(json.dumps(config))


LLM_COMPRESSOR = Path(__file__).parent / "vectors" / "llm-compressor"


def test_the_default_recipe_of_llm_compressor_loads() -> None:
    """llm-compressor's own, as tests/vectors/llm_compressor.py wrote it. GPTQ's `actorder: static`
    asks for nothing at run time: the columns are where they were."""
    quantization = json.loads((LLM_COMPRESSOR / "config.json").read_text())["quantization_config"]
    assert quantization["config_groups"]["group_0"]["weights"]["actorder"] == "static"
    config = transformers.LlamaConfig.from_pretrained(LLM_COMPRESSOR)
    model = transformers.LlamaForCausalLM(config).bfloat16().eval()
    load_quantized(model, LLM_COMPRESSOR)
    assert sum(isinstance(module, ScaledLinear) for module in model.modules()) == 14
    known = load_file(LLM_COMPRESSOR / "logits.safetensors")
    with torch.no_grad():
        logits = model(known["ids"]).logits
    own = relative(known["quantised"], known["float"])
    assert 0.05 < own < 0.1
    # Their symmetric grid ends at 127.5 and ours at 127, so they differ by part of their error.
    assert relative(logits, known["quantised"]) < 0.75 * own
    assert relative(logits, known["float"]) < 1.25 * own
