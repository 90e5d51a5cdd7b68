"""`torch.compile` with producers: norms and activations that write int8, found in the graph.

    from scaled_mm.integrations import inductor
    compiled = torch.compile(quantize_model(model), options=inductor.options())

Before inductor makes kernels of a graph, a pass goes over it (`InductorPass`):

    layers (`scaled_linear`) of one tensor      one quantiser, and their products; one product,
                                                if `fuse_model` laid their weights out as one
    a layer behind a norm or an activation      the same, for the next step
    several quantisers of one tensor, alike     one
    norm or activation -> quantiser             the producer of both
    x + residual -> norm's producer             the producer of all three

The first three and the last change no bit of the model's output. In the fourth, a producer does not
round to the model's dtype before it quantises (docs/numerics.md, section 6). The graph is
functional: torch has put a new tensor in the place of everything that is written in place or
through a view, so it shows every reader of a norm's output. A model of which `fuse_model` fused
parts keeps every bit of these.

Norms and activations are found by what they compute, as `patterns.py` writes it in torch's
functions. Where others read a norm too, its producer writes floats for them; an activation that
others read stays.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor.custom_graph_pass import CustomGraphPass

from .patterns import find, patterns

_ATEN = torch.ops.aten
_OPS = torch.ops.scaled_mm
_LINEAR = _OPS.scaled_linear.default
_PRODUCTS = (_LINEAR, _OPS.scaled_mm.default)
_QUANTIZERS = (_OPS.quantize_int8.default, _OPS.quantize_int8_static.default)
_PRODUCE = _OPS.produce_int8.default
_PARTS = 5  # that it returns; the last is the norm as floats
_VIEWS = (_ATEN.view.default, _ATEN.view.dtype, _ATEN.alias.default)
_PURE = ("aten", "prims")  # in these graphs
_SLOT = "joint_custom_pre_pass"


class InductorPass(CustomGraphPass):
    """The pass, for whoever has other passes too: `torch._inductor.config.joint_custom_pre_pass`
    takes one. It knows graphs of inference (`torch.no_grad`)."""

    def __init__(self) -> None:
        patterns()  # traced here, and not within the trace of a model

    def __call__(self, graph: fx.Graph) -> None:
        _part_layers(graph)
        _free_strides(graph)
        _share(graph, _QUANTIZERS)
        for node in list(graph.nodes):
            if node.target in _QUANTIZERS:
                _produce(graph, node)
        _share(graph, (_PRODUCE,))
        for node in list(graph.nodes):
            if node.target is _PRODUCE:
                _take_residual(graph, node)
        graph.eliminate_dead_code()

    def uuid(self) -> Any:
        """Changes with the pass: compiled programs are kept under it."""
        files = (Path(__file__), Path(__file__).with_name("patterns.py"))
        return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def options(**others: Any) -> dict[str, Any]:
    """The `options=` of torch.compile with the pass, and others of inductor's.

    Raises:
        RuntimeError: this torch has no place for such a pass.
    """
    if _SLOT not in torch._inductor.list_options():
        raise RuntimeError(f"torch {torch.__version__} must have inductor's {_SLOT}, got none")
    return {_SLOT: InductorPass(), **others}


# --- the steps ------------------------------------------------------------------------------------


def _part_layers(graph: fx.Graph) -> None:
    """Quantiser and product in the place of a layer that shares its quantiser with another one, or
    has a producer in front."""
    groups: dict[Any, list[fx.Node]] = {}
    for node in list(graph.nodes):
        given = _arguments(node) if node.target is _LINEAR else {}
        if given and all(given[name] is None for name in _OWN):
            how = tuple(given[name] for name in ("x", "input_scale", "input_azp", *_SCHEME))
            groups.setdefault(how, []).append(node)
    for alike in groups.values():
        layers = _joined(graph, alike)
        if len(layers) > 1 or find(_arguments(layers[0])["x"]) is not None:
            for node in layers:
                _part_layer(graph, node)


def _arguments(node: fx.Node) -> dict[str, Any]:
    """Of a node, as they are now: what is parted before it may have been one of them."""
    normal = node.normalized_arguments(torch.nn.Module(), normalize_to_only_use_kwargs=True)
    assert normal is not None
    return dict(normal.kwargs)


_SCHEME = ("symmetric", "per_token", "rotate")
_OWN = ("input_smooth", "producer")  # with one, what is quantised is the layer's own


_COLUMNS = ("weight", "weight_scale", "bias", "azp_term")  # that have a part for each column


@dataclass(frozen=True)
class _Slice:
    """`base[begin:end]` along a dimension, and the views that a layer has of it."""

    base: fx.Node
    dim: int
    begin: int
    end: int
    views: tuple[fx.Node, ...]

    def place(self) -> tuple[str, int]:
        return str(self.base.args), self.begin

    def goes_on(self, other: _Slice) -> bool:
        """Whether `other` begins where this one ends, in the same memory."""
        same = self.base.args == other.base.args and self.dim == other.dim
        return same and self.end == other.begin and len(self.views) == len(other.views)


def _slice_of(node: fx.Node) -> _Slice | None:
    """What `Part.buffer` makes of a layer's."""
    views: list[fx.Node] = []
    while node.target in _VIEWS:
        views.append(node)
        node = node.args[0]  # type: ignore[assignment]
    if node.target is not _ATEN.slice.Tensor or len(node.args) != 4:
        return None
    base, dim, begin, end = node.args
    if not isinstance(base, fx.Node) or base.target is not _ATEN.as_strided.default:
        return None
    return _Slice(base, dim, begin, end, tuple(views[::-1]))  # type: ignore[arg-type]


def _parts_of(layer: fx.Node) -> dict[str, _Slice] | None:
    """Of each buffer that the layer has; None, if one is no slice."""
    given = _arguments(layer)
    found = {name: _slice_of(given[name]) for name in _COLUMNS if given[name] is not None}
    parts = {name: part for name, part in found.items() if part is not None}
    return parts if len(parts) == len(found) else None


def _joined(graph: fx.Graph, layers: list[fx.Node]) -> list[fx.Node]:
    """The layers, one in the place of those whose buffers lie one behind the other."""
    parts = {node: found for node in layers if (found := _parts_of(node)) is not None}
    runs: list[list[fx.Node]] = []
    for node in sorted(parts, key=lambda node: parts[node]["weight_scale"].place()):
        last, own = parts[runs[-1][-1]] if runs else {}, parts[node]
        if last.keys() == own.keys() and all(last[name].goes_on(own[name]) for name in own):
            runs[-1].append(node)
        else:
            runs.append([node])
    others = [node for node in layers if node not in parts]
    return others + [_join(graph, run, parts) if len(run) > 1 else run[0] for run in runs]


def _join(
    graph: fx.Graph, layers: list[fx.Node], parts: dict[fx.Node, dict[str, _Slice]]
) -> fx.Node:
    """One layer in their place, which read their columns of its output."""
    place = min(layers)
    given = _arguments(place)
    first, last = parts[layers[0]], parts[layers[-1]]
    with graph.inserting_before(place):
        for name, part in parts[place].items():
            begin, end = first[name].begin, last[name].end
            x = _added(graph, _ATEN.slice.Tensor, part.base, part.dim, begin, end)
            for view in part.views:
                to = ([-1],) if view.target is _ATEN.view.default else view.args[1:]
                x = _added(graph, view.target, x, *to)
            given[name] = x
        whole = _added(graph, _LINEAR, **given)
        at = whole.meta["val"].dim() - 1
        begin = first["weight_scale"].begin
        for node in layers:
            own = parts[node]["weight_scale"]
            columns = at, own.begin - begin, own.end - begin
            node.replace_all_uses_with(_added(graph, _ATEN.slice.Tensor, whole, *columns))
    for node in layers:
        graph.erase_node(node)
    return whole


def _free_strides(graph: fx.Graph) -> None:
    """Ops of ours that read columns of one product, anew: for those of the trace, where each layer
    had an output of its own, inductor copies operands to the strides that they had there."""
    for columns in graph.find_nodes(op="call_function", target=_ATEN.slice.Tensor):
        if columns.args[0].target not in _PRODUCTS:
            continue
        for node in list(columns.users):
            if getattr(node.target, "namespace", None) != _OPS.name:
                continue
            with graph.inserting_before(node):
                node.replace_all_uses_with(_added(graph, node.target, *node.args, **node.kwargs))
            graph.erase_node(node)


def _part_layer(graph: fx.Graph, node: fx.Node) -> None:
    given = _arguments(node)
    x, k, weight, scales = (given[name] for name in ("x", "k", "weight", "weight_scale"))
    n, terms = scales.meta["val"].shape[0], {}
    with graph.inserting_before(node):
        if given["input_scale"] is None:
            scheme = {name: given[name] for name in _SCHEME}
            made = _added(graph, _QUANTIZERS[0], x, **scheme)
            q, scale = _part(graph, made, 0), _part(graph, made, 1)
            if not given["symmetric"]:
                terms = {"azp": _part(graph, made, 2), "azp_adj": given["azp_term"]}
        else:
            scale, azp, rotate = (given[name] for name in ("input_scale", "input_azp", "rotate"))
            q = _added(graph, _QUANTIZERS[1], x, scale, azp, rotate=rotate)
            terms = {} if azp is None else {"azp_with_adj": given["azp_term"]}
        if weight.meta["val"].dim() == 1:
            terms |= {"b_shape": [k, n], "b_settled": given["settled"]}
        else:
            weight = _added(graph, _ATEN.permute.default, weight, [1, 0])
        row = _added(graph, _ATEN.view.default, scales, [1, n])
        terms |= {"bias": given["bias"], "out_dtype": x.meta["val"].dtype}
        y = _added(graph, _OPS.scaled_mm.default, q, weight, scale, row, **terms)
    node.replace_all_uses_with(y)
    graph.erase_node(node)


def _added(graph: fx.Graph, target: Any, *args: Any, **kwargs: Any) -> fx.Node:
    """A new node, which knows what its outputs look like: inductor asks it."""
    node = graph.call_function(target, args, kwargs)
    given, named = fx.map_arg((args, kwargs), lambda n: n.meta["val"])
    tensors = (x for x in (*given, *named.values()) if isinstance(x, Tensor))
    with next(tensors).fake_mode:  # type: ignore[attr-defined]
        node.meta["val"] = target(*given, **named)
    return node


def _share(graph: fx.Graph, targets: Iterable[Any]) -> None:
    """Keeps one of the nodes that do the same to the same."""
    seen: dict[Any, fx.Node] = {}
    for node in list(graph.nodes):
        if node.target not in targets:
            continue
        key = (node.target, node.args, tuple(sorted(node.kwargs.items(), key=lambda x: x[0])))
        first = seen.setdefault(key, node)
        if first is node:
            continue
        if isinstance(node.meta["val"], Tensor):  # a static quantiser has no parts
            node.replace_all_uses_with(first)
            graph.erase_node(node)
        else:
            _parts_to(graph, node, first, range(_PARTS))


def _parts_to(graph: fx.Graph, old: fx.Node, new: fx.Node, places: Iterable[int]) -> None:
    """Lets the readers of old's parts read those of new, old's i-th is new's places[i]-th."""
    parts = dict(enumerate(places))
    for reader in list(old.users):
        place: Any = reader.args[1]
        with graph.inserting_before(reader):
            part = _part(graph, new, parts[place])
        reader.replace_all_uses_with(part)
        graph.erase_node(reader)
    graph.erase_node(old)


def _part(graph: fx.Graph, node: fx.Node, place: int) -> fx.Node:
    part = graph.call_function(operator.getitem, (node, place))
    part.meta["val"] = node.meta["val"][place]
    return part


def _produce(graph: fx.Graph, node: fx.Node) -> None:
    """Puts the producer in the place of a quantiser and what it reads."""
    y: Any = node.args[0]
    others = [reader for reader in y.users if reader.target not in _QUANTIZERS]
    match = find(y)
    given = _options_of(node)
    if match is None or given is None:
        return
    place = node
    if others:
        place = y.next
        known = all(n < place for n in given.values() if isinstance(n, fx.Node))
        if "eps" not in match.options or not known:
            return  # it is no norm, or the scale is not known yet where the others read
        given["normed"] = True
    with graph.inserting_before(place):
        made = _added(graph, _PRODUCE, match.producer, match.x, **match.options, **given)
        if others:
            floats = _part(graph, made, _PARTS - 1)
    for reader in others:
        reader.replace_input_with(y, floats)
    if node.target is _QUANTIZERS[0]:
        _parts_to(graph, node, made, (0, 1, 2))
        return
    with graph.inserting_before(node):
        q = _part(graph, made, 0)
    node.replace_all_uses_with(q)
    graph.erase_node(node)


def _options_of(node: fx.Node) -> dict[str, Any] | None:
    """How it quantises, as a producer takes it; None where no producer does."""
    given = _arguments(node)
    del given["x"]
    if node.target is _QUANTIZERS[0]:
        return given if given.pop("per_token") else None
    return {name: t for name, t in given.items() if t is not None}


def _take_residual(graph: fx.Graph, node: fx.Node) -> None:
    """x + residual in front of a norm's producer becomes its own, for all who read the sum."""
    total: Any = node.args[1]
    norm = node.args[0] in ("rms_norm", "layer_norm")
    if not norm or node.kwargs.get("residual") is not None or not _is_sum(total):
        return
    late: dict[fx.Node, None] = {}
    others = [n for n in node.all_input_nodes if n is not total]
    if not all(_movable(n, total, late) for n in others):
        return  # not known yet where the sum is wanted
    for other in sorted(late):
        total.prepend(other)
    x, residual = total.args
    with graph.inserting_before(total):
        options = {**node.kwargs, "residual": residual}
        made = _added(graph, _PRODUCE, node.args[0], x, **options)
        h = _part(graph, made, 3)
    _parts_to(graph, node, made, range(_PARTS))
    total.replace_all_uses_with(h)
    graph.erase_node(total)


def _movable(node: fx.Node, place: fx.Node, late: dict[fx.Node, None]) -> bool:
    """Whether it is there at `place`, or can be: one of aten's operations on such. These are added
    to `late`."""
    if node < place:
        return True
    aten = getattr(node.target, "namespace", None) in _PURE
    late[node] = None
    return aten and all(n is not place and _movable(n, place, late) for n in node.all_input_nodes)


def _is_sum(node: fx.Node) -> bool:
    if node.target is not _ATEN.add.Tensor or node.kwargs or len(node.args) != 2:
        return False
    x, y = ((n.meta.get("val") if isinstance(n, fx.Node) else None) for n in node.args)
    out = node.meta["val"]
    return all(
        isinstance(t, Tensor) and t.dtype == out.dtype and t.shape == out.shape for t in (x, y)
    )
