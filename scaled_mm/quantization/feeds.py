"""Which norm feeds which Linears: where a division of each channel can move into the norm."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.weak import WeakIdKeyDictionary

from .._torch import tree_leaves
from .observe import Call, evaluating, hooked

_RESHAPES = {"view", "reshape", "flatten", "unflatten", "squeeze", "unsqueeze", "contiguous"}
_READS = {"tolist", "item", "numpy", "equal", "allclose", "__bool__", "__float__", "__array__"}
SAMPLE = 64


@dataclass(frozen=True)
class Feeds:
    """What one run of a model showed."""

    fed: Mapping[str, str]
    """Linear -> the norm whose output is its input, and nothing else ever."""
    foldable: Mapping[str, tuple[str, ...]]
    """Norm -> its Linears, where nothing else reads its output and its output is linear in its
    weight and bias."""


def is_norm(module: nn.Module) -> bool:
    """LayerNorm, RMSNorm, and classes named like them, with one weight for each channel."""
    weight = getattr(module, "weight", None)
    return "norm" in type(module).__name__.lower() and weight is not None and weight.ndim == 1


class Trace(TorchFunctionMode):
    """Follows the outputs of norms through one forward pass: Python sees every torch function that
    is called, so this needs no symbolic tracing. Reads inside a followed Linear are its own."""

    def __init__(self) -> None:
        super().__init__()
        self.origin: Any = WeakIdKeyDictionary()  # tensor -> norm
        self.inside = 0  # Linears
        self.fed: dict[str, set[str | None]] = defaultdict(set)
        self.spoiled: set[str] = set()  # norms that others read too
        self.changed: set[str] = set()  # norms whose output may not stay what it was
        self.samples: dict[str, Tensor] = {}  # norm -> some of its input

    def origins(self, tree: Any) -> set[str]:
        tensors = (x for x in tree_leaves(tree) if isinstance(x, Tensor))
        return {self.origin[x] for x in tensors if x in self.origin}

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if not self.inside:
            self._read(getattr(func, "__name__", ""), (args, dict(kwargs or {})), out)
        return out

    @staticmethod
    def _in_place(name: str, kwargs: Mapping[str, Any]) -> bool:
        changes = name.endswith("_") and not name.startswith("__")
        changes = changes or name.startswith("__i") or name == "__setitem__"
        return changes or bool(kwargs.get("inplace")) or "out" in kwargs

    def _read(self, name: str, given: Any, out: Any) -> None:
        origins = self.origins(given)
        if not origins:
            return
        if self._in_place(name, given[1]):
            self.changed |= origins
            return
        tensors = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        if not tensors and name not in _READS:
            return  # a shape, a dtype
        sources = [x for x in tree_leaves(given) if isinstance(x, Tensor) and x in self.origin]
        if len(tensors) == 1 and tensors[0] is sources[0]:
            return  # nothing happened: a dropout in eval mode, .to() of the same dtype
        width = sources[0].shape[-1]
        if len(tensors) == 1 and name in _RESHAPES and tensors[0].shape[-1] == width:
            self.origin[tensors[0]] = self.origin[sources[0]]
            return
        self.spoiled |= origins

    def enter(self, name: str, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        self.inside += 1
        x = inputs[0]
        self.fed[name].add(self.origin.get(x) if isinstance(x, Tensor) else None)

    def leave(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        self.inside -= 1

    def born(self, name: str, norm: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if isinstance(output, Tensor) and inputs and isinstance(inputs[0], Tensor):
            if output in self.origin:  # passed on: a dropout in eval mode, a Flatten
                return
            self.origin[output] = name
            self.inside += 1  # no read of the model's
            self.samples[name] = inputs[0].reshape(-1, inputs[0].shape[-1])[:SAMPLE].clone()
            self.inside -= 1

    def fed_by_one(self) -> dict[str, str]:
        """Linear -> the norm whose output is its input, and nothing else ever."""
        found: dict[str, str] = {}
        for name, seen in self.fed.items():
            (norm, *others) = seen
            if norm is not None and not others:
                found[name] = norm
        return found

    def groups(self) -> dict[str, list[str]]:
        """Norm -> the Linears that it feeds, where nothing else reads or changes its output."""
        shared = {norm for seen in self.fed.values() if len(seen) > 1 for norm in seen}
        kept = shared | self.changed | self.spoiled
        found: dict[str, list[str]] = defaultdict(list)
        for name, norm in self.fed_by_one().items():
            if norm not in kept:
                found[norm].append(name)
        return dict(found)


@torch.no_grad()
def find_feeds(model: nn.Module, linears: Mapping[str, nn.Module], call: Call) -> Feeds:
    """Runs the model once, in eval mode, and follows the output of every norm.

    A norm is foldable when every reader of its output is one of `linears`, which will be quantised
    (a residual connection, as in BERT's blocks, is a reader too; views that keep the last dimension
    are followed), and its output scales with its weight and bias (Gemma's 1 + weight does not): the
    latter is tried. What the model does may depend on nothing but shapes.
    """
    norms = {name: module for name, module in model.named_modules() if is_norm(module)}
    trace = Trace()
    hooks = [m.register_forward_hook(partial(trace.born, name)) for name, m in norms.items()]
    for name, linear in linears.items():
        hooks.append(linear.register_forward_pre_hook(partial(trace.enter, name)))
        hooks.append(linear.register_forward_hook(trace.leave))
    with hooked(hooks), evaluating(model), trace:
        out = call(model)
    trace.changed |= trace.origins(out)  # whoever gets it may change it
    groups = trace.groups()
    return Feeds(
        trace.fed_by_one(),
        {
            norm: tuple(names)
            for norm, names in groups.items()
            if scales(norms[norm], trace.samples[norm])
        },
    )


def divided(norm: nn.Module, s: Tensor) -> nn.Module:
    """A copy of the norm whose output is divided by s [K]: weight / s, bias / s."""
    other = copy.deepcopy(norm)
    for name in ("weight", "bias"):
        old = getattr(norm, name, None)
        if old is not None:
            new = (old.detach().float() / s.to(old.device)).to(old.dtype)
            setattr(other, name, nn.Parameter(new, requires_grad=old.requires_grad))
    return other


@torch.no_grad()
def scales(norm: nn.Module, x: Tensor) -> bool:
    """Whether `divided` does what it says, tried on inputs x [rows, K]."""
    s = 0.5 + torch.arange(x.shape[-1], device=x.device).remainder(7) / 4
    if norm.weight.shape != s.shape:
        return False
    want, got = norm(x).float(), divided(norm, s)(x).float() * s
    tolerance = 8 * torch.finfo(x.dtype).eps * want.abs().amax().clamp_min(1e-6)
    return bool(((got - want).abs() <= tolerance).all())
