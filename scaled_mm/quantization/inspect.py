"""What a quantised layer does to its inputs: its own noise, and its bits against the reference."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from math import inf, log10
from typing import Any

import torch
from torch import Tensor, nn

from .. import reference
from ..nn import ScaledBlockLinear, ScaledLinear
from ..nn.block_linear import BLOCK
from .observe import one_scale


class Inspector:
    """A visit (`observe.Visit`) that accumulates, per layer, quantisation's noise and samples.

    SQNR of a layer: 10 log10(sum y^2 / sum (y - y_int8)^2) over all its outputs, where y is what
    the float layer makes of the very input that the int8 layer got: the layer's own noise,
    without that of the layers before it.

    Bits are compared for every `stride`-th token, since the reference is slow: a prime, so that
    the rows met lie at every place of a kernel's tile. They are kept (as copies: a view would keep
    all tokens) until asked for: rows do not depend on each other, and few large calls of the
    reference are faster than many small ones.
    """

    def __init__(self, originals: Mapping[str, nn.Module], stride: int) -> None:
        self.originals = originals
        self.stride = stride
        self.signal = dict.fromkeys(originals, 0.0)
        self.noise = dict.fromkeys(originals, 0.0)
        self.samples: dict[str, list[tuple[nn.Module, Tensor, Tensor]]] = defaultdict(list)

    def __call__(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        self.compare(name, y, self.originals[name](x))
        self.keep(name, layer, x, y)

    def keep(self, name: str, layer: nn.Module, x: Tensor, y: Tensor) -> None:
        """Every stride-th output, and of the inputs what these depend on: the same rows, and where
        all rows share a scale their least and largest values behind them."""
        rows = [x[:: self.stride]]
        if one_scale(layer) and len(x):
            rows += [x.amin(0, keepdim=True), x.amax(0, keepdim=True)]
        self.samples[name].append((layer, torch.cat(rows), y[:: self.stride].clone()))

    def compare(self, name: str, y: Tensor, exact: Tensor) -> None:
        """Take the outputs of one call into account."""
        self.signal[name] += float(exact.float().square().sum())
        self.noise[name] += float((exact.float() - y.float()).square().sum())

    def judged(self, name: str) -> Iterator[tuple[Tensor, dict[str, Any]]]:
        """What was kept of a layer: outputs, and what `reference.scaled_mm` takes for them."""
        kept = self.samples[name]
        layers, xs, ys = zip(*kept, strict=True)
        if one_scale(layers[0]):  # each call is its own
            for layer, x, y in kept:
                yield y, reference_arguments(layer, x, len(y))
        else:
            yield torch.cat(ys), reference_arguments(layers[0], torch.cat(xs))

    def elements(self) -> int:
        """How many outputs are kept."""
        return sum(y.numel() for kept in self.samples.values() for _, _, y in kept)

    def off_r1(self) -> int:
        """How many of them differ in any bit from the reference's."""
        return sum(
            differing_bits(y.cpu(), reference.scaled_mm(**given, out_dtype=y.dtype))
            for name in self.samples
            for y, given in self.judged(name)
        )

    def sqnr_db(self) -> dict[str, float]:
        """Layer name -> SQNR in dB, in running order."""
        return {
            name: decibels(self.signal[name], noise) if noise else inf
            for name, noise in self.noise.items()
        }


def decibels(signal: float, noise: float) -> float:
    """10 log10(signal / noise); infinity without noise, minus infinity without signal."""
    if not noise:
        return inf
    return 10 * log10(signal / noise) if signal else -inf


def reference_arguments(layer: nn.Module, x: Tensor, rows: int | None = None) -> dict[str, Any]:
    """What `reference.scaled_mm` takes for layer(x)[:rows], by the reference alone; x
    [tokens, K]."""
    state = layer.state_dict()
    b = state["weight"].t()
    if isinstance(layer, ScaledBlockLinear):
        q, scale = of_groups(x)
        scales = state["weight_scale_inv"].t()
        return {"a": q, "b": b, "scale_a": scale, "scale_b": scales, "bias": state.get("bias")}
    assert isinstance(layer, ScaledLinear)
    smooth = state.get("input_smooth")
    q, scale, azp = reference.quantize_int8(
        x if smooth is None else x.cpu().float() * smooth.cpu(),
        scale=state.get("input_scale"),
        azp=state.get("input_zero_point"),
        symmetric=layer.symmetric,
        per_token=layer.per_token,
        rotate=layer.rotate,
    )
    zero_point: dict[str, Tensor] = {}
    if azp is not None and layer.dynamic:
        zero_point = {"azp": azp, "azp_adj": reference.azp_adj(b)}
    elif azp is not None:
        zero_point = {"azp_with_adj": reference.azp_with_adj(b, azp)}
    return {
        "a": q[:rows],
        "b": b,
        "scale_a": scale,
        "scale_b": state["weight_scale"].t(),
        "bias": state.get("bias"),
        **zero_point,
    }


def of_groups(x: Tensor) -> tuple[Tensor, Tensor]:
    """q and scales of x [tokens, K] in groups of 128, by the reference alone."""
    parts = [reference.quantize_int8(part) for part in x.split(BLOCK, 1)]
    return torch.cat([q for q, _, _ in parts], 1), torch.cat([scale for _, scale, _ in parts], 1)


def differing_bits(got: Tensor, want: Tensor) -> int:
    """How many elements of a float dtype differ in any bit; NaN equals NaN."""
    integer = {2: torch.int16, 4: torch.int32}[got.element_size()]
    differs = got.view(integer) != want.view(integer)
    return int((differs & ~(got.isnan() & want.isnan())).sum())
