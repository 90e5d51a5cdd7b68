"""How much each scheme loses on a small language model: `python tools/accuracy.py`.

A Llama of 3.7 million parameters learns the text of Python's own reference, `pydoc_data.topics` of
the standard library: four topics in five, the fifth is kept to evaluate. Then it is quantised in
every way below, calibrated on what it learned from, and reads the kept topics. So small a model has
no outlier channels, so the same is done with a copy that has some. The table has perplexity and KL
divergence as `scaled_mm.validate.perplexity` defines them. It takes some minutes on two cores, and
needs transformers and tokenizers.
"""

from __future__ import annotations

import argparse
import copy
import math
import time
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

import tokenizers
import torch
import transformers
from torch import Tensor

from scaled_mm import QuantConfig, Rotation, Smoothing, quantize_model
from scaled_mm.validate import perplexity, windows_of

LENGTH, BATCH, VOCABULARY, WARM_UP = 128, 8, 1024, 30
OUTLIER, LARGER = 64, 32  # one channel in so many, and by which factor
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": LENGTH,
}
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "smoothing": {"smoothing": Smoothing(0.5)},
    "rotation": {"rotation": Rotation()},
    "both": {"smoothing": Smoothing(0.5), "rotation": Rotation()},
}
ROWS = [
    *[(scheme, way) for scheme in ("dynamic", "static") for way in WAYS],
    *[
        (f"{scheme}-{size}", way)
        for scheme in ("w4a16", "w4a8")
        for size in ("channel", "g128", "g32")
        for way in ("", "rotation")
    ],
]


def texts() -> tuple[str, str]:
    """To learn from, and to evaluate."""
    pages = [topics[name] for name in sorted(topics)]
    kept = pages[4::5]
    return "\n".join(page for page in pages if page not in kept), "\n".join(kept)


def tokenizer_of(text: str) -> tokenizers.Tokenizer:
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator([text], vocab_size=VOCABULARY, show_progress=False)
    return made


def trained(ids: Tensor, steps: int) -> Any:
    """The model after so many steps of AdamW, each on random pieces of the text."""
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZES))
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda step: min(step / WARM_UP, 0.5 + 0.5 * math.cos(math.pi * step / steps)),
    )
    begin = time.perf_counter()
    for step in range(steps):
        starts = torch.randint(0, len(ids) - LENGTH, (BATCH,)).tolist()
        batch = torch.stack([ids[at : at + LENGTH] for at in starts])
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, {time.perf_counter() - begin:.0f} s")
    return model.eval().requires_grad_(False)


@torch.no_grad()
def with_outliers(model: Any) -> Any:
    """The same function with what large models have: a few channels that are much larger than the
    others where Linears read them. Norms multiply these, and the weights behind them divide."""
    made = copy.deepcopy(model)
    for layer in made.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for norm, readers in (
            (layer.input_layernorm, (attention.q_proj, attention.k_proj, attention.v_proj)),
            (layer.post_attention_layernorm, (mlp.gate_proj, mlp.up_proj)),
        ):
            norm.weight[::OUTLIER] *= LARGER
            for linear in readers:
                linear.weight[:, ::OUTLIER] /= LARGER
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--save", help="a folder for the float model, its tokenizer and the text")
    options = parser.parse_args()
    learned, kept = texts()
    tokenizer = tokenizer_of(learned)
    train, evaluate = (torch.tensor(tokenizer.encode(text).ids) for text in (learned, kept))
    print(f"{len(train):,} tokens to learn from, {len(evaluate):,} to evaluate")
    model = trained(train, options.steps)
    if options.save:
        save(options.save, model, tokenizer, kept)
    calibration = list(train[: 16 * LENGTH].view(4, 4, LENGTH))
    windows = windows_of(evaluate, LENGTH)
    models = (model, with_outliers(model))
    print("| scheme | with | perplexity | KL | perplexity, outliers | KL, outliers |")
    print("|---|---|---|---|---|---|")
    for scheme, way in ROWS:
        cells = []
        for each in models:
            quantised = quantize_model(each, QuantConfig(scheme, **WAYS[way]), calibration)
            report = perplexity(each, quantised, windows)
            (found,) = report.models
            cells += [f"{found.perplexity:.3f}", f"{found.kl:.5f}"]
        if (scheme, way) == ROWS[0]:
            print(
                f"| float | | {report.float_perplexity:.3f} | | {report.float_perplexity:.3f} | |"
            )
        print(f"| {scheme} | {way} | {' | '.join(cells)} |")
    print(f"{report.tokens:,} tokens counted in {report.windows} windows of {report.length}")


def save(folder: str, model: Any, tokenizer: tokenizers.Tokenizer, text: str) -> None:
    """A folder for `scaled-mm quantize` and `scaled-mm validate --float`."""
    model.save_pretrained(folder)
    made = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    transformers.PreTrainedTokenizerFast(tokenizer_object=made).save_pretrained(folder)
    (Path(folder) / "text.txt").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
