"""A checkpoint may bring Python of its own, for transformers to import. It is never run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import extra
from test_quantize_blocks import batches, written

from scaled_mm import QuantConfig
from scaled_mm.checkpoint import quantize_checkpoint
from scaled_mm.checkpoint.float_model import tokenized

extra("transformers")

CODE = """
from pathlib import Path
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizer
Path({mark!r}).touch()
class Config(LlamaConfig):
    model_type = "stranger"
class Model(LlamaForCausalLM):
    config_class = Config
class Tokenizer(PreTrainedTokenizer):
    pass
"""
AUTO = {"AutoConfig": "code.Config", "AutoModelForCausalLM": "code.Model"}


def quantize(folder: Path) -> Any:
    return quantize_checkpoint(folder, folder.parent / "out", QuantConfig("static"), batches())


def tokenize(folder: Path) -> Any:
    return tokenized(folder, ["a line"])


CALLS: dict[str, tuple[Callable[[Path], Any], str, dict[str, Any]]] = {
    "config": (quantize, "config.json", {"model_type": "stranger", "auto_map": AUTO}),
    "tokenizer": (
        tokenize,
        "tokenizer_config.json",
        {"tokenizer_class": "Tokenizer", "auto_map": {"AutoTokenizer": ["code.Tokenizer", None]}},
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_it_is_not_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # If it were, its copy would go here.
    cache = "transformers.dynamic_module_utils.HF_MODULES_CACHE"
    monkeypatch.setattr(cache, str(tmp_path / "modules"))
    call, file, fields = CALLS[name]
    folder, mark = written(tmp_path / "in", "llama", torch.float32), tmp_path / "was-run"
    (folder / "code.py").write_text(CODE.format(mark=str(mark)))
    path = folder / file
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | fields))
    with pytest.raises(ValueError, match="custom code"):
        call(folder)
    assert not mark.exists()
