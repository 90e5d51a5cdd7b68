"""`quantize_model`: the Linears of any module in int8, or their weights in 8 or 4 bits."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, TypeVar

from torch import nn

from .._progress import progress
from ..lowbit.grouped import scales_dtype
from ..nn import ScaledBlockLinear, ScaledExperts, ScaledLinear, WeightOnlyLinear
from ..nn.float_experts import is_experts
from .calibration import Calibration, calibrated, quantised
from .compressed_tensors import Saved
from .config import QuantConfig as QuantConfig
from .feeds import divided
from .fuse import fuse_model
from .layers import (
    check,
    classes,
    is_conv1d,
    linears_in,
    matching,
    matrices,
    named,
    quantised_as,
    readers,
    why_float,
)
from .observe import Call, as_calls
from .report import attach, report_of
from .rotation import rotate, untie
from .saving import prepare_saving
from .schemes import SCHEMES as SCHEMES
from .schemes import AnyScheme, BlockScheme, WeightScheme
from .schemes import Scheme as Scheme
from .swap import Swap

Model = TypeVar("Model", bound=nn.Module)
_QUANTISED = (ScaledBlockLinear, ScaledExperts, ScaledLinear, WeightOnlyLinear)


def linears(model: nn.Module, config: QuantConfig) -> dict[str, nn.Module]:
    """The layers that `config` means (`layers.py` says which can be), each once, by its first name.

    A module known by several names is meant when one of them is a target and none is ignored.

    Raises:
        ValueError: a pattern of the config matches no layer.
        TypeError: `model` is no module, or `config` no QuantConfig.
    """
    for argument, given, kind, wanted in (
        ("model", model, nn.Module, "a torch.nn.Module"),
        ("config", config, QuantConfig, "a QuantConfig"),
    ):
        if not isinstance(given, kind):
            raise TypeError(f"{argument} must be {wanted}, got {type(given).__name__}")
    names = named(model)
    _check_patterns(config, [name for found in names.values() for name in found], model)
    return {
        found[0]: module
        for module, found in names.items()
        if matching([*classes(module), *found], config.targets) is not None
        and matching(found, config.ignore) is None
    }


def _check_patterns(config: QuantConfig, layers: Sequence[str], model: nn.Module) -> None:
    # A matrix that can only stay float may be ignored by name, so that no warning counts it.
    floats = [name for full in matrices(model) for name in (full, full.rpartition(".")[0])]
    kinds = {type(module).__name__ for module in model.modules() if is_experts(module)}
    also = {"ignore": floats, "targets": [*kinds]}
    idle = [
        (argument, pattern)
        for argument, pattern in config.patterns()
        if matching([*layers, *also.get(argument, ())], [pattern]) is None
    ]
    if idle:
        argument, pattern = idle[0]
        count = f" (and {len(idle) - 1} more patterns)" if len(idle) > 1 else ""
        some = ", ".join(layers[:5]) + (", ..." if len(layers) > 5 else "")
        raise ValueError(
            f"{argument} must have patterns that match a layer, got {pattern!r}{count}: "
            f"the layers are {some or 'none'}"
        )


def quantize_model(
    model: Model,
    config: QuantConfig | None = None,
    calibration: Iterable[Any] | None = None,
    *,
    fuse: Any = None,
    inplace: bool = False,
) -> Model:
    """Replaces Linears by `ScaledLinear`s; by `WeightOnlyLinear`s where a scheme is of weights, by
    `ScaledBlockLinear`s where it is `"blocks"`.

    Every Linear that `config` means is quantised on its own, a fused qkv as the one Linear that it
    is; the Conv1D of transformers (GPT-2's) is taken for the Linear that it is too. Experts that
    transformers stacks in one module are quantised one by one, and become a
    `scaled_mm.nn.ScaledExperts`; the router stays float. A module in
    several places stays one module. The model runs the same way as before, in eval mode:
    `torch.compile`, deepcopy, state dicts, `.to()` of a device or a dtype all work. No parameter
    asks for gradients. `quantization_report` of the result says what was done and what
    stayed float.

    A model of transformers gets a `quantization_config` in its `config`: what its `save_pretrained`
    writes is a compressed-tensors checkpoint, as `save_quantized` makes one. Where that format has
    no place for the model (`input_smooth`, Conv1D), its `hf_quantizer` refuses `save_pretrained`.

    Everything is looked up, calibrated and checked before the first layer is replaced: where this
    raises ValueError or TypeError, `model` is as it was (but see `rotate` of one that is changed in
    place: its check comes after). With inplace=True it then goes layer by
    layer, each float weight freed before the next is quantised, so the peak of memory is the model
    and one layer. If memory runs out on the way, a model that was to be changed in place is left
    half changed and must not be used.

    Args:
        model: any module, float32, bfloat16 or float16, on any device.
        config: default: dynamic per token, symmetric, all Linears but lm_head.
        calibration: batches, for static schemes, smoothing and rotation: each a tensor or a tuple
            (positional arguments), a mapping (keyword arguments; its attention_mask excludes
            padding) or a `scaled_mm.Call`.
        fuse: a batch for `fuse_model`, which is then called on the result. None, the default:
            every module runs as it did, and the model is not run but on the calibration.
        inplace: change `model` itself, which frees each float weight; else `model` stays as it is
            and shares nothing with the result.

    Returns:
        The quantised model, of the same class (a quantised layer if `model` is a Linear itself).

    Raises:
        ValueError: config means no Linear, or has a pattern that matches none; a weight is not
            float, has more than 131071 columns (in int8), columns that are no multiple of its
            group, or values that its scheme cannot hold; calibration is missing where the config
            needs it, is empty, gives NaN, or does not reach a static layer.
        TypeError: `model`, `config` or a batch is of another type than these.

    Warns:
        scaled_mm.CalibrationWarning: the calibration suggests another config.
        scaled_mm.QuantizationWarning: less than half of the matrix parameters that config leaves in
            are quantised (`QuantizationReport` says which count).
    """
    config = config or QuantConfig()
    found = linears(model, config)
    if not found:
        raise ValueError(nothing_meant(model, config))
    for name, module in found.items():
        check(name, module, config.scheme_for(name))
    known = Calibration()
    static = [name for name in found if config.scheme_for(name).static]
    calls: Sequence[Call] = ()
    needed = bool(static or config.smoothing or config.rotation)
    if calibration is None and needed:
        what = "a static scheme, smoothing or rotation"
        raise ValueError(f"calibration must be given for {what}, got None")
    if calibration is not None and needed:
        calls = as_calls(calibration)
    rotation = None
    if config.rotation is not None:
        model, inplace = (model if inplace else copy.deepcopy(model)), True
        rotation = rotate(model, config.rotation, calls[0])
        found = linears(model, config)
    if static or config.smoothing:
        known = calibrated(model, found, calls, config)
        known.check([part for name in static for part, _ in linears_in(name, found[name])])
        known.warn(config, calls, stacklevel=3)
    report = report_of(model, config, found, known.smooth, rotation)
    conv1d = [name for name, module in found.items() if is_conv1d(module)]
    swap = Swap(model, inplace)
    with progress("quantising", len(found)) as tick:
        for name in list(found):
            scheme = config.scheme_for(name)

            def make(part: str, linear: nn.Linear, scheme: AnyScheme = scheme) -> nn.Module:
                ranges, extent = known.ranges.pop(part, None), known.extents.pop(part, None)
                return quantised(linear, scheme, ranges, known.smooth.get(part), extent)

            module = found.pop(name)
            swap.replace(module, quantised_as(name, module, make))
            del module
            tick()
    norms = {part.norm: part.s for part in known.smooth.values() if part.norm is not None}
    for norm, s in norms.items():
        module = model.get_submodule(norm)
        swap.replace(module, divided(module, s))
    changed = swap.finished()
    prepare_saving(changed, conv1d, rotation)
    attach(changed, report)
    report.warn(stacklevel=2)
    return changed if fuse is None else fuse_model(changed, fuse, inplace=True)


def nothing_meant(model: nn.Module, config: QuantConfig) -> str:
    """What the model has, where the config means no layer of it."""
    known = [name or "the model itself" for found in named(model).values() for name in found]
    if known:
        rule = "targets must match a Linear that ignore does not"
        got = f"targets {config.targets} and ignore {config.ignore}: the Linears are"
    elif any(isinstance(m, _QUANTISED) for m in model.modules()):
        return "model must have a float Linear, got one whose Linears are quantised already"
    else:
        rule, got = "model must have a Linear", "no such layer, but"
        held = readers(model)
        known = [
            f"{name} ({why_float(owner, matrix, held.get(owner))})"
            for name, (owner, matrix) in matrices(model).items()
        ]
    more = f" and {len(known) - 3} more" if len(known) > 3 else ""
    return f"{rule}, got {got} {', '.join(known[:3]) or 'no matrix at all'}{more}"


def prepare_model(
    model: Model, config: QuantConfig | None = None, *, inplace: bool = False
) -> Model:
    """`quantize_model` without values: empty quantised layers, to load a state dict into.

    Args, Returns: as for `quantize_model`, but nothing is calibrated. What the state dict has of
    smoothing is taken with it.
    """
    config = config or QuantConfig()
    found = linears(model, config)
    swap = Swap(model, inplace)
    for name, module in found.items():
        make = partial(empty, scheme=config.scheme_for(name))
        swap.replace(module, quantised_as(name, module, make))
    made = swap.finished()
    if config.rotation is not None and config.rotation.residual:
        untie(made)
    return made


def empty(name: str, linear: nn.Linear, scheme: AnyScheme) -> Saved:
    """The layer that takes a Linear's place, without values."""
    check(name, linear, scheme)
    sizes, biased = (linear.in_features, linear.out_features), linear.bias is not None
    weight = linear.weight
    if isinstance(scheme, BlockScheme):
        return ScaledBlockLinear(*sizes, biased, device=weight.device)
    if not isinstance(scheme, WeightScheme):
        return ScaledLinear(*sizes, biased, device=weight.device, **scheme.options())
    return WeightOnlyLinear(
        *sizes,
        biased,
        bits=scheme.bits,
        group_size=scheme.group_size,
        zero="none" if scheme.symmetric else "integer",
        int8_input=scheme.int8_input,
        dtype=scales_dtype(weight.dtype),
        device=weight.device,
    )
