"""What every op does with its arguments before the library is called, and with an error after."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ._torch import has_no_memory, levels, thrown

NONE_GIVEN: dict[str, Tensor] = {}
NO_SETTINGS: dict[str, Any] = {}
LARGEST = 2**31 - 1


def accept(operands: dict[str, Tensor], options: dict[str, Tensor] = NONE_GIVEN) -> None:
    """Refuses what only Python can see: an operand that is no tensor, or that wants a gradient or
    has a tangent (these are inference ops). Everything else is asked in csrc/problems/."""
    if _forward_mode():
        _refuse_tangents(operands | options)
    for given in (operands, options) if options else (operands,):
        for name in given:  # not items(): without a second name the common path is shorter
            operand = given[name]
            if not isinstance(operand, Tensor) or operand.requires_grad:
                _refuse(name, operand)


def are_tensors(a: object, b: object, c: object, d: object) -> bool:
    """Whether `accept` would let these pass: the same question of four, without names for them,
    which cost a call more than the question."""
    return (
        isinstance(a, Tensor)
        and isinstance(b, Tensor)
        and isinstance(c, Tensor)
        and isinstance(d, Tensor)
        and levels._current_level < 0  # _forward_mode(), without a call
        and (
            not torch.is_grad_enabled()
            or not (a.requires_grad or b.requires_grad or c.requires_grad or d.requires_grad)
        )
    )


def may_go_short(x: object, bias: Tensor | None) -> bool:
    """Whether `accept` would let a layer's activation and bias pass: `are_tensors` of two."""
    if not isinstance(x, Tensor) or levels._current_level >= 0:
        return False
    follows = x.requires_grad or (bias is not None and bias.requires_grad)
    return not (follows and torch.is_grad_enabled())


def accept_dense(
    operands: dict[str, Tensor], options: Mapping[str, Tensor | None] = NONE_GIVEN
) -> None:
    """`accept` of what Python alone works on, where no dispatcher asks for a kernel: tensors that
    keep their elements otherwise than at strides are refused too. Options may be None."""
    given = operands | {name: t for name, t in options.items() if t is not None}
    accept(given)
    for name, t in given.items():
        if kind := _kind(t):
            raise ValueError(f"{name} must be a dense tensor, got {kind}")


def must_be_bool(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be a bool, got {type(value).__name__}")


def must_be_size(name: str, value: object) -> None:
    """A whole number of features or rows, which the kernels on a GPU count in 32 bits."""
    if isinstance(value, bool) or not isinstance(value, (int, torch.SymInt)):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not 0 <= value <= LARGEST:
        raise ValueError(f"{name} must be in 0..{LARGEST}, got {value}")


def _forward_mode() -> bool:
    """Whether tensors may have tangents: within `forward_ad.dual_level`, `torch.func.jvp`. What
    torch itself asks first; a tangent that an op does not see would count as zero."""
    return bool(levels._current_level >= 0)


def _refuse_tangents(operands: dict[str, Tensor]) -> None:
    for name, t in operands.items():
        if isinstance(t, Tensor) and forward_ad.unpack_dual(t).tangent is not None:
            raise ValueError(f"{name} must not have a tangent (use .detach()), got a dual tensor")


def _refuse(name: str, operand: object) -> None:
    if not isinstance(operand, Tensor):
        raise TypeError(f"{name} must be a Tensor, got {type(operand).__name__}")
    if torch.is_grad_enabled():
        raise ValueError(
            f"{name} must not require grad (use torch.no_grad() or .detach(), or let "
            "nn.ScaledLinear or nn.WeightOnlyLinear take gradients), got requires_grad=True"
        )


def explained(error: Exception, operands: dict[str, Any]) -> Exception:
    """What a public function raises for an error of its op.

    MemoryError is what the libraries raise where a tensor cannot be allocated: the stable ABI has
    no way to raise torch's own exception. NotImplementedError is the dispatcher's: it has no kernel
    for an operand of this kind, and does not say which operand that is.
    """
    error = thrown(error)
    if isinstance(error, MemoryError):
        return torch.OutOfMemoryError(str(error))
    for name, operand in operands.items():
        if isinstance(operand, Tensor) and (kind := _kind(operand)):
            return ValueError(f"{name} must be a dense tensor, got {kind}")
    return error


def _kind(t: Tensor) -> str:
    """What is not dense about t: the kernels read elements at strides, and nothing else."""
    if t.is_nested:
        return "a nested tensor"
    if t.is_quantized:
        return f"a quantised tensor ({t.qscheme()})"
    return "" if t.layout is torch.strided else f"layout {t.layout}"


def called(
    op: Any,
    arguments: Sequence[Any],
    operands: dict[str, Tensor],
    options: Mapping[str, Tensor | None] = NONE_GIVEN,
    settings: dict[str, Any] = NO_SETTINGS,
) -> Any:
    """What an op makes of its arguments.

    Args:
        op: one overload; with "out" among the options the one that writes it, which is returned.
        arguments: those that go by position.
        operands: the tensors among them by name, which a refusal says.
        options: tensors that go by name. None is not passed on: each costs the dispatcher 0.6 us.
        settings: all else that goes by name.

    Raises:
        ValueError, TypeError, torch.OutOfMemoryError: as `accept` and `explained`.
    """
    given: dict[str, Tensor] = {name: t for name, t in options.items() if t is not None}
    accept(operands, given)
    out = given.get("out")
    try:
        if out is None:
            return op(*arguments, **given, **settings)
        accept_out(out)
        op(*arguments, **given, **settings)
        return written(out)
    except (MemoryError, RuntimeError) as error:
        raise explained(error, {**operands, **given}) from None


def accepted_settings(
    activation: object, out_dtype: object = torch.bfloat16
) -> dict[str, str | torch.dtype]:
    """Those of a product's that are not its defaults, for `called`.

    Raises:
        TypeError: activation is no string, or out_dtype no dtype.
    """
    made: dict[str, str | torch.dtype] = {}
    if activation is not None:
        if not isinstance(activation, str):
            raise TypeError(f"activation must be a string, got {type(activation).__name__}")
        made["activation"] = activation
    if out_dtype is not torch.bfloat16:
        if not isinstance(out_dtype, torch.dtype):
            raise TypeError(f"out_dtype must be a torch.dtype, got {type(out_dtype).__name__}")
        made["out_dtype"] = out_dtype
    return made


def accept_out(out: Tensor) -> None:
    """Refuses a tensor that is kept as another one's negative, or as a zero without memory: torch
    hands an op a copy of it, and expects it back from the op. (A graph that is being compiled
    knows neither.)"""
    if torch.compiler.is_compiling():
        return
    if out.is_neg() or has_no_memory(out):
        kind = "a lazily negated view" if out.is_neg() else "a zero without memory"
        raise ValueError(f"out must have memory that holds its values, got {kind}")


def written(out: Tensor) -> Tensor:
    """`out` after an op wrote it. Autograd then knows that what it may have saved of it is gone:
    kernels of the stable ABI do not count the writes. (A compiled graph does.)"""
    if not torch.compiler.is_compiling() and not out.is_inference():
        torch.autograd.graph.increment_version(out)
    return out
