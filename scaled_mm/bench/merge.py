"""Results of several runs as one: shapes measured on several GPUs of a kind, at the same time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SAME = ("gpu", "cpu", "sms", "scaled_mm", "torch", "cuda", "driver", "isa", "threads")


def merged(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The cases of all, by weight in the order in which weights first come, then by M.

    Every cell keeps the numbers of its own run, floors included; the machine and its copy bandwidth
    are told of the first run.

    Raises:
        ValueError: the runs differ in machine, versions or settings, or have a shape twice.
    """
    first, *others = results
    for other in others:
        for at, names in (("machine", SAME), ("settings", tuple(first["settings"]))):
            for name in names:
                have, got = first[at].get(name), other[at].get(name)
                if have != got:
                    raise ValueError(
                        f"--read must be of runs with one {name}, got {have} and {got}"
                    )
    cases = [case for result in results for case in result["results"]]
    shapes = [(case["m"], case["n"], case["k"]) for case in cases]
    if twice := [shape for shape in shapes if shapes.count(shape) > 1]:
        raise ValueError(f"--read must have each shape once, got {twice[0]} twice")
    weights = list(dict.fromkeys(shape[1:] for shape in shapes))
    cases.sort(key=lambda case: (weights.index((case["n"], case["k"])), case["m"]))
    return {**first, "results": cases}
