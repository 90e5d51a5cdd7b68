"""The float model of a checkpoint's folder, and token ids for it, through transformers.

transformers is no dependency: whatever needs it says in one line how to install it. No code from
the folder is run, and nothing is fetched.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from .fields import shown
from .folder import CONFIG, Checkpoint

INSTALL = "pip install 'scaled-mm[transformers]'"
_SAFE = {"local_files_only": True, "trust_remote_code": False}


def transformers_for(what: str) -> Any:
    """The package; ModuleNotFoundError says what needs it and which command installs it."""
    try:
        return importlib.import_module("transformers")
    except ModuleNotFoundError as missing:
        if missing.name != "transformers":
            raise
        raise ModuleNotFoundError(
            f"{what} needs transformers, which is not installed: run `{INSTALL}`",
            name="transformers",
        ) from None


def model_class(checkpoint: Checkpoint, what: str) -> Any:
    """The class that `architectures` of config.json names; `what` says in a refusal who needs it.

    Raises:
        ValueError: it names none of transformers' models, or several.
        ModuleNotFoundError: transformers is not installed.
    """
    transformers = transformers_for(what)
    names = checkpoint.config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and len(names) == 1 else ""
    made: Any = getattr(transformers, name, None) if name.isidentifier() else None
    if transformers.PreTrainedModel not in getattr(made, "__mro__", ()):
        raise ValueError(
            f"{checkpoint.folder / CONFIG}: architectures must name one model of transformers, "
            f"got {shown(names)}"
        )
    return made


def skeleton(checkpoint: Checkpoint) -> nn.Module:
    """The model without values, on the meta device.

    Raises:
        ValueError, ModuleNotFoundError: as `model_class`; or transformers refuses config.json.
    """
    made = model_class(checkpoint, "finding the Linears of a model")
    try:
        config = transformers_config(checkpoint)
        with torch.device("meta"):
            model: nn.Module = made(config)
    except Exception as error:  # whatever the model's own code makes of a wrong config
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise ValueError(
            f"{checkpoint.folder / CONFIG}: {made.__name__} cannot be made of it: {reason[0][:200]}"
        ) from error
    return model.eval()


def transformers_config(checkpoint: Checkpoint) -> Any:
    """config.json as transformers reads it. No cache of keys and values: a calibration runs every
    sequence once."""
    transformers = transformers_for("reading config.json")
    config = transformers.AutoConfig.from_pretrained(checkpoint.folder, **_SAFE)
    config.use_cache = False
    return config


def load_model(checkpoint: Checkpoint) -> nn.Module:
    """The whole model with its values, in its own dtype, on the CPU, in eval mode.

    Raises:
        ValueError, ModuleNotFoundError: as `model_class`.
    """
    made = model_class(checkpoint, "running the float model")
    with _without_bars():
        model: nn.Module = made.from_pretrained(
            checkpoint.folder,
            config=transformers_config(checkpoint),
            use_safetensors=True,
            dtype="auto",
            **_SAFE,
        )
    return model.eval()


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keeps transformers from bars of its own: one display at a time."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def tokenized(folder: Path, lines: Sequence[str], length: int | None = None) -> list[Any]:
    """A batch of one for each line, by the folder's own tokenizer; length: of tokens, at most."""
    transformers = transformers_for("a tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **_SAFE)
    cut = {} if length is None else {"truncation": True, "max_length": length}
    return [dict(tokenizer(x, return_tensors="pt", verbose=False, **cut)) for x in lines]


def read_lines(path: Path) -> list[str]:
    """The lines of a text that are not empty; ValueError where there is none."""
    found = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    if not found:
        raise ValueError(f"{path}: must hold a line of text or more, got none")
    return found


def with_decoder(checkpoint: Checkpoint, batches: list[Any]) -> list[Any]:
    """The batches with ids for the decoder too, the same ones, where the model has a decoder beside
    its encoder."""
    if not transformers_config(checkpoint).is_encoder_decoder:
        return batches
    return [{**batch, "decoder_input_ids": batch["input_ids"]} for batch in batches]


def has_language_head(checkpoint: Checkpoint) -> bool:
    """Whether the model has a head that predicts the next token."""
    heads = transformers_for("perplexity").MODEL_FOR_CAUSAL_LM_MAPPING
    known = heads.get(type(transformers_config(checkpoint)), ())
    made = model_class(checkpoint, "perplexity")
    return made in (known if isinstance(known, tuple) else (known,))


def check_language_model(checkpoint: Checkpoint) -> None:
    """ValueError where `has_language_head` says no."""
    if not has_language_head(checkpoint):
        made = model_class(checkpoint, "perplexity")
        raise ValueError(
            f"{checkpoint.folder / CONFIG}: architectures must name a model with a language-model "
            f"head, such as LlamaForCausalLM, got {made.__name__}"
        )


def vocabulary(checkpoint: Checkpoint) -> int | None:
    """How many token ids the model has, if config.json says so."""
    size = checkpoint.config.get("vocab_size")
    return size if type(size) is int else None


def read_tokens(path: Path, most: int | None, length: int | None = None) -> list[Any]:
    """Batches of one, from a file with the ids of one sequence on each line, spaces between them.

    Args:
        path: the file.
        most: ids are below it; None: unknown.
        length: of a sequence, at most; what is beyond is cut off.

    Raises:
        ValueError: no sequence, or what is no id; the message names the line.
    """
    batches: list[Any] = []
    for at, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        words = line.split()[:length]
        if not words:
            continue
        for word in words:
            digits = word.isascii() and word.isdigit() and len(word) < 19
            if not digits or (most is not None and int(word) >= most):
                below = "" if most is None else f" below {most}"
                raise ValueError(f"{path}: line {at} must hold token ids{below}, got {shown(word)}")
        ids: Tensor = torch.tensor([[int(word) for word in words]])
        batches.append({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    if not batches:
        raise ValueError(f"{path}: must hold a line of token ids or more, got none")
    return batches
