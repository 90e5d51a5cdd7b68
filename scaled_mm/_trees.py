"""Arguments as a list of leaves, where torch's own functions for it are missing. Containers are
tuples, lists and dicts; anything else is a leaf.
"""

from __future__ import annotations

from typing import Any

TreeSpec = Any
"""A tree whose leaves are ...; it keeps the containers."""


def tree_flatten(tree: Any) -> tuple[list[Any], TreeSpec]:
    if type(tree) is dict:
        leaves, specs = _flattened(tree.values())
        return leaves, dict(zip(tree, specs, strict=True))
    if isinstance(tree, (list, tuple)):
        leaves, specs = _flattened(tree)
        return leaves, _like(tree, specs)
    return [tree], ...


def tree_leaves(tree: Any) -> list[Any]:
    return tree_flatten(tree)[0]


def tree_unflatten(leaves: Any, spec: TreeSpec) -> Any:
    return _filled(iter(leaves), spec)


def _flattened(trees: Any) -> tuple[list[Any], list[TreeSpec]]:
    parts = [tree_flatten(each) for each in trees]
    return [leaf for leaves, _ in parts for leaf in leaves], [spec for _, spec in parts]


def _filled(leaves: Any, spec: TreeSpec) -> Any:
    if spec is ...:
        return next(leaves)
    if isinstance(spec, dict):
        return {key: _filled(leaves, each) for key, each in spec.items()}
    return _like(spec, [_filled(leaves, each) for each in spec])


def _like(container: Any, items: list[Any]) -> Any:
    """A NamedTuple takes its items one by one."""
    kind = type(container)
    return kind(*items) if hasattr(kind, "_fields") else kind(items)
