"""What validation found, and what it must find to pass."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan
from typing import Any

from .text import TextReport


@dataclass(frozen=True)
class Thresholds:
    """What passes. Bits off R1 and distances beyond the published bound never do."""

    cosine_mean: float = 0.99
    """Least mean cosine similarity of the model's outputs."""
    sqnr_db: float = 10.0
    """Least SQNR of any layer."""
    saturated: float = 0.01
    """Largest part of a layer's inputs that may lie beyond the grid."""


@dataclass(frozen=True)
class LayerReport:
    """One quantised layer on all batches."""

    name: str
    scheme: str
    sqnr_db: float
    """Of the layer's own noise: against the float layer on the same inputs."""
    max_error: float
    """Largest |y - y_float|, and as a part of the largest |y_float|."""
    max_error_relative: float
    saturated: float
    """Part of the inputs beyond the int8 grid, which were clamped; dynamic or weight-only: 0."""
    grid: float
    """Part of the 256 int8 values that occurred; weight-only: of the 16 or 256 of a weight."""
    azp_mean: float
    """Mean zero point of the tokens, and the part of them where it is not 0; weight-only:
    mean zero point of the weight, and the part that is not the middle of the range (8 or 128)."""
    azp_used: float
    checked: int
    """Outputs recomputed by `scaled_mm.reference`; how many differ from R1 in any bit
    (weight-only sums have no R1: 0)."""
    off_r1: int
    worst_ulp: float
    """Largest distance of these from R0, in ulp and as a part of the published bound; how many
    are beyond it."""
    worst_of_bound: float
    beyond: int
    outlier_channels: tuple[int, ...]
    """Input channels (of the float model) whose range is many times the median's."""
    outlier_energy: float
    """Part of the input's energy in them."""
    peak_before: float
    """Largest channel range over the median one, before smoothing and after."""
    peak_after: float


@dataclass(frozen=True)
class Agreement:
    """The model's outputs end to end: rows are tokens, sentences, whatever the output has."""

    rows: int
    cosine_mean: float
    cosine_min: float
    sqnr_db: float
    max_error: float
    same_argmax: float
    """Part of the rows whose largest element is in the same place: of logits, the same answer."""


@dataclass(frozen=True)
class ValidationReport:
    """What `validate` found. `report.ok`, `print(report)`, `report.to_dict()`."""

    layers: tuple[LayerReport, ...]
    outputs: Agreement
    thresholds: Thresholds
    batches: int
    stride: int
    """Every how many-th token the bits were compared for."""
    text: TextReport | None = None
    """Perplexity and KL divergence on a text, where one was read."""

    def failures(self) -> list[str]:
        """What is beyond its threshold, one line each."""
        limits = self.thresholds
        found = []
        if not self.outputs.cosine_mean >= limits.cosine_mean:
            got = self.outputs.cosine_mean
            found.append(f"mean cosine must be >= {limits.cosine_mean:g}, got {got:.5f}")
        for layer in self.layers:
            for what, count in (("off R1", layer.off_r1), ("beyond the bound", layer.beyond)):
                if count:
                    text = f"must be 0, got {count} of {layer.checked}"
                    found.append(f"{layer.name}: outputs {what} {text}")
            if not layer.sqnr_db >= limits.sqnr_db:
                text = f"{limits.sqnr_db:g} dB, got {layer.sqnr_db:.1f}"
                found.append(f"{layer.name}: SQNR must be >= {text}")
            if not layer.saturated <= limits.saturated:
                text = f"{limits.saturated:.2%}, got {layer.saturated:.2%}"
                found.append(f"{layer.name}: saturated must be <= {text}")
        return found

    def advice(self) -> list[str]:
        """What to try where a threshold is missed, one line each."""
        found, limits = [], self.thresholds
        if any(layer.off_r1 or layer.beyond for layer in self.layers):
            found.append("wrong bits are no matter of quality: run `scaled-mm info` and report it")
        worst = self.by_noise()[0]
        if not (self.outputs.cosine_mean >= limits.cosine_mean and worst.sqnr_db >= limits.sqnr_db):
            found.append(
                f"noisiest: {worst.name} {worst.sqnr_db:.1f} dB; {_quieter(worst)}, "
                f"or keep it float by ignore=({worst.name!r},)"
            )
        if over := [x for x in self.layers if not x.saturated <= limits.saturated]:
            found.append(
                f"saturated: {over[0].name}; calibrate on more batches, or make it dynamic"
            )
        return found

    def by_noise(self) -> list[LayerReport]:
        """The layers, the noisiest first; NaN is the noisiest."""
        return sorted(self.layers, key=lambda x: -inf if isnan(x.sqnr_db) else x.sqnr_db)

    @property
    def ok(self) -> bool:
        """Whether everything is within its threshold."""
        return not self.failures()

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain JSON; what is infinite or NaN is null."""
        plain = _plain({**asdict(self), "ok": self.ok, "failures": self.failures()})
        assert isinstance(plain, dict)
        return plain

    def __str__(self) -> str:
        head = (
            f"{'ok' if self.ok else 'NOT OK'}: {len(self.layers)} layers, mean cosine "
            f"{self.outputs.cosine_mean:.5f}, {sum(x.off_r1 for x in self.layers)} of "
            f"{sum(x.checked for x in self.layers)} outputs off R1"
        )
        return "\n".join([head, *(f"  {line}" for line in self.failures())])


def _quieter(layer: LayerReport) -> str:
    """What usually makes such a layer less noisy."""
    words = layer.scheme.split()
    if words[0].startswith("w4"):
        return "try groups of 32 or zero points (w4a16-g32-asymmetric), or w8a16"
    if words[0].startswith("w8"):
        return "try smaller groups"
    if "dynamic" in words and "asym" in words:
        return "try smoothing with a search of alpha"
    return f"try overrides=(({layer.name!r}, 'dynamic-asymmetric'),)"


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(x) for name, x in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(x) for x in value]
    return None if isinstance(value, float) and not isfinite(value) else value
