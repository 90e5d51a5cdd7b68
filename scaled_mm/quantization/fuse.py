"""`fuse_model`: closed modules whose norms and activations write the int8 input of a Linear."""

from __future__ import annotations

import copy
import itertools
import operator
from collections import OrderedDict
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor, fx, nn

from ..nn import ScaledLinear
from ..nn.fused import FusedGatedMLP, FusedSequential, activation_of, pair_of, readable, unhooked
from .observe import as_call, evaluating, hooked
from .readers import join, readers_of_one
from .swap import Swap

Model = TypeVar("Model", bound=nn.Module)
Roles = tuple[str, str, str, str]
"""Names of gate, up, activation and down."""
_TIMES = (operator.mul, torch.mul)


def fuse_model(model: Model, batch: Any, *, inplace: bool = False) -> Model:
    """Fewer kernels for the same layers: quantisers go into the norms and activations in front of
    them, and `ScaledLinear`s that read one tensor share a quantiser and a product.

    Layers that the model calls one behind the other with the same tensor (q, k and v; gate and up)
    are multiplied at once by the first of them, if they have one scheme; the others take their
    columns. Their weights then lie in one buffer, each layer's own a part of it, and every bit
    stays what it was. Outputs are views, with a stride. A tensor that is written in between is seen
    by its version, so `torch.inference_mode`, which counts none, is left alone. Layers that once
    are not called together part for good. In compiled graphs the pass below puts their products
    together. On GPUs alone.

    Two kinds of modules are replaced, both with float tensors at both ends:

        down(activation(gate(x)) * up(x))   a module of three `ScaledLinear`s and an activation
        nn.Sequential                       a norm or an activation, then a `ScaledLinear`

    One kernel then does what two did. A producer does not round to the model's dtype before it
    quantises (docs/numerics.md, section 6), so outputs differ from the unfused model's by as much
    as roundings to that dtype do. State dicts keep their names.

    Norms are `nn.LayerNorm` and `nn.RMSNorm`, activations `nn.ReLU`, `nn.SiLU` (transformers' own
    too) and `nn.GELU`, exactly these classes. A gated MLP is known by its forward: `torch.fx`
    traces it with its parts as leaves, and the graph must be the formula above and no more. On the
    batch its output must be the formula's to the bit. Modules with hooks stay. What changes later
    (a hook, another part, autocast) is seen at the next call, which then runs part by part.

    The pass, `torch.compile(model, options=scaled_mm.integrations.inductor.options())`, finds more:
    the compiler's graph shows every reader of a tensor.

    Args:
        model: a module that holds `ScaledLinear`s, as `quantize_model` and `load_quantized` leave
            them.
        batch: in any form that `quantize_model` takes for its calibration; the model is run on it
            once or twice, in eval mode.
        inplace: change `model` itself; else `model` stays as it is.

    Returns:
        The model, or a copy, in eval mode, with what could be fused.

    Raises:
        ValueError: the model holds no `ScaledLinear`.
        TypeError: the batch has none of the forms.
    """
    if not any(isinstance(module, ScaledLinear) for module in model.modules()):
        raise ValueError("model must hold a ScaledLinear, got none")
    call = as_call(batch)
    if not inplace:
        model = copy.deepcopy(model)
    swap = Swap(model, True)
    found = readers_of_one(model, call)
    for module, closed in [*_gated(model, call), *_sequences(model)]:
        swap.replace(module, closed)
    fused = swap.finished()
    join(fused, found, call)
    return fused


def _sequences(model: nn.Module) -> list[tuple[nn.Module, nn.Module]]:
    found: list[tuple[nn.Module, nn.Module]] = []
    for module in model.modules():
        if type(module) is not nn.Sequential or not unhooked(module):
            continue
        parts = list(module)
        if any(pair_of(*pair) is not None for pair in itertools.pairwise(parts)):
            closed = FusedSequential(OrderedDict(module.named_children()))
            closed.training = module.training
            found.append((module, closed))
    return found


@torch.no_grad()
def _gated(model: nn.Module, call: Any) -> list[tuple[nn.Module, nn.Module]]:
    roles = {module: found for module in model.modules() if (found := roles_of(module))}
    if not roles:
        return []
    seen: dict[nn.Module, list[Tensor]] = {module: [] for module in roles}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        (x,) = args
        seen[module].append(x.detach().clone())

    hooks = [module.register_forward_hook(keep) for module in roles]
    with hooked(hooks), evaluating(model):
        call(model)
    with evaluating(model):
        return [
            (module, FusedGatedMLP(module, *roles[module]))
            for module, inputs in seen.items()
            if inputs and all(map(partial(_computes, module, roles[module]), inputs))
        ]


def _computes(module: nn.Module, roles: Roles, x: Tensor) -> bool:
    gate, up, activation, down = (getattr(module, name) for name in roles)
    return torch.equal(module(x), down(activation(gate(x)) * up(x)))


class _Parts(fx.Tracer):
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def roles_of(module: nn.Module) -> Roles | None:
    """The parts of a gated MLP, where the module's forward is its formula and nothing else."""
    children = dict(module.named_children())
    linears = [name for name, child in children.items() if type(child) is ScaledLinear]
    activations = [name for name, child in children.items() if activation_of(child)]
    held = (*module.parameters(recurse=False), *module.buffers(recurse=False))
    if held or len(children) != 4 or (len(linears), len(activations)) != (3, 1):
        return None
    if not unhooked(module, *children.values()):
        return None
    try:
        graph = _Parts().trace(module)
    except Exception:  # whatever the forward does to what stands for a tensor: it is another one
        return None
    roles = _read(graph)
    if roles is None or {roles[0], roles[1], roles[3]} != set(linears):
        return None
    return roles if roles[2] == activations[0] and readable(children[roles[3]]) else None


def _read(graph: fx.Graph) -> Roles | None:
    """The names, if the graph is output(down(activation(gate(x)) * up(x))) of 7 nodes."""
    nodes = {node.op: [n for n in graph.nodes if n.op == node.op] for node in graph.nodes}
    counts = {op: len(some) for op, some in nodes.items()}
    if counts != {"placeholder": 1, "call_module": 4, "call_function": 1, "output": 1}:
        return None
    (x,), (times,), (output,) = (nodes[op] for op in ("placeholder", "call_function", "output"))
    down = output.args[0]
    if times.target not in _TIMES or times.kwargs or _input(down) is not times:
        return None
    for left, up in (times.args, times.args[::-1]):
        gate = _input(left)
        if _input(up) is x and _input(gate) is x:
            return gate.target, up.target, left.target, down.target
    return None


def _input(node: Any) -> Any:
    """What a call of a part is given, if that is all; else None."""
    called = isinstance(node, fx.Node) and node.op == "call_module" and not node.kwargs
    return node.args[0] if called and len(node.args) == 1 else None
