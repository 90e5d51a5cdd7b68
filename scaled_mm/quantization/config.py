"""`QuantConfig`: what `quantize_model` is to do."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from .layers import fits
from .rotation import Rotation
from .schemes import IN_BLOCKS, AnyScheme, BlockScheme, scheme_of
from .smoothquant import Smoothing, refuse_strings

TARGETS = ("Linear", "Conv1D")
NOT_BY_DEFAULT = (
    *("lm_head", "*.lm_head", "*lm_head.decoder", "*predictions.decoder"),
    *("embed_out", "generator_lm_head", "vocab_projector"),
)
"""Heads over a vocabulary, as transformers calls them; most share the embedding's weight."""


@dataclass(frozen=True)
class QuantConfig:
    """What `quantize_model` does.

    `targets` and `ignore` mean what they mean in compressed-tensors. A pattern is the name of a
    layer, as `model.named_modules()` has it, or `re:` and a regular expression that is found at the
    name's begin. `*`, `?` and `[qk]` in a name stand for any characters, one character, and one of
    these (`fnmatch`). In `targets` the name of a class stands for all layers of it. A pattern that
    matches no layer is refused, except those that stand here by default.

    Args:
        scheme: of all layers that no override matches: a `Scheme` (8-bit weights and activations),
            a `WeightScheme` (weights alone), or the name of one, as `"W8A8"`. `"blocks"` is int8
            with a scale for each 128 x 128 of the weight and 128 columns of a token.
        targets: patterns of the layers to quantise; by default every Linear, and the Conv1D of
            transformers.
        ignore: patterns of those of them to leave as they are; by default heads over a vocabulary.
        overrides: pairs of pattern and scheme; the first pair that matches a layer goes before
            `scheme`.
        smoothing: which layers SmoothQuant smooths, and how much; None: none.
        rotation: of a Llama-like or Qwen-like model, folded into its weights before they are
            smoothed and quantised; None: none.
        percentile: static ranges that hold this part, in %, of the calibration's elements, in
            (50, 100]. None: all of them, which is better wherever outliers matter.

    Raises:
        ValueError: a scheme has no such name, or percentile is out of its range.
        TypeError: targets or ignore is one string, or holds what is none; overrides are not pairs.
    """

    scheme: AnyScheme | str = "dynamic"
    targets: tuple[str, ...] = TARGETS
    ignore: tuple[str, ...] = NOT_BY_DEFAULT
    overrides: tuple[tuple[str, AnyScheme | str], ...] = ()
    smoothing: Smoothing | None = None
    rotation: Rotation | None = None
    percentile: float | None = None

    def __post_init__(self) -> None:
        refuse_strings("targets", self.targets)
        refuse_strings("ignore", self.ignore)
        for pair in refuse_strings("overrides", self.overrides, of="pairs of pattern and scheme"):
            if isinstance(pair, str) or len(pair) != 2:
                raise TypeError(f"overrides must be pairs of pattern and scheme, got {pair!r}")
        for scheme in (self.scheme, *(scheme for _, scheme in self.overrides)):
            if isinstance(scheme_of(scheme), BlockScheme) and self.smoothing is not None:
                raise ValueError(f"smoothing must be None beside the scheme {IN_BLOCKS}")
        if self.percentile is not None and not 50 < self.percentile <= 100:
            raise ValueError(f"percentile must be in (50, 100], got {self.percentile:g}")

    def scheme_for(self, name: str) -> AnyScheme:
        """The scheme of one layer."""
        given = (scheme for pattern, scheme in self.overrides if fits(name, pattern))
        return scheme_of(next(given, self.scheme))

    def patterns(self) -> list[tuple[str, str]]:
        """Argument and pattern, of all patterns that have to match a layer."""
        smoothing = self.smoothing or Smoothing()
        given: dict[str, Iterable[str]] = {
            "targets": (pattern for pattern in self.targets if pattern not in ("*", *TARGETS)),
            "ignore": (pattern for pattern in self.ignore if pattern not in NOT_BY_DEFAULT),
            "overrides": (pattern for pattern, _ in self.overrides),
            "smoothing.layers": smoothing.layers or (),
            "smoothing.alphas": (pattern for pattern, _ in smoothing.alphas),
        }
        return [(argument, pattern) for argument, found in given.items() for pattern in found]
