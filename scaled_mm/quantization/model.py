"""`quantize_model`: the Linears of any module in int8."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from .._progress import progress
from ..nn import ScaledLinear
from .calibrate import Ranges, clip, collect, static_scale
from .feeds import divided
from .observe import Call, as_calls
from .smoothquant import Smooth, Smoothing, plan


@dataclass(frozen=True)
class Scheme:
    """How the activations of a layer are quantised; weights always are per output channel."""

    dynamic: bool = True
    """True: scales at run time. False: one for the layer, from calibration."""
    symmetric: bool = True
    """True: no zero point."""
    per_token: bool | None = None
    """Dynamic: one scale for each token (True, and None), or one for the whole activation."""

    def __post_init__(self) -> None:
        if self.per_token and not self.dynamic:
            raise ValueError("per_token must be False when dynamic=False, got per_token=True")

    def options(self) -> dict[str, Any]:
        """The arguments of `ScaledLinear`."""
        return {
            "dynamic": self.dynamic,
            "symmetric": self.symmetric,
            "per_token": self.per_token,
        }


SCHEMES = {
    "dynamic": Scheme(),
    "dynamic-asymmetric": Scheme(symmetric=False),
    "dynamic-tensor": Scheme(per_token=False),
    "dynamic-tensor-asymmetric": Scheme(symmetric=False, per_token=False),
    "static": Scheme(dynamic=False),
    "static-asymmetric": Scheme(dynamic=False, symmetric=False),
}


def scheme_of(scheme: Scheme | str) -> Scheme:
    """A scheme by its name; ValueError lists them."""
    if isinstance(scheme, Scheme):
        return scheme
    if scheme not in SCHEMES:
        raise ValueError(f"scheme must be one of {', '.join(SCHEMES)}, got {scheme!r}")
    return SCHEMES[scheme]


@dataclass(frozen=True)
class QuantConfig:
    """What `quantize_model` does. Patterns are fnmatch's, of whole module names."""

    scheme: Scheme | str = "dynamic"
    include: tuple[str, ...] = ("*",)
    """Linears to replace."""
    skip: tuple[str, ...] = ("lm_head", "*.lm_head")
    """And of these, those to leave as they are."""
    overrides: tuple[tuple[str, Scheme | str], ...] = ()
    """Pattern and scheme; the first that matches goes before `scheme`."""
    smoothing: Smoothing | None = None
    percentile: float | None = None
    """Static ranges that hold this part, in %, of the calibration's elements. None: all of them,
    which is better wherever outliers matter."""

    def __post_init__(self) -> None:
        for scheme in (self.scheme, *(scheme for _, scheme in self.overrides)):
            scheme_of(scheme)
        if self.percentile is not None and not 50 < self.percentile <= 100:
            raise ValueError(f"percentile must be in (50, 100], got {self.percentile:g}")

    def scheme_for(self, name: str) -> Scheme:
        """The scheme of one layer."""
        given = (scheme for pattern, scheme in self.overrides if fnmatchcase(name, pattern))
        return scheme_of(next(given, self.scheme))


def linears(model: nn.Module, config: QuantConfig) -> dict[str, nn.Linear]:
    """The Linears that `config` means, each once, by its first name.

    A module known by several names is meant when one of them is included and none is skipped. Only
    `nn.Linear` itself counts: of a subclass (the output projection inside `nn.MultiheadAttention`,
    say) others may read the weight.
    """
    names: dict[nn.Linear, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if type(module) is nn.Linear:
            names.setdefault(module, []).append(name)
    return {
        known[0]: module
        for module, known in names.items()
        if any(_matches(name, config.include) for name in known)
        and not any(_matches(name, config.skip) for name in known)
    }


def quantize_model(
    model: nn.Module,
    config: QuantConfig | None = None,
    calibration: Iterable[Any] | None = None,
    *,
    inplace: bool = False,
) -> nn.Module:
    """Replaces Linears by `ScaledLinear`s.

    Every Linear that `config` means is quantised on its own, a fused qkv as the one Linear that it
    is; a module in several places stays one module. The model runs the same way as before, in eval
    mode and without gradients (`torch.inference_mode()`): `torch.compile`, deepcopy, state dicts,
    `.to()` of a device or a dtype all work.

    Args:
        model: any module, float32, bfloat16 or float16, on any device.
        config: default: dynamic per token, symmetric, all Linears but lm_head.
        calibration: batches, for static schemes and for smoothing: each a tensor or a tuple
            (positional arguments), a mapping (keyword arguments; its attention_mask excludes
            padding) or an `observe.Call`.
        inplace: change `model` itself, which frees each float weight; else `model` stays as it is
            and shares nothing with the result.

    Returns:
        The quantised model.

    Raises:
        ValueError: config means no Linear; calibration is missing where the config needs it, is
            empty, gives NaN, or does not reach a static layer.
        TypeError: a batch has none of the forms above.

    Warns:
        scaled_mm.smoothquant.CalibrationWarning: the calibration suggests another config.
    """
    config = config or QuantConfig()
    found = linears(model, config)
    if not found:
        raise ValueError(f"include must match a Linear that skip does not, got {config.include}")
    smooth: dict[str, Smooth] = {}
    ranges: dict[str, Ranges] = {}
    extents: dict[str, Tensor] = {}
    static = [name for name in found if not config.scheme_for(name).dynamic]
    if static or config.smoothing:
        if calibration is None:
            raise ValueError("calibration must be given for a static scheme or smoothing, got None")
        smooth, ranges, extents = _calibrated(model, found, as_calls(calibration), config, static)
    replaced: dict[nn.Module, nn.Module] = {}
    with progress("quantising", len(found)) as tick:
        for name, linear in found.items():
            replaced[linear] = _layer(
                linear,
                config.scheme_for(name),
                ranges.get(name),
                smooth.get(name),
                extents.get(name),
            )
            tick()
    for part in smooth.values():
        if part.norm is not None:
            norm = model.get_submodule(part.norm)
            replaced[norm] = replaced.get(norm) or divided(norm, part.s)
    return swap(model, replaced, inplace)


def prepare_model(
    model: nn.Module, config: QuantConfig | None = None, *, inplace: bool = False
) -> nn.Module:
    """`quantize_model` without values: empty `ScaledLinear`s, to load a state dict into.

    Args, Returns: as for `quantize_model`, but nothing is calibrated. What the state dict has of
    smoothing is taken with it.
    """
    config = config or QuantConfig()
    return swap(
        model,
        {
            linear: ScaledLinear(
                linear.in_features,
                linear.out_features,
                linear.bias is not None,
                device=linear.weight.device,
                **config.scheme_for(name).options(),
            )
            for name, linear in linears(model, config).items()
        },
        inplace,
    )


def swap(
    model: nn.Module, replaced: Mapping[nn.Module, nn.Module], inplace: bool = False
) -> nn.Module:
    """`model` with modules replaced wherever they occur, in eval mode; a copy unless inplace."""
    if inplace:
        for parent in list(model.modules()):
            for name, child in list(parent._modules.items()):
                if child is not None and child in replaced:
                    setattr(parent, name, replaced[child])
        changed = replaced.get(model, model)
    else:  # deepcopy takes what it finds in its memo for done
        changed = copy.deepcopy(model, {id(old): new for old, new in replaced.items()})
    unfuse(changed)
    return changed.eval()


def unfuse(model: nn.Module) -> None:
    """Keeps torch's encoder layers from their fused path, which reads Linears' weights itself."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0


def _calibrated(
    model: nn.Module,
    found: Mapping[str, nn.Linear],
    calls: Sequence[Call],
    config: QuantConfig,
    static: Sequence[str],
) -> tuple[dict[str, Smooth], dict[str, Ranges], dict[str, Tensor]]:
    """Smoothing, ranges before it, and clipped ranges after it, of every layer that has them."""

    def build(name: str, ranges: Ranges, s: Tensor | None) -> nn.Module:
        smooth = None if s is None else Smooth(s, 0.0, None)
        return _layer(found[name], config.scheme_for(name), ranges, smooth, None)

    if config.smoothing:
        smooth, ranges = plan(model, found, calls, config.smoothing, build)
    else:
        smooth, ranges = {}, collect(model, found, calls)
    missed = [name for name in static if name not in ranges]
    if missed:
        raise ValueError(
            f"calibration must reach every static layer, got no input for {', '.join(missed[:5])}"
            + (f" and {len(missed) - 5} more" if len(missed) > 5 else "")
        )
    extents: dict[str, Tensor] = {}
    if config.percentile is not None:
        layers = {name: found[name] for name in static}
        divisors = {name: part.s for name, part in smooth.items()}
        extents = clip(model, layers, calls, ranges, divisors, config.percentile)
    return smooth, ranges, extents


@torch.no_grad()
def _layer(
    linear: nn.Linear,
    scheme: Scheme,
    ranges: Ranges | None,
    smooth: Smooth | None,
    extent: Tensor | None,
) -> ScaledLinear:
    scale = azp = None
    if not scheme.dynamic:
        assert ranges is not None
        if extent is None:
            extent = (ranges.times(1 / smooth.s) if smooth else ranges).whole()
        scale, azp = static_scale(extent, scheme.symmetric)
    return ScaledLinear.from_linear(
        linear,
        **scheme.options(),
        input_scale=scale,
        input_azp=azp,
        smooth=smooth.s if smooth else None,
        folded=smooth is not None and smooth.norm is not None,
    )


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(map(partial(fnmatchcase, name), patterns))
