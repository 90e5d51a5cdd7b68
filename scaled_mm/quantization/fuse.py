"""`fuse_model`: norms and activations that write the int8 input of the Linears behind them."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn

from ..nn import ScaledLinear
from ..nn.produced import ACTIVATIONS, Produced
from .feeds import SAMPLE, Trace, is_norm
from .observe import as_call, evaluating
from .swap import Swap

Model = TypeVar("Model", bound=nn.Module)
Options = dict[str, Any]


# --- the modules ----------------------------------------------------------------------------------


class _Fused(nn.Module):
    """A module with everything that another one has, under the same names, and a forward of its
    own. `readers` are in a tuple, so that they are no children of it."""

    readers: tuple[ScaledLinear, ...]

    @classmethod
    def of(cls, module: nn.Module, readers: tuple[ScaledLinear, ...], **more: Any) -> Any:
        fused = cls()
        fused.__dict__.update(module.__dict__)
        fused.__dict__.update(readers=readers, stands_for=type(module).__name__, **more)
        return fused

    def extra_repr(self) -> str:
        return f"{self.stands_for} into {len(self.readers)} of int8"


class FusedNorm(_Fused):
    """A norm that quantises its output for the `ScaledLinear`s that read it."""

    producer: str
    eps_used: float
    from_one: bool

    def forward(self, x: Tensor) -> Produced:
        weight, bias = (self._vector(name, x) for name in ("weight", "bias"))
        if self.from_one and weight is not None:
            weight = 1 + weight.float()
        given: Options = {"producer": self.producer, "weight": weight, "eps": self.eps_used}
        if self.producer == "layer_norm":
            given["bias"] = bias
        return Produced.make({"x": x}, given | input_options(self.readers[0]))

    def _vector(self, name: str, x: Tensor) -> Tensor | None:
        t = getattr(self, name, None)
        if t is None:
            return None
        return t.detach() if t.dtype in (x.dtype, torch.float32) else t.detach().float()


class FusedActivation(_Fused):
    """An activation that quantises its output for the one `ScaledLinear` that reads it."""

    producer: str

    def forward(self, x: Tensor) -> Produced:
        return Produced.make({"x": x}, {"producer": self.producer} | input_options(self.readers[0]))


class FusedGatedMLP(_Fused):
    """down(activation(gate(x)) * up(x)), whose product is quantised as it is made. gate, up and
    down are the children that they were."""

    producer: str
    roles: tuple[str, str, str]

    def forward(self, x: Any) -> Tensor:
        gate, up, down = (getattr(self, name) for name in self.roles)
        inputs = {"x": gate(x), "times": up(x)}
        return cast(
            Tensor, down(Produced.make(inputs, {"producer": self.producer} | input_options(down)))
        )


def input_options(linear: ScaledLinear) -> Options:
    """How the layer quantises its input, as a producer takes it."""
    return {
        "scale": linear.input_scale,
        "azp": linear.input_zero_point,
        "symmetric": linear.symmetric,
        "smooth": linear.input_smooth,
    }


def agree(linears: tuple[ScaledLinear, ...]) -> bool:
    """Whether they quantise their input alike, and by rows or by a scale that is known."""
    first = linears[0]
    if first.dynamic and not first.per_token:
        return False
    mine = input_options(first)
    return all(
        other.dynamic == first.dynamic
        and all(_equal(mine[name], x) for name, x in input_options(other).items())
        for other in linears
    )


def unwatched(*modules: nn.Module) -> bool:
    """Whether nobody has hooked the modules, or put another forward in their own one's place: what
    is called before or after them would get int8 rows for a tensor."""
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return not any(
        "forward" in module.__dict__ or any(getattr(module, name, None) for name in hooks)
        for module in modules
    )


def _equal(x: Any, y: Any) -> bool:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return torch.equal(x, y)
    return bool(x is y or (not isinstance(x, Tensor) and x == y))


# --- what a module computes, by trial -------------------------------------------------------------


@torch.no_grad()
def activation_of(module: nn.Module) -> str | None:
    """The name of the activation that the module computes, or None."""
    if next(module.parameters(), None) is not None or next(module.children(), None) is not None:
        return None
    x = torch.linspace(-6, 6, 601)
    try:
        got = module(x)
    except Exception:  # it is something else
        return None
    for name, function in ACTIVATIONS.items():
        if (
            isinstance(got, Tensor)
            and got.shape == x.shape
            and torch.allclose(got, function(x), atol=1e-5)
        ):
            return name
    return None


@torch.no_grad()
def norm_of(module: nn.Module, x: Tensor) -> Options | None:
    """How the norm computes: producer, eps_used, from_one; None where no producer does so."""
    given = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    possible = [given] if isinstance(given, float) else []
    if given is None and isinstance(module, nn.RMSNorm):  # x's dtype's or float32's, as torch is
        possible = [torch.finfo(dtype).eps for dtype in (torch.float32, x.dtype)]
    x = torch.cat([x, x / 256])  # of small elements eps makes much
    want = module(x).double()
    for eps in possible:
        for how, y in _norms(module, x.double(), eps):
            close = 8 * torch.finfo(x.dtype).eps * y.abs().amax(-1, keepdim=True).clamp_min(1e-6)
            if bool(((want - y).abs() <= close).all()):
                return {**how, "eps_used": eps}
    return None


def _norms(module: nn.Module, x: Tensor, eps: float) -> Iterator[tuple[Options, Tensor]]:
    """What producers make of x with the module's weights."""
    weight, bias = cast(Tensor, module.weight).double(), getattr(module, "bias", None)
    if bias is None:
        normed = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
        yield {"producer": "rms_norm", "from_one": False}, normed * weight
        yield {"producer": "rms_norm", "from_one": True}, normed * (1 + weight)
    shift = None if bias is None else bias.double()
    normed = nn.functional.layer_norm(x, x.shape[-1:], weight, shift, eps)
    yield {"producer": "layer_norm", "from_one": False}, normed


@torch.no_grad()
def gated_mlp_of(module: nn.Module, x: Tensor) -> tuple[str, tuple[str, str, str]] | None:
    """The activation and the names of gate, up and down, where the module computes
    down(activation(gate(x)) * up(x)) of its children to the bit; else None."""
    children = dict(module.named_children())
    linears = [name for name, child in children.items() if type(child) is ScaledLinear]
    others = [child for name, child in children.items() if name not in linears]
    kinds = [activation_of(child) for child in others]
    acts = [kind for kind in kinds if kind]
    if (
        len(linears) != 3
        or len(acts) != 1
        or next(module.parameters(recurse=False), None) is not None
    ):
        return None
    activation = others[kinds.index(acts[0])]
    want = module(x)
    for roles in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0)):
        gate, up, down = (cast(ScaledLinear, children[linears[i]]) for i in roles)
        into, out = gate.in_features, gate.out_features
        if (up.in_features, up.out_features, down.in_features) != (into, out, out):
            continue
        if x.shape[-1] == into and torch.equal(down(activation(gate(x)) * up(x)), want):
            return acts[0], cast(tuple[str, str, str], tuple(linears[i] for i in roles))
    return None


# --- where ----------------------------------------------------------------------------------------


def _traced(
    model: nn.Module, sources: Mapping[str, nn.Module], linears: Mapping[str, nn.Module], call: Any
) -> tuple[dict[str, list[str]], dict[str, Tensor]]:
    """Source -> the Linears that read its output and nothing else does; some of its input."""
    trace = Trace()
    hooks = [m.register_forward_hook(partial(trace.born, name)) for name, m in sources.items()]
    for name, linear in linears.items():
        hooks.append(linear.register_forward_pre_hook(partial(trace.enter, name)))
        hooks.append(linear.register_forward_hook(trace.leave))
    try:
        with evaluating(model), trace:
            out = call(model)
    finally:
        for hook in hooks:
            hook.remove()
    trace.spoiled |= trace.origins(out)
    return trace.groups(), trace.samples


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
    modules = {n: m for n, m in model.named_modules() if not isinstance(m, _Fused)}
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
            down = linears[f"{name}.{found[1][2]}" if name else found[1][2]]
            if agree((down,)) and unwatched(parents[name], *parents[name].children()):
                options = {"producer": found[0], "roles": found[1]}
                made[name] = FusedGatedMLP.of(parents[name], (down,), **options)
    norms = {n: m for n, m in modules.items() if is_norm(m)}
    acts = {n: kind for n, m in modules.items() if (kind := activation_of(m))}
    groups, samples = _traced(model, norms | {n: modules[n] for n in acts}, linears, call)
    for name, fed in groups.items():
        readers = tuple(linears[n] for n in fed)
        if not (agree(readers) and unwatched(modules[name], *readers)):
            continue
        if name in acts:
            made[name] = FusedActivation.of(modules[name], readers, producer=acts[name])
        elif (how := norm_of(modules[name], samples[name])) is not None:
            made[name] = FusedNorm.of(modules[name], readers, **how)
    return made


def example_of(model: nn.Module) -> Any:
    """A batch that the model brings along, as those of transformers do; else None."""
    example = getattr(model, "dummy_inputs", None)
    return example if isinstance(example, Mapping) and example else None


def fused_where_safe(model: Model, batch: Any) -> Model:
    """`fuse_model` in place; the model as it is where it holds no `ScaledLinear`, or does not run
    on the batch."""
    try:
        return fuse_model(model, batch, inplace=True)
    except Exception:  # whatever the model raises: it was not asked for
        return model


def fuse_model(model: Model, batch: Any, *, inplace: bool = False) -> Model:
    """Puts the quantiser of a Linear's input into the norm or the activation that makes it.

    `model` holds `ScaledLinear`s, as `quantize_model` and `load_quantized` leave them. It runs once
    on `batch`, and what is found is replaced:

        norm -> Linears                 a RMS or layer norm whose output nothing but `ScaledLinear`s
                                        read that quantise alike (q, k and v; gate and up)
        activation -> Linear            ReLU, SiLU or GELU, a module of its own, read by one
        down(activation(gate(x)) * up(x))   a module of three Linears and an activation

    One kernel then does what three did. A producer does not round to the model's dtype before it
    quantises (docs/numerics.md, section 6), so outputs differ from the unfused model's by as much
    as roundings to that dtype do. State dicts keep their names.

    What is replaced is safe to replace:

    - What the module computes was found by trial on its own input; no class is known by name.
    - Its output went to nothing but `ScaledLinear`s (no subclasses) that quantise alike, each row
      by itself or all by a known scale. A norm that a residual reads too, as in BERT, stays.
    - Neither it nor one of its readers has a hook, or a forward that was put in its own one's
      place: they would see int8 rows.
    - Should another batch take another way through the model, or a reader be exchanged: whoever
      else reads the output gets the float activation, made anew (`nn.produced.Produced`).

    The readers of one norm keep one static scale: a state dict in which they have several must be
    loaded before the model is fused.

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
    for name, module in find_sites(model, call).items():
        swap.replace(model.get_submodule(name), module)
    return swap.finished()
