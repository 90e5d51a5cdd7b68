"""What `scaled-mm validate` compares: a float model, the same quantised, and batches."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from torch import nn

from ..checkpoint.float_model import (
    check_language_model,
    load_model,
    read_tokens,
    tokenized,
    vocabulary,
    with_decoder,
)
from ..checkpoint.folder import Checkpoint
from ..quantization.model import SCHEMES, QuantConfig, quantize_model
from ..quantization.schemes import NAMES_OF_WEIGHTS, known_scheme
from ..quantization.smoothquant import ALPHAS, Smoothing
from .text import Window, windows_of

HYBRID = "hybrid"
NORM_FED = ("*.query", "*.key", "*.value", "*.ffn_up")
"""MiniLM's Linears that a LayerNorm feeds."""


def config_of(scheme: str, alpha: float | None, search: bool, everywhere: bool) -> QuantConfig:
    """The config that the command's options mean; ValueError if they mean none.

    hybrid: static where a LayerNorm feeds the layer, smoothed at 0.75; else dynamic asymmetric.
    """
    if scheme == HYBRID:
        alpha = 0.75 if alpha is None else alpha
        overrides = tuple((pattern, "static-asymmetric") for pattern in NORM_FED)
        base = "dynamic-asymmetric"
    elif known_scheme(scheme) is not None:
        overrides, base = (), scheme
    else:
        known = ", ".join((*SCHEMES, HYBRID, NAMES_OF_WEIGHTS))
        raise ValueError(f"--scheme must be one of {known}, got {scheme}")
    layers = ("*",) if everywhere else None
    smoothing = None
    if search:
        smoothing = Smoothing(layers=layers, search=ALPHAS[::2])
    elif alpha is not None:
        smoothing = Smoothing(alpha, layers)
    elif everywhere:
        raise ValueError("--everywhere must come with --alpha or --search, got neither")
    return QuantConfig(base, overrides=overrides, smoothing=smoothing)


def minilm(config: QuantConfig, text: Path | None) -> tuple[nn.Module, nn.Module, list[Any]]:
    """MiniLM, the same quantised, and evaluation batches: of the sentences (one a line, the demo's
    when None), those at even places calibrate, those at odd ones evaluate."""
    from ..demo import bert, data, measure

    folder = data.model_folder()
    tokens = data.tokenize(folder, sentences(text))
    encoder = bert.load(folder)
    size = min(data.BATCH_SIZE["cpu"], len(tokens) // 4)  # the search wants two batches
    calibration = measure.calls(data.batches(tokens[0::2], size))
    quantised = quantize_model(encoder, config, calibration)
    return encoder, quantised, list(measure.calls(data.batches(tokens[1::2], size)))


def called(target: str, form: str) -> tuple[Any, ...]:
    """What the user's `module:function` returns; form says in a refusal what that must be. The
    module may lie in the current folder."""
    module, _, name = target.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    function = getattr(importlib.import_module(module), name, None)
    if not callable(function):
        raise ValueError(f"{target} must name a function of {module}, got {name or 'none'}")
    found = function()
    if not isinstance(found, tuple) or len(found) != form.count(",") + 1:
        raise ValueError(f"{target} must return {form}, got {type(found).__name__}")
    return found


def users(target: str) -> tuple[nn.Module, nn.Module | Path, Any]:
    """What the user's function returns: model, quantised model (or its checkpoint), batches."""
    if ":" not in target:
        forms = "minilm, module:function or a quantised checkpoint"
        raise ValueError(f"TARGET must be {forms}, got {target}")
    model, quantised, batches = called(target, "(model, quantised, batches)")
    return model, quantised, batches


def against(
    quantised: Path, source: str | None, text: Path | None, tokens: Path | None = None
) -> tuple[nn.Module, Path, Any]:
    """A quantised checkpoint, and what it is compared with: the user's `module:function` that
    returns (model, batches), or a float checkpoint of transformers, with its tokenizer or with
    token ids."""
    if source is None:
        raise ValueError(f"--float must be given with a checkpoint, got {quantised} alone")
    if Path(source).is_dir():
        model, batches = from_transformers(Path(source), text, tokens)
    elif ":" not in source:
        forms = "module:function or the folder of a float checkpoint"
        raise ValueError(f"--float must be {forms}, got {source}")
    elif text is not None or tokens is not None:
        given = "--text" if text is not None else "--tokens"
        raise ValueError(f"{given} must come with a folder in --float: a function has its batches")
    else:
        model, batches = called(source, "(model, batches)")
    return model, quantised, batches


def from_transformers(
    folder: Path, text: Path | None, tokens: Path | None = None
) -> tuple[nn.Module, list[Any]]:
    """The model of a float checkpoint in its own dtype, and the sentences as batches of one.

    Raises:
        ValueError: the checkpoint is malformed, quantised, or of a model that transformers has not.
        ModuleNotFoundError: transformers is not installed.
    """
    if text is not None and tokens is not None:
        raise ValueError("--text or --tokens must be given, got both")
    checkpoint = Checkpoint(folder)
    if checkpoint.quantization is not None:
        raise ValueError(f"{folder}: is quantised; --float must name a float checkpoint")
    model = load_model(checkpoint)
    if tokens is not None:
        batches = read_tokens(tokens, vocabulary(checkpoint))
    else:
        batches = tokenized(folder, sentences(text))
    return model, with_decoder(checkpoint, batches)


def text_windows(source: str | None, text: Path, length: int, stride: int | None) -> list[Window]:
    """The windows of a whole file, by the tokenizer of the float checkpoint.

    Raises:
        ValueError: there is no such checkpoint, its model has no language-model head or takes fewer
            tokens than a window has, or the text is empty, shorter than a window, or not of its
            vocabulary.
    """
    if source is None or not Path(source).is_dir():
        rule = "come with a checkpoint, and the folder of its float model in --float"
        raise ValueError(f"--perplexity must {rule}, got {source or 'none'}")
    checkpoint = Checkpoint(source)
    check_language_model(checkpoint)
    most = checkpoint.config.get("max_position_embeddings")
    if isinstance(most, int) and length > most:
        raise ValueError(f"--window must be at most {most}, the model's positions, got {length}")
    words = text.read_text(encoding="utf-8")
    if not words.strip():
        raise ValueError(f"{text}: must hold a text, got none")
    ids = tokenized(checkpoint.folder, [words])[0]["input_ids"][0]
    known = vocabulary(checkpoint)
    if known is not None and int(ids.max()) >= known:
        raise ValueError(f"{source}: the tokenizer must give ids below {known}, got {ids.max()}")
    try:
        return windows_of(ids, length, stride)
    except ValueError as error:
        raise ValueError(f"{text}: {error}") from None


def sentences(text: Path | None) -> list[str]:
    """The lines of a file that are not empty, or the demo's sentences."""
    from ..demo import data

    if text is None:
        return data.sentences()
    found = [line for line in text.read_text(encoding="utf-8").splitlines() if line.strip()]
    if len(found) < 4:
        raise ValueError(f"--text must hold at least 4 sentences, got {len(found)}")
    return found
