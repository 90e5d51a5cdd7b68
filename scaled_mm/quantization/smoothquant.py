"""SmoothQuant: the hard part of an activation's range moves into the weight.

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha),   (X / s) (W s).T = X W.T

for each input channel j; s_j = 1 where either maximum is 0. The division goes into the LayerNorm or
RMSNorm in front of a Linear where nothing else reads that norm (`feeds.py`), and else into the
layer's quantiser (`ScaledLinear.input_smooth`), one product for each element.

Xiao et al., "SmoothQuant", 2023 (arXiv:2211.10438). The maxima come from calibration;
`scaled_mm.quantize_model` applies what is planned here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import progress
from .calibrate import Ranges, collect, merge
from .feeds import Feeds, find_feeds, scales
from .layers import as_linear, fits
from .observe import Call

ALPHAS = tuple(i / 20 for i in range(21))
ROWS = 256
"""Inputs of each layer and batch that a search tries alphas on."""
FEW_SENTENCES, HIGH_ALPHA = 16, 0.75
NEAR_ONE = 0.9
_LIMIT = 2.0**100  # s and 1 / s stay far from both ends of float32

Build = Callable[[str, Ranges, "Tensor | None"], nn.Module]
"""build(name, ranges, s): the Linear `name` quantised, calibrated by `ranges`, smoothed by s."""


@dataclass(frozen=True)
class Smoothing:
    """Which layers to smooth, and how much.

    alpha 0 leaves all of the range to the activations, 1 moves all of it into the weights.

    Args:
        alpha: in [0, 1], of the layers that `alphas` does not match.
        layers: patterns, as `QuantConfig` has them; None: the layers that are fed by a norm.
        alphas: pairs of pattern and alpha; the first that matches goes before `alpha`.
        search: alphas of which each layer takes the best for itself, instead of the above;
            `ALPHAS`, say.
        folds: of the search: ranges from all batches but every folds-th, noise on those; 1: on the
            same.
        into_norms: whether to divide norms where the model allows it.
        pairs: norm and all the layers that read it, where the caller knows better than a trial run.

    Raises:
        ValueError: an alpha is outside [0, 1], or folds below 1.
        TypeError: layers is one string.
    """

    alpha: float = 0.5
    layers: tuple[str, ...] | None = None
    alphas: tuple[tuple[str, float], ...] = ()
    search: tuple[float, ...] = ()
    folds: int = 2
    into_norms: bool = True
    pairs: tuple[tuple[str, tuple[str, ...]], ...] | None = None

    def __post_init__(self) -> None:
        refuse_strings("layers", self.layers or ())
        for alpha in (self.alpha, *self.search, *(alpha for _, alpha in self.alphas)):
            if not 0 <= alpha <= 1:
                raise ValueError(f"alpha must be in [0, 1], got {alpha:g}")
        if self.folds < 1:
            raise ValueError(f"folds must be at least 1, got {self.folds}")


@dataclass(frozen=True)
class Smooth:
    """The smoothing of one layer."""

    s: Tensor
    """float32 [K]: what the input is divided by."""
    alpha: float
    norm: str | None
    """The norm that divides; None: the layer's quantiser does."""


def refuse_strings(argument: str, given: Sequence[Any], of: str = "patterns") -> Sequence[Any]:
    """The patterns that were given; TypeError for one string, which would be read by letters."""
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        hint = f": write ({given!r},)" if isinstance(given, str) and of == "patterns" else ""
        raise TypeError(f"{argument} must be a tuple of {of}, got {given!r}{hint}")
    for pattern in given if of == "patterns" else ():
        if not isinstance(pattern, str):
            raise TypeError(f"{argument} must hold strings, got {pattern!r}")
    return given


def factors(x_absmax: Tensor, w_absmax: Tensor, alpha: float) -> Tensor:
    """SmoothQuant's s, float32 [K], by the largest magnitudes of each input channel.

    s_j = max|X_j|^alpha / max|W_j|^(1 - alpha),  1 where either maximum is 0
    """
    x, w = x_absmax.double(), w_absmax.double()
    s = x**alpha / w ** (1 - alpha)
    return s.where((x > 0) & (w > 0), 1.0).clamp(1 / _LIMIT, _LIMIT).float()


def remarks(
    smooth: Mapping[str, Smooth], fed: Collection[str], smoothing: Smoothing, sentences: int
) -> Iterator[str]:
    """What of `decide`'s probably is worse than something else, for a warning."""
    high = [name for name in smooth if name not in fed and smooth[name].alpha >= HIGH_ALPHA]
    if high and sentences < FEW_SENTENCES:
        yield (
            f"alpha >= {HIGH_ALPHA} on layers that no norm feeds ({high[0]} and {len(high) - 1}"
            f" more) needs {FEW_SENTENCES} calibration sentences or more, got {sentences}"
        )
    if not smoothing.search or not smooth:
        return
    if smoothing.folds == 1:
        yield (
            "a search of alpha with folds=1 judges ranges by the inputs that they were "
            "calibrated on, which overfits towards 1: use 2 folds or more"
        )
    near_one = [name for name, each in smooth.items() if each.alpha >= NEAR_ONE]
    if len(near_one) > len(smooth) / 2:
        yield (
            f"the search chose alpha >= {NEAR_ONE} for {len(near_one)} of {len(smooth)} "
            "layers, which is what overfitting looks like: calibrate on more sentences, or "
            "search below"
        )


def decide(
    model: nn.Module,
    linears: Mapping[str, nn.Module],
    calls: Sequence[Call],
    smoothing: Smoothing,
    build: Build,
) -> tuple[dict[str, Smooth], frozenset[str], dict[str, Ranges]]:
    """Calibrates, and decides what every layer is smoothed by.

    Layers that share a foldable norm share s, of the maxima over all their weights. `build`
    quantises a layer for the search to try.

    Returns:
        Name -> `Smooth` of the layers that are smoothed; the layers that a norm feeds; and name ->
        `Ranges` (before smoothing) of all that the batches reached.
    """
    folds = smoothing.folds if smoothing.search else 1
    if len(calls) < folds:
        raise ValueError(f"calibration must have at least folds={folds} batches, got {len(calls)}")
    rows = ROWS if smoothing.search else 0
    parts = [collect(model, linears, calls[i::folds], rows) for i in range(folds)]
    ranges = merge(parts)
    feeds = _feeds(model, linears, calls[0], smoothing)
    chosen = [name for name in linears if name in ranges and _chosen(name, feeds, smoothing)]
    foldable = {
        norm: names
        for norm, names in feeds.foldable.items()
        if smoothing.into_norms and set(names) <= set(chosen)
    }
    norm_of = {name: norm for norm, names in foldable.items() for name in names}
    alone = [(name,) for name in chosen if name not in norm_of]
    planned: dict[str, Smooth] = {}
    groups = [*foldable.values(), *alone]
    with progress("searching alpha" if smoothing.search else "smoothing", len(groups)) as tick:
        for names in groups:
            weights = _absmax([linears[name] for name in names])
            if smoothing.search:
                tried = [{name: part[name] for name in names if name in part} for part in parts]
                alpha = search(tried, linears, weights, smoothing.search, build)
            else:
                alpha = _alpha(names[0], smoothing)
            x_absmax = merge([{"": ranges[name]} for name in names])[""].absmax
            s = factors(x_absmax, weights, alpha)
            planned |= {name: Smooth(s, alpha, norm_of.get(name)) for name in names}
            tick()
    in_order = {name: planned[name] for name in linears if name in planned}
    return in_order, frozenset(feeds.fed), ranges


@torch.no_grad()
def search(
    parts: Sequence[Mapping[str, Ranges]],
    linears: Mapping[str, nn.Module],
    w_absmax: Tensor,
    alphas: Iterable[float],
    build: Build,
) -> float:
    """The alpha with the least output noise on inputs that its ranges were not calibrated on.

        noise(alpha) = sum over folds and layers of |Q(X) - Y|^2 / |Y|^2

    where Q is calibrated on the other folds and X, Y are the kept rows of this one.

    Args:
        parts: for each fold, the ranges (with rows) of the layers that share s.
        linears: the float layers.
        w_absmax: [K], over the layers' weights.
        alphas: what to try; of equals the first is taken.
        build: quantises a layer.
    """
    parts = [part for part in parts if part]
    others = [merge(p for p in parts if p is not held) for held in parts]
    if len(parts) == 1:
        others = [dict(parts[0])]

    def noise(alpha: float) -> float:
        return sum(
            _noise(held, other, linears, w_absmax, alpha, build)
            for held, other in zip(parts, others, strict=True)
        )

    return min(alphas, key=noise)


def _noise(
    held: Mapping[str, Ranges],
    calibrated: Mapping[str, Ranges],
    linears: Mapping[str, nn.Module],
    w_absmax: Tensor,
    alpha: float,
    build: Build,
) -> float:
    s = factors(merge({"": r} for r in calibrated.values())[""].absmax, w_absmax, alpha)
    total = 0.0
    for name, ranges in held.items():
        if name not in calibrated:
            continue
        want = linears[name](ranges.rows).float()
        got = build(name, calibrated[name], s)(ranges.rows).float()
        noise, signal = (got - want).square().sum(), want.square().sum()
        total += float(noise / signal) if signal else 0.0
    return total


def _absmax(linears: Sequence[nn.Module]) -> Tensor:
    """float32 [K]: the largest magnitude of each input channel over the weights."""
    weights = [as_linear(linear).weight.detach() for linear in linears]
    maxima = [weight.abs().amax(0).float() for weight in weights]
    return torch.stack(maxima).amax(0)


def _feeds(
    model: nn.Module, linears: Mapping[str, nn.Module], call: Call, smoothing: Smoothing
) -> Feeds:
    if smoothing.pairs is None:
        return find_feeds(model, linears, call)
    foldable = dict(smoothing.pairs)
    for name in chain.from_iterable(foldable.values()):
        if name not in linears:
            raise ValueError(f"pairs must name Linears that are quantised, got {name!r}")
    for norm, names in foldable.items():
        module = model.get_submodule(norm)
        like = as_linear(linears[names[0]]).weight
        x = torch.randn(8, like.shape[1], dtype=like.dtype, device=like.device)
        if not scales(module, x):
            raise ValueError(f"pairs must name norms that scale with their weight, got {norm!r}")
    return Feeds({name: norm for norm, names in foldable.items() for name in names}, foldable)


def _chosen(name: str, feeds: Feeds, smoothing: Smoothing) -> bool:
    if smoothing.layers is None:
        return name in feeds.fed
    return any(fits(name, pattern) for pattern in smoothing.layers)


def _alpha(name: str, smoothing: Smoothing) -> float:
    given = (alpha for pattern, alpha in smoothing.alphas if fits(name, pattern))
    return next(given, smoothing.alpha)
