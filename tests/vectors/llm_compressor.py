"""Writes llm-compressor/: a tiny Llama in W8A8, by llm-compressor's recipe of SmoothQuant and GPTQ.

    python -m venv /tmp/llm-compressor
    /tmp/llm-compressor/bin/pip install torch==2.13.0 llmcompressor==0.14.0.1
    /tmp/llm-compressor/bin/python tests/vectors/llm_compressor.py tests/vectors/llm-compressor

It needs an environment of its own, because that package pins other versions of transformers and
compressed-tensors than the tests use. The weights are random. logits.safetensors holds two inputs,
and for them the logits of the float model and of the quantised one in that package's own forward.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import torch
from datasets import Dataset
from llmcompressor import oneshot
from llmcompressor.modifiers.gptq import GPTQModifier
from llmcompressor.modifiers.transform.smoothquant import SmoothQuantModifier
from safetensors.torch import save_file
from tokenizers import Tokenizer, models
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

VOCAB, TOKENS = 64, 16


def float_model(folder: Path) -> LlamaForCausalLM:
    """A Llama with outlier channels, loaded from a folder: the package reads that again."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        initializer_range=0.2,
    )
    model = LlamaForCausalLM(config).bfloat16()
    for name, x in model.named_parameters():
        if name.endswith("layernorm.weight"):
            x.data[::8] *= 8
    model.save_pretrained(folder)
    return LlamaForCausalLM.from_pretrained(folder, dtype="auto").eval()


def main(folder: Path, temporary: Path) -> None:
    model = float_model(temporary / "float")
    samples = torch.randint(0, VOCAB, (16, TOKENS))
    data = {"input_ids": samples.tolist(), "attention_mask": torch.ones_like(samples).tolist()}
    words = {f"<{i}>": i for i in range(VOCAB)}  # a tokenizer must be there; nothing is tokenized
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="<0>")), pad_token="<0>"
    )
    recipe = [
        SmoothQuantModifier(smoothing_strength=0.8),
        GPTQModifier(targets="Linear", scheme="W8A8", ignore=["lm_head"]),
    ]
    with torch.no_grad():
        before = model(samples[:2]).logits
        oneshot(
            model=model,
            tokenizer=tokenizer,
            dataset=Dataset.from_dict(data),
            recipe=recipe,
            max_seq_length=TOKENS,
            num_calibration_samples=len(samples),
        )
        after = model(samples[:2]).logits
    saved = temporary / "quantised"
    model.save_pretrained(saved, save_compressed=True)
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((saved / name).read_bytes())
    save_file(
        {"ids": samples[:2], "float": before, "quantised": after}, folder / "logits.safetensors"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        main(Path(sys.argv[1]), Path(temporary))
