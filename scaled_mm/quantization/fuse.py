"""`fuse_model`: norms and activations that write the int8 input of the Linears behind them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from ..nn import ScaledLinear
from ..nn.produced import ACTIVATIONS, Produced, plain
from .feeds import SAMPLE, is_norm, traced
from .fused import (
    Fused,
    FusedActivation,
    FusedGatedMLP,
    FusedNorm,
    Options,
    Site,
    agree,
    unwatched,
)
from .observe import as_call, evaluating
from .swap import Swap

Model = TypeVar("Model", bound=nn.Module)


# --- what a module computes, by trial -------------------------------------------------------------


_FAR = 2.0 ** torch.arange(3, 16)
_TRIED = (torch.linspace(-6, 6, 601), *_FAR.split(1), *(-_FAR).split(1))
"""Where activations part: those that are alike around 0, as ReLU6 and ReLU, farther away."""


def _bare(module: nn.Module) -> bool:
    """Whether it has no tensors and no children, as activations have none."""
    held = (module.parameters(), module.buffers(), module.children())
    return all(next(iter(some), None) is None for some in held)


@torch.no_grad()
def activation_of(module: nn.Module) -> str | None:
    """The name of the activation that the module computes, or None."""
    if not _bare(module):
        return None
    try:
        got = [module(x) for x in _TRIED]
    except Exception:  # it is something else
        return None
    for name, function in ACTIVATIONS.items():
        if all(map(_same, got, map(function, _TRIED))):
            return name
    return None


def _same(got: Any, y: Tensor) -> bool:
    return isinstance(got, Tensor) and got.shape == y.shape and torch.allclose(got, y, atol=1e-5)


@torch.no_grad()
def norm_of(module: nn.Module, x: Tensor) -> Options | None:
    """How the norm computes: producer, eps, from_one; None where no producer does so."""
    given = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    possible = [given] if isinstance(given, float) else []
    if given is None and isinstance(module, nn.RMSNorm):  # x's dtype's or float32's, as torch is
        possible = [torch.finfo(dtype).eps for dtype in (torch.float32, x.dtype)]
    large = x * 256
    # Of small elements eps makes much, and large ones are clipped where any are. Each size by
    # itself: a processor's errors are as large as the tensor's elements.
    sizes = [x, x / 256, large[large.isfinite().all(-1)]]
    try:  # a group norm of a matrix may be one of its rows
        tried = [(some.double(), module(some[None])[0].double()) for some in sizes]
    except Exception:  # it norms something else than rows
        return None
    room = 8 * torch.finfo(x.dtype).eps
    for eps in possible:
        for how, norm in _norms(module, eps):
            if all(_near(got, norm(some), room) for some, got in tried):
                return {**how, "eps": eps}
    return None


def _near(got: Tensor, y: Tensor, room: float) -> bool:
    """Whether each row is y's but for a part of its largest element."""
    most = room * y.abs().amax(-1, keepdim=True).clamp_min(1e-6)
    return bool(((got - y).abs() <= most).all())


def _norms(module: nn.Module, eps: float) -> Iterator[tuple[Options, Callable[[Tensor], Tensor]]]:
    """What producers compute with the module's weights, of float64."""
    weight, bias = cast(Tensor, module.weight).double(), getattr(module, "bias", None)

    def rms(x: Tensor, weight: Tensor) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight

    if bias is None:
        yield {"producer": "rms_norm", "from_one": False}, partial(rms, weight=weight)
        yield {"producer": "rms_norm", "from_one": True}, partial(rms, weight=1 + weight)
    shift = None if bias is None else bias.double()
    layer = nn.functional.layer_norm
    yield (
        {"producer": "layer_norm", "from_one": False},
        lambda x: layer(x, x.shape[-1:], weight, shift, eps),
    )


@torch.no_grad()
def gated_mlp_of(module: nn.Module, x: Tensor) -> Options | None:
    """producer, roles and activation of its `Site`, where the module computes
    down(activation(gate(x)) * up(x)) of its children to the bit; else None."""
    children = dict(module.named_children())
    linears = [name for name, child in children.items() if type(child) is ScaledLinear]
    kinds = {name: activation_of(child) for name, child in children.items() if name not in linears}
    acts = [name for name, kind in kinds.items() if kind]
    if (
        len(linears) != 3
        or len(acts) != 1
        or next(module.parameters(recurse=False), None) is not None
    ):
        return None
    activation = children[acts[0]]
    want = module(x)
    for roles in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        gate, up, down = (cast(ScaledLinear, children[linears[i]]) for i in roles)
        into, out = gate.in_features, gate.out_features
        if (up.in_features, up.out_features, down.in_features) != (into, out, out):
            continue
        if x.shape[-1] == into and torch.equal(down(activation(gate(x)) * up(x)), want):
            return {
                "producer": kinds[acts[0]],
                "roles": (*(linears[i] for i in roles), acts[0]),
                "activation": activation,
            }
    return None


# --- where ----------------------------------------------------------------------------------------


def _inputs(model: nn.Module, modules: Mapping[str, nn.Module], call: Any) -> dict[str, Tensor]:
    """Some rows of the first argument of each module that is called with one tensor alone."""
    seen: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, args: Any, kwargs: Any) -> None:
        if len(args) == 1 and not kwargs and isinstance(args[0], Tensor):
            seen[name] = args[0].reshape(-1, args[0].shape[-1])[:SAMPLE].clone()

    hooks = [
        m.register_forward_pre_hook(partial(keep, name), with_kwargs=True)
        for name, m in modules.items()
    ]
    try:
        with evaluating(model):
            call(model)
    finally:
        for hook in hooks:
            hook.remove()
    return seen


@torch.no_grad()
def find_sites(model: nn.Module, call: Any) -> dict[str, nn.Module]:
    """Name -> the fused module for its place."""
    modules = {n: m for n, m in model.named_modules() if not isinstance(m, Fused)}
    linears = {n: m for n, m in modules.items() if type(m) is ScaledLinear}  # no parallel ones
    made: dict[str, nn.Module] = {}
    parents = {
        n: m
        for n, m in modules.items()
        if sum(type(child) is ScaledLinear for child in m.children()) == 3
    }
    for name, x in _inputs(model, parents, call).items():
        found = gated_mlp_of(parents[name], x)
        if found is not None:
            down = cast(ScaledLinear, getattr(parents[name], found["roles"][2]))
            if agree((down,)) and unwatched(parents[name], *parents[name].children()):
                made[name] = FusedGatedMLP.of(parents[name], Site((down,), **found))
    norms = {n: m for n, m in modules.items() if is_norm(m)}
    leaves = {n: m for n, m in modules.items() if n not in norms and _bare(m)}
    trace = traced(model, norms | leaves, linears, call)
    alone = trace.groups()
    for name, fed in trace.groups(others=True).items():
        readers = tuple(linears[n] for n in fed)
        if not (agree(readers) and unwatched(modules[name], *readers)):
            continue
        if name in norms:
            if (how := norm_of(modules[name], trace.samples[name])) is not None:
                site = Site(readers, **how, normed=name not in alone)
                made[name] = FusedNorm.of(modules[name], site)
        elif name in alone and (kind := activation_of(modules[name])) is not None:
            made[name] = FusedActivation.of(modules[name], Site(readers, kind))
    return made


def example_of(model: nn.Module) -> Any:
    """A batch that the model brings along, as those of transformers do, where the model lies; else
    None."""
    example = getattr(model, "dummy_inputs", None)
    if not isinstance(example, Mapping) or not example:
        return None
    tensors = itertools.chain(model.parameters(), model.buffers())
    device = next((t.device for t in tensors), None)
    return {name: x.to(device) if isinstance(x, Tensor) else x for name, x in example.items()}


def fused_where_safe(model: Model, batch: Any = None) -> Model:
    """`fuse_model` in place, by the model's own example where no batch is given, in the mode in
    which the model was; the model as it is where there is neither, where it holds no
    `ScaledLinear`, or where it does not run on the batch."""
    training = [name for name, module in model.named_modules() if module.training]
    try:
        batch = example_of(model) if batch is None else batch
        if batch is None:
            return model
        fused = fuse_model(model, batch, inplace=True)
    except Exception:  # whatever the model raises: it was not asked for
        return model
    for name in training:
        fused.get_submodule(name).training = True
    return fused


def fuse_model(model: Model, batch: Any, *, inplace: bool = False) -> Model:
    """Puts the quantiser of a Linear's input into the norm or the activation that makes it.

    `model` holds `ScaledLinear`s, as `quantize_model` and `load_quantized` leave them. It runs on
    `batch` twice, and what is found is replaced:

        norm -> Linears                 a RMS or layer norm whose output `ScaledLinear`s read that
                                        quantise alike (q, k and v; gate and up); it writes floats
                                        too, where others read it as well (BERT's residuals)
        activation -> Linear            ReLU, SiLU or GELU, a module of its own, read by one
        down(activation(gate(x)) * up(x))   a module of three Linears and an activation

    One kernel then does what three did. A producer does not round to the model's dtype before it
    quantises (docs/numerics.md, section 6), so outputs differ from the unfused model's by as much
    as roundings to that dtype do. State dicts keep their names.

    What is replaced is safe to replace:

    - What the module computes was found by trial on its own input; no class is known by name.
    - Its output went to `ScaledLinear`s (no subclasses) that quantise alike, each row by itself or
      all by a known scale; an activation's to nothing else. A norm stays whose output is the
      model's, or is changed in place.
    - Neither it nor one of its readers has a hook, or a forward that was put in its own one's
      place: they would see int8 rows.
    - Both are looked at again before every call: a hook that comes later, offloaded weights, a
      reader that is sharded, readers that a state dict gave different scales: then the module does
      what it did before it was fused.
    - Should another batch take another way through the model, or a reader be exchanged: whoever
      else reads the output gets the float activation, made anew (`nn.produced.Produced`), and so
      does who reads the model's outputs (hidden states that were not asked for before).

    Args:
        model: any module; on other batches it may do other things.
        batch: in any form that `quantize_model` takes for its calibration.
        inplace: change `model` itself; else `model` stays as it is.

    Returns:
        The fused model; `model` as it is, or a copy, where nothing can be fused.

    Raises:
        ValueError: the model holds no `ScaledLinear`.
        TypeError: the batch has none of the forms.
    """
    if not any(isinstance(module, ScaledLinear) for module in model.modules()):
        raise ValueError("model must hold a ScaledLinear, got none")
    if not inplace:
        model = copy.deepcopy(model)
    call = as_call(batch)
    swap = Swap(model, True)
    sites = find_sites(model, call)
    for name, module in sites.items():
        swap.replace(model.get_submodule(name), module)
    fused = swap.finished()
    if sites and _tensors_out not in fused._forward_hooks.values():
        fused.register_forward_hook(_tensors_out)
    return fused


def _tensors_out(_: nn.Module, given: Any, outputs: Any) -> Any:
    """A forward hook: the outputs, with tensors for what is produced."""
    leaves = tree_leaves(outputs)
    if not any(isinstance(leaf, Produced) for leaf in leaves):
        return None
    return tree_map(plain, outputs)
