"""The measurements behind `validate`."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .._progress import progress
from .._torch import tree_leaves
from ..checkpoint import load_quantized
from ..checkpoint.folder import Checkpoint, rotation_in
from ..nn import ScaledBlockLinear, ScaledExperts, ScaledLinear, WeightOnlyLinear
from ..quantization.inspect import decibels
from ..quantization.layers import linears_in
from ..quantization.observe import Call, as_calls, evaluating, observe
from ..quantization.report import rotation_of
from ..quantization.rotation import rotate
from .folds import Fold, find_folds
from .layers import LayerInspector
from .report import Agreement, Thresholds, ValidationReport

STRIDE = 7
Layer = ScaledLinear | WeightOnlyLinear | ScaledBlockLinear


def first_tensor(output: Any) -> Tensor:
    """The first float tensor in a model's output: logits, the last hidden state, an embedding."""
    for leaf in tree_leaves(dict(output) if isinstance(output, Mapping) else output):
        if isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.ndim:
            return leaf
    raise TypeError(f"a model's output must hold a float tensor, got {type(output).__name__}")


def agreement(wanted: Sequence[Tensor], got: Sequence[Tensor]) -> Agreement:
    """How near two models' outputs are; each a list of [rows, N]."""
    want, have = torch.cat(list(wanted)).double(), torch.cat(list(got)).double()
    cosine = F.cosine_similarity(have, want, dim=-1)
    error = have - want
    return Agreement(
        rows=len(want),
        cosine_mean=float(cosine.mean()),
        cosine_min=float(cosine.min()),
        sqnr_db=decibels(float(want.square().sum()), float(error.square().sum())),
        max_error=float(error.abs().max()),
        same_argmax=float((have.argmax(-1) == want.argmax(-1)).double().mean()),
    )


def validate(
    model: nn.Module,
    quantised: nn.Module | str | Path | Checkpoint,
    batches: Iterable[Any],
    *,
    thresholds: Thresholds | None = None,
    stride: int = STRIDE,
    output: Callable[[Any], Tensor] = first_tensor,
) -> ValidationReport:
    """Compares a quantised model with the float model that it was made from, layer by layer.

    Args:
        model: the float model.
        quantised: the same with layers of `scaled_mm.nn` under the names of Linears, such as
            `scaled_mm.quantize_model` makes, on the same device; or a quantised checkpoint, which
            `scaled_mm.load_quantized` puts into a copy of the model. Factors that its quantiser
            moved into norms or the layers in front are found and undone, so that a layer's noise is
            its own. Of a rotated model the float layers are rotated too, by the recorded seed.
        batches: as for `scaled_mm.quantize_model`; not those of its calibration.
        thresholds: what passes; default: `Thresholds()`.
        stride: bits are compared for every stride-th token.
        output: takes from what a model returns the tensor [..., N] to compare; default: the first.

    Returns:
        A `ValidationReport`: per layer (of experts per Linear, if a token was sent to it) the
        noise, the use of the grid, the distance from R0 and equality with R1
        (`scaled_mm.reference`; weight-only sums have a bound and no R1); end to end the agreement
        of the outputs; and `ok`.

    Raises:
        ValueError: nothing is quantised, a layer has no float Linear of its name or shape or was
            not reached, there is no batch, or the checkpoint is refused.
        TypeError: a batch has no known form, or an output holds no float tensor.
    """
    calls = as_calls(batches)
    if isinstance(quantised, nn.Module):
        rotation = rotation_of(quantised)
    else:
        quantised = quantised if isinstance(quantised, Checkpoint) else Checkpoint(quantised)
        rotation = rotation_in(quantised)
    turned = model
    if rotation is not None:
        turned = copy.deepcopy(model)
        rotate(turned, rotation, calls[0])
    if not isinstance(quantised, nn.Module):
        quantised = load_quantized(copy.deepcopy(turned), quantised)
    modules = {n: m for n, m in quantised.named_modules() if isinstance(m, Layer | ScaledExperts)}
    if not modules:
        raise ValueError("quantised must hold a ScaledLinear or WeightOnlyLinear, got none")
    layers = {name: module for name, module in modules.items() if isinstance(module, Layer)}
    originals = _originals(turned, layers)
    folds = find_folds(turned, quantised, originals, layers)
    for name in (name for name in modules if name not in layers):
        experts = dict(linears_in(name, turned.get_submodule(name)))
        originals |= experts
        folds |= dict.fromkeys(experts, Fold())
    inspector = LayerInspector(originals, stride, folds)
    with progress("comparing", 2 * len(calls) + len(originals)) as tick:
        with torch.no_grad(), evaluating(model):
            wanted = []
            for call in calls:
                wanted.append(_rows(call, output(call(model))))
                tick()
        found = observe(quantised, modules, calls, inspector, tick)
        got = [_rows(call, output(out)) for call, out in zip(calls, found, strict=True)]
        missed = [name for name in layers if name not in inspector.samples]
        if missed:
            raise ValueError(f"batches must reach every layer, got no input for {missed[0]}")
        reports = []
        for name in originals:
            if name in inspector.samples:  # to some experts no token was sent
                reports.append(inspector.layer(name))
            tick()
    return ValidationReport(
        tuple(reports), agreement(wanted, got), thresholds or Thresholds(), len(calls), stride
    )


def _originals(model: nn.Module, layers: Mapping[str, Layer]) -> dict[str, nn.Linear]:
    known = dict(model.named_modules(remove_duplicate=False))
    found: dict[str, nn.Linear] = {}
    for name, layer in layers.items():
        linear, shape = known.get(name), (layer.out_features, layer.in_features)
        if not isinstance(linear, nn.Linear):
            raise ValueError(
                f"model must have a Linear named {name!r}, got {type(linear).__name__}"
            )
        if (linear.out_features, linear.in_features) != shape:
            own = (linear.out_features, linear.in_features)
            raise ValueError(f"model must have {name!r} of shape {shape}, got {own}")
        found[name] = linear
    return found


def _rows(call: Call, output: Tensor) -> Tensor:
    return call.tokens(output).detach().float().cpu()
