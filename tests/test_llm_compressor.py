"""A file that llm-compressor itself wrote, by the recipe that its own documents begin with.

tests/vectors/llm_compressor.py says how it was made.
"""

import json
from pathlib import Path

import torch
from helpers import extra
from safetensors.torch import load_file

from scaled_mm import load_quantized
from scaled_mm.nn import ScaledLinear

transformers = extra("transformers")

FOLDER = Path(__file__).parent / "vectors" / "llm-compressor"


def relative(got: torch.Tensor, exact: torch.Tensor) -> float:
    return float((got.double() - exact.double()).norm() / exact.double().norm())


def test_its_default_recipe_loads() -> None:
    """GPTQ's `actorder: static` asks for nothing at run time: the columns are where they were."""
    quantization = json.loads((FOLDER / "config.json").read_text())["quantization_config"]
    assert quantization["config_groups"]["group_0"]["weights"]["actorder"] == "static"
    config = transformers.LlamaConfig.from_pretrained(FOLDER)
    model = transformers.LlamaForCausalLM(config).bfloat16().eval()
    load_quantized(model, FOLDER)
    assert sum(isinstance(module, ScaledLinear) for module in model.modules()) == 14
    known = load_file(FOLDER / "logits.safetensors")
    with torch.no_grad():
        logits = model(known["ids"]).logits
    own = relative(known["quantised"], known["float"])
    assert 0.05 < own < 0.1
    # Their symmetric grid ends at 127.5 and ours at 127, so they differ by part of their error.
    assert relative(logits, known["quantised"]) < 0.75 * own
    assert relative(logits, known["float"]) < 1.25 * own
