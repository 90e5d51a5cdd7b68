"""Every private name of torch, transformers and vLLM that the library uses, why, and what serves
where it is missing.

They may go in any release. Nothing else in the package has them, but for `integrations.inductor`,
which is a part of inductor, and `bench`, which times what torch has.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

try:  # torch's knows containers that transformers registers; it has no public name
    from torch.utils._pytree import TreeSpec as TreeSpec
    from torch.utils._pytree import tree_flatten as tree_flatten
    from torch.utils._pytree import tree_leaves as tree_leaves
    from torch.utils._pytree import tree_unflatten as tree_unflatten
except ImportError:
    from ._trees import TreeSpec as TreeSpec
    from ._trees import tree_flatten as tree_flatten  # type: ignore[assignment]
    from ._trees import tree_leaves as tree_leaves  # type: ignore[assignment]
    from ._trees import tree_unflatten as tree_unflatten  # type: ignore[assignment]

levels: Any = (
    forward_ad if hasattr(forward_ad, "_current_level") else SimpleNamespace(_current_level=0)
)
"""`levels._current_level` is at least 0 where tensors may have tangents: torch asks it first, too.
Reading it takes 20 ns, and asking each tensor (`forward_ad.unpack_dual`) some 500. Without it every
tensor is asked."""

COUNTS_WRITES = hasattr(Tensor, "_version")
"""Whether `x._version` grows when x is written in place, which layers that share a product look at.
Reading it takes 30 ns; without it no layers share."""


def is_exporting() -> bool:
    """Whether torch.export traces this. The public function says so of every graph that dynamo
    traces, in torch 2.11; it serves where the flag behind it is missing."""
    flag = getattr(torch.compiler, "_is_exporting_flag", None)
    return torch.compiler.is_exporting() if flag is None else bool(flag)


def short(overload: Any) -> Callable[..., Any]:
    """The op without OpOverload.__call__, a Python function that does nothing but call this. It is
    0.1 us of an eager call; without it the overload itself serves."""
    return getattr(overload, "_op", overload)


def has_no_memory(x: Tensor) -> bool:
    """Whether x is a zero that torch keeps without memory. No public name tells; without this one
    such an `out` is not refused, and stays 0."""
    asked = getattr(x, "_is_zerotensor", None)
    return asked is not None and bool(asked())


def check_value(holds: Any, message: Callable[[], str]) -> None:
    """ValueError unless it holds, also of symbolic sizes, about which it then is an assumption.
    `torch._check`, its kin, is documented; without it a symbolic condition is a guard."""
    check = getattr(torch, "_check_value", None)
    if check is not None:
        check(holds, message)
    elif not holds:
        raise ValueError(message())


def dispatch_keys(backend: str) -> Any:
    """For `OpOverload.redispatch`: the library of CPU or CUDA. The ops that take no tensor have no
    device to be dispatched by.

    Raises:
        ImportError: this torch has no such keys; nothing else can name one of two libraries.
    """
    try:
        return torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, backend))
    except AttributeError as missing:
        text = f"scaled_mm needs another torch than {torch.__version__}: {missing}"
        raise ImportError(text) from missing


def thrown(error: Exception) -> Exception:
    """The ValueError or MemoryError that the library threw. From 2.15 on torch hands it on as a
    RuntimeError of the same text: the stable ABI promises no types."""
    if type(error) is not RuntimeError:
        return error
    if str(error).startswith("could not allocate "):
        return torch.OutOfMemoryError(str(error))
    return ValueError(str(error)) if re.search(" must .*, got ", str(error)) else error


HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """Whether a call of the module runs hooks. They are registered by public names, and listed by
    none; a kind that is missing counts as empty."""
    return any(map(vars(module).get, HOOKS))


def become(module: nn.Module, kind: type[nn.Module]) -> None:
    """Gives a module another class, for whoever holds it. `parallelize_module` changes modules in
    place and drops what a style returns."""
    module.__class__ = kind


def decompositions() -> Any:
    """inductor's, so that patterns look as its graphs do; without them those of torch.export, with
    which some patterns may go unfound."""
    try:
        from torch._inductor.decomposition import select_decomp_table
    except ImportError:
        return torch.export.default_decompositions()
    return select_decomp_table()


def keeps_dtypes(model: Any, dtype: torch.dtype) -> bool:
    """Whether a model of transformers keeps some parameters in another dtype than this; True where
    it does not tell."""
    plan = getattr(model, "_get_dtype_plan", None)
    return plan is None or bool(plan(dtype))


def not_unexpected(model: Any, pattern: str) -> None:
    """Keys of files that transformers would report as unexpected, since a quantiser reads them by
    itself. transformers has no public name for that; where it asks another, it reports them."""
    known = getattr(model, "_keys_to_ignore_on_load_unexpected", None)
    model._keys_to_ignore_on_load_unexpected = {*(known or ()), pattern}


def made_by_the_model(model: nn.Module, name: str) -> bool:
    """Whether transformers leaves a tensor out of the files: the model computes it (tables of
    sines). It has no public name for that; without the list every tensor must be there."""
    return name in (getattr(model, "_keys_to_ignore_on_save", None) or ())


def gate_of(experts: Any) -> Callable[[Tensor], Tensor]:
    """What a module of transformers' stacked experts makes of gate and up. Every implementation
    that is registered with transformers' `ExpertsInterface` calls it by this name.

    Raises:
        ValueError: it has none; a function that is only likely would give other results.
    """
    gate: Callable[[Tensor], Tensor] | None = getattr(experts, "_apply_gate", None)
    if gate is None:
        raise ValueError(f"experts must have _apply_gate, got a {type(experts).__name__} without")
    return gate


def has_usual_gate(experts: nn.Module) -> bool:
    """Whether that is `act_fn(gate) * up`, which transformers gives to classes without their own;
    where another function does, the module's own gate is run."""
    gate = getattr(type(experts), "_apply_gate", None)
    return getattr(gate, "__module__", "") == "transformers.integrations.moe"


def vllm_tables(linear: Any) -> tuple[Any, Any]:
    """vLLM's kernels for int8 and for weights of few bits, by platform. It asks them in the order
    of these lists, and `register_linear_kernel` puts a new one last.

    Raises:
        AttributeError: this vLLM has no such lists, or not what its own kernels get a layer's
            tensors by, which those of `integrations.vllm_kernels` inherit. It is left as it is.
    """
    for kernel, name in (
        (linear.Int8ScaledMMLinearKernel, "_get_layer_params"),
        (linear.MPLinearKernel, "_get_weight_params"),
    ):
        if not hasattr(kernel, name):
            raise AttributeError(f"{kernel.__name__} has no {name}")
    return linear._POSSIBLE_INT8_KERNELS, linear._POSSIBLE_KERNELS
