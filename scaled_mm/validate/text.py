"""How well a language model predicts a text, float and quantised.

A text is one sequence of tokens t_0 ... t_(T-1). Window i holds `length` tokens from t_(i * stride)
on; the last one ends with the text and may be shorter. A token counts in the first window that
holds it, unless it is that window's first: nothing stands before it. For n counted tokens, each
predicted from those before it in its window,

    perplexity = exp(-1/n sum log p(t))
    KL         = 1/n sum_t sum_v p_float(v) (log p_float(v) - log p_quantised(v)),  nats a token

v runs through the vocabulary. log p is a log_softmax in float32; the sums over tokens are float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf

import torch
from torch import Tensor, nn

from .._progress import progress
from ..quantization.observe import evaluating


@dataclass(frozen=True)
class Window:
    """A piece of a text: ids int64 [1, T]; the tokens from `first` on count."""

    ids: Tensor
    first: int = 1


@dataclass(frozen=True)
class Likelihood:
    """Of a quantised model: its perplexity, and the mean KL divergence (float || quantised)."""

    name: str
    perplexity: float
    kl: float


@dataclass(frozen=True)
class TextReport:
    """What `perplexity` measured, or several calls of it on one text."""

    tokens: int
    """How many were counted."""
    windows: int
    length: int
    """Of the longest window, in tokens."""
    stride: int
    """From the begin of one window to that of the next."""
    float_perplexity: float
    models: tuple[Likelihood, ...]


def windows_of(ids: Tensor, length: int, stride: int | None = None) -> list[Window]:
    """The windows of a text.

    Args:
        ids: int64 [T], the text.
        length: of a window, from 2 to T.
        stride: from 1 to length; None: length, so that no two windows overlap.

    Raises:
        ValueError: one of these does not hold.
    """
    stride = length if stride is None else stride
    if length < 2:
        raise ValueError(f"length must be at least 2, got {length}")
    if not 1 <= stride <= length:
        raise ValueError(f"stride must be from 1 to the window's length ({length}), got {stride}")
    if len(ids) < length:
        raise ValueError(f"the text must fill a window ({length} tokens), got {len(ids)} tokens")
    found, end = [], 0
    for begin in range(0, len(ids), stride):
        part, first = ids[begin : begin + length], max(end - begin, 1)
        if len(part) > first:
            found.append(Window(part[None], first))
        end = begin + len(part)
        if end == len(ids):
            break
    return found


@torch.no_grad()
def perplexity(
    model: nn.Module, quantised: nn.Module, windows: Sequence[Window], name: str = "quantised"
) -> TextReport:
    """Both models' perplexity on a text, and the KL divergence of their predictions.

    The module's text has the formulas.

    Args:
        model: float; called with ids [1, T], it returns logits [1, T, V], alone or as `.logits`.
        quantised: the same, quantised, on the same device.
        windows: of the text, from `windows_of`, on that device.
        name: of the quantised model, in the report.

    Raises:
        ValueError: there is no window, or a model returns no logits.
    """
    if not windows:
        raise ValueError("windows must hold at least one, got none")
    lost = torch.zeros(3, dtype=torch.float64)
    count = 0
    with progress("reading", len(windows)) as tick, evaluating(model), evaluating(quantised):
        for window in windows:
            p, q = (_log_probabilities(each, window) for each in (model, quantised))
            if p.shape != q.shape:
                got = f"{list(p.shape)} and {list(q.shape)}"
                raise ValueError(f"both models must have one vocabulary, got logits {got}")
            wanted = window.ids[0, window.first :, None]
            kl = torch.where(p == -inf, 0.0, p.exp() * (p - q)).sum(-1)
            lost += torch.stack(
                [x.double().sum().cpu() for x in (-p.gather(1, wanted), -q.gather(1, wanted), kl)]
            )
            count += len(wanted)
            tick()
    of_float, of_quantised, divergence = (lost / count).tolist()
    made = Likelihood(name, _exp(of_quantised), divergence)
    return TextReport(count, len(windows), *_sizes(windows), _exp(of_float), (made,))


def _log_probabilities(model: nn.Module, window: Window) -> Tensor:
    """float32 [counted tokens, V]: of what was predicted in their places."""
    output = model(window.ids)
    logits = getattr(output, "logits", output)
    if not isinstance(logits, Tensor) or logits.shape[:-1] != window.ids.shape:
        got = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"model must return logits [1, {window.ids.shape[1]}, V], got {got}")
    return logits[0, window.first - 1 : -1].float().log_softmax(-1)


def _sizes(windows: Sequence[Window]) -> tuple[int, int]:
    """Length and stride: the next window's first counted token follows the last of this one."""
    length = max(window.ids.shape[1] for window in windows)
    overlap = windows[1].first if len(windows) > 1 and windows[1].first > 1 else 0
    return length, length - overlap


def _exp(mean: float) -> float:
    return exp(mean) if mean < 700 else inf if mean == mean else mean
