"""The demo from the model file to the report: everything but its looks.

Four ways to quantise the encoder's activations are compared; its weights are always per channel. A
dynamic scale is computed per token at run time. A static one is fixed beforehand from the
smallest and largest value that each layer's input took on the calibration sentences: nothing to
compute at run time, but one outlier stretches the grid of every token, and a range that is not
centred on zero (after GELU it starts at -0.17) wastes almost half of a symmetric grid. The zero
point gives that half back; when static, its share of the product is computed beforehand too
(`azp_with_adj`).
"""

from __future__ import annotations

import copy
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ..quantization.config import QuantConfig
from ..quantization.inspect import Inspector
from ..quantization.model import quantize_model
from . import bert, data
from .measure import (
    calls,
    cosines,
    embed,
    keep_freed_memory,
    linear_share,
    observe,
    race,
    rank_correlation,
    speedup,
)

COMPARED = {
    "dynamic per token, symmetric": "dynamic",
    "dynamic per token, asymmetric": "dynamic-asymmetric",
    "static per tensor, symmetric": "static",
    "static per tensor, asymmetric": "static-asymmetric",
}
"""What the demo's table says -> the library's name of the scheme."""

FLOAT32, BFLOAT16 = "torch float32", "torch bfloat16"
STRIDE = 7
"""By default every 7th token's outputs are recomputed by the reference, at every layer."""


def quantise(encoder: bert.Encoder, scheme: str, calibration: Sequence[data.Batch]) -> bert.Encoder:
    """A copy of `encoder` with the Linears of its layers in int8, by a scheme of `COMPARED`."""
    config = QuantConfig(scheme, targets=("layers.*",))
    return quantize_model(encoder, config, calls(calibration))


@dataclass(frozen=True)
class Result:
    """One row of the demo's table: a scheme, or torch in a float dtype."""

    name: str
    cosine_mean: float
    """Cosine similarity of the evaluation sentences' embeddings to float32's: mean and least."""
    cosine_min: float
    rank_correlation: float
    """Spearman's rho of all pairwise similarities with float32's."""
    sqnr_db: dict[str, float]
    """Per quantised layer, in running order; none for torch."""
    elements: int
    """Layer outputs recomputed by `scaled_mm.reference`, and how many differ in any bit."""
    off_r1: int
    milliseconds: float
    """Forward pass of all sentences, median of the rounds."""
    times_float32: float
    """How many times as fast as torch float32 and bfloat16, medians of the rounds' ratios."""
    times_bfloat16: float

    def median_db(self) -> float:
        return statistics.median(self.sqnr_db.values())

    def worst_layer(self) -> str:
        return min(self.sqnr_db, key=lambda layer: self.sqnr_db[layer])


@dataclass(frozen=True)
class DemoReport:
    """What `scaled-mm demo` prints."""

    baselines: list[Result]
    schemes: list[Result]
    sentences: int
    evaluated: int
    """The sentences behind all columns but the times; the others calibrated the static scales."""
    tokens: int
    """Of all sentences, with their [CLS] and [SEP], without padding."""
    stride: int
    """Every how many-th token the bits were compared for."""
    rounds: int
    device: str
    """cpu, or the name of the GPU."""
    threads: int
    linear_share: float
    """Part of the float32 forward pass spent in the Linears."""


def run(
    rounds: int | None = None,
    stride: int = STRIDE,
    tick: Callable[[str, float], None] = lambda stage, done: None,
    device: str = "cpu",
) -> DemoReport:
    """Quantises MiniLM-L6-v2 under every scheme and measures each.

    Even sentences calibrate, odd ones evaluate; the forward passes of all of them are timed.

    Args:
        rounds: of timing; None chooses by the speed of the machine.
        stride: compare bits for every stride-th token.
        tick: called with the stage at work and the part of the whole that is done.
    """
    tick("reading the model", 0.0)
    folder = data.model_folder()
    tokens = data.tokenize(folder, data.sentences())
    original = bert.load(folder).to(device)

    def batches(tokens: Sequence[Sequence[int]]) -> list[data.Batch]:
        return [batch.to(device) for batch in data.batches(tokens, data.BATCH_SIZE[device])]

    calibration, evaluation = batches(tokens[0::2]), batches(tokens[1::2])
    contenders = {FLOAT32: original, BFLOAT16: copy.deepcopy(original).bfloat16()}
    found = {name: embed(encoder, evaluation).cpu() for name, encoder in contenders.items()}

    inspectors, off_r1 = {}, {}
    for place, (name, scheme) in enumerate(COMPARED.items()):
        tick("quantising, and comparing every layer", 0.1 + 0.12 * place)
        contenders[name] = quantise(original, scheme, calibration)
        inspectors[name] = Inspector(original.linears(), stride)
        found[name] = observe(contenders[name], evaluation, inspectors[name]).cpu()
        off_r1[name] = inspectors[name].off_r1()

    tick("timing", 0.6)
    keep_freed_memory()
    everything = batches(tokens)
    seconds = race(contenders, everything, rounds, lambda done: tick("timing", 0.6 + 0.4 * done))
    share = linear_share(original, everything)

    def result(name: str) -> Result:
        similar = cosines(found[name], found[FLOAT32])
        inspector = inspectors.get(name)
        return Result(
            name=name,
            cosine_mean=float(similar.mean()),
            cosine_min=float(similar.min()),
            rank_correlation=rank_correlation(found[name], found[FLOAT32]),
            sqnr_db=inspector.sqnr_db() if inspector else {},
            elements=inspector.elements() if inspector else 0,
            off_r1=off_r1.get(name, 0),
            milliseconds=1e3 * statistics.median(seconds[name]),
            times_float32=speedup(seconds[name], seconds[FLOAT32]),
            times_bfloat16=speedup(seconds[name], seconds[BFLOAT16]),
        )

    return DemoReport(
        baselines=[result(name) for name in (FLOAT32, BFLOAT16)],
        schemes=[result(name) for name in COMPARED],
        sentences=len(tokens),
        evaluated=len(tokens[1::2]),
        tokens=sum(map(len, tokens)),
        stride=stride,
        rounds=len(seconds[FLOAT32]),
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        threads=torch.get_num_threads(),
        linear_share=share,
    )
