"""`epilogue`: a Python function becomes a program, by being run once on values that note what is
done to them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, ClassVar, get_type_hints

import torch
from torch import Tensor

from .._program import DTYPES, MAX_OPERANDS, MAX_OUTPUTS, Axis, Program
from ..ops.epilogue_mm import epilogue_mm
from ..ops.packed_weight import PackedWeight
from ..reference import program as reference
from .built_in import recognised
from .values import Trace, Value


class _Kind(type):
    """So that `Row[torch.int32]` is a kind too."""

    axis: Axis | None
    dtype: torch.dtype

    def __getitem__(cls, dtype: torch.dtype) -> _Kind:
        if dtype not in (torch.int32, torch.float32):
            raise TypeError(f"an operand must be torch.int32 or torch.float32, got {dtype}")
        if cls.axis is None:
            raise TypeError("Acc has no dtype to choose: it is int32")
        return _Kind(cls.__name__, (cls,), {"dtype": dtype})


class Acc(Value, metaclass=_Kind):
    """The sums A B, int32: the first parameter."""

    axis: ClassVar[Axis | None] = None
    dtype: ClassVar[torch.dtype] = torch.int32


class Row(Value, metaclass=_Kind):
    """An operand [N] or [1, N], one element for each column; or one for all. float32, which a call
    may give in bfloat16 or float16 too; `Row[torch.int32]` of integers. Beside values of `pairs` it
    has N/2."""

    axis: ClassVar[Axis | None] = Axis.ROW
    dtype: ClassVar[torch.dtype] = torch.float32


class Col(Value, metaclass=_Kind):
    """An operand with one element for each row of A, or one for all."""

    axis: ClassVar[Axis | None] = Axis.COL
    dtype: ClassVar[torch.dtype] = torch.float32


class Scalar(Col):
    """An operand with one element."""


class Full(Value, metaclass=_Kind):
    """An operand of the output's shape."""

    axis: ClassVar[Axis | None] = Axis.FULL
    dtype: ClassVar[torch.dtype] = torch.float32


class Epilogue:
    """A function's program, and the product that it ends. `print` it to see the program.

    One that `scaled_mm` has too, with the same operations in the same order, runs on the compiled
    kernel of that; `print` has its name.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.kinds = _kinds(function)
        self.program = _traced(function, self.kinds)
        floats = [dtype for dtype, letter in DTYPES.items() if letter == "f"]
        self._ints = {dtype: self.program.encoded(dtype) for dtype in floats}
        self._built_in = recognised(self.program)
        self._names = [each.name for each in self.program.operands]
        self.scalars = [name for name, kind in self.kinds.items() if issubclass(kind, Scalar)]

    @property
    def is_fused(self) -> bool:
        """Whether the product itself ends in it on CUDA."""
        return self._built_in is not None

    def __call__(
        self,
        a: Tensor,
        b: Tensor | PackedWeight,
        *,
        out_dtype: torch.dtype = torch.bfloat16,
        **operands: Tensor,
    ) -> Any:
        """The product's outputs: a tensor, or a tuple of them where the function returns more.

        Args:
            a: int8 [..., K], as for `scaled_mm`.
            b: int8 [K, N] or `PackedWeight`, as for `scaled_mm`.
            out_dtype: of outputs that are floats: bfloat16, float16 or float32.
            operands: a tensor for each parameter of the function, on a's device; any strides.

        Raises:
            ValueError: an operand has not the shape or dtype of its kind, or a or b breaks a rule.
            TypeError: an operand is missing, not known, or no tensor.
        """
        given, encoded = self._ordered(operands), self._encoded(out_dtype)
        if self._built_in and self._built_in.takes(b, given, out_dtype):
            return self._built_in(a, b, given, out_dtype)
        made = epilogue_mm(a, b, given, encoded)
        return made[0] if len(made) == 1 else tuple(made)

    def reference(
        self, a: Tensor, b: Tensor, *, out_dtype: torch.dtype = torch.bfloat16, **operands: Tensor
    ) -> Any:
        """The same in plain, exact numpy, on the CPU: the definition."""
        dtypes = self.program.dtypes(out_dtype)
        made = reference.epilogue_mm(a, b, self._ordered(operands), self.program, dtypes)
        return made[0] if len(made) == 1 else tuple(made)

    def explain(self, m: int, n: int, k: int, *, device: Any = None) -> str:
        """What runs for A [M, K] and B [K, N], on the CPU and on a GPU: which kernel, and how many
        bytes pass through memory on the way to the outputs.

        Args:
            m, n, k: the sizes.
            device: the GPU, one of `scaled_mm.gpus.DEVICES`; None: the local one, or an H200 where
                there is none.
        """
        from .explained import explained

        return explained(self.program, self._built_in, m, n, k, device)

    def compile(
        self, arch: str, *shapes: tuple[int, int, int], out_dtype: torch.dtype = torch.bfloat16
    ) -> list[str]:
        """Compiles for GPUs of an arch ahead of the first call, which a GPU need not be there for,
        and keeps the libraries where a call looks for them.

        Args:
            arch: sm90.
            shapes: (M, N, K) of the products; only the kernels that these would have are compiled
                for. None: every kernel.
            out_dtype: as in a call.

        Returns:
            The kernels, such as stream_16x64. Those that do not take the program are left out.

        Raises:
            ValueError: there are no compiled epilogues for the arch.
            RuntimeError: there is no compiler, or it failed.
        """
        from ..compiled.ahead import compile_ahead

        return compile_ahead(self._encoded(out_dtype), arch, shapes)

    def __str__(self) -> str:
        known = f" (scaled_mm's {self._built_in.name})" if self._built_in else ""
        return f"{self.__name__}{known}:\n{self.program}"  # type: ignore[attr-defined]

    def _encoded(self, out_dtype: torch.dtype) -> list[int]:
        if out_dtype not in self._ints:
            raise ValueError(f"out_dtype must be bfloat16, float16 or float32, got {out_dtype}")
        return self._ints[out_dtype]

    def _ordered(self, operands: dict[str, Tensor]) -> list[Tensor]:
        for name in self._names:
            if not isinstance(operands.get(name), Tensor):
                raise TypeError(f"{name} must be a Tensor, got {_kind_name(operands.get(name))}")
        if len(operands) != len(self._names):
            name = next(name for name in operands if name not in self._names)
            raise TypeError(f"operands must be {', '.join(self._names) or 'none'}, got {name}")
        for name in self.scalars:
            if operands[name].numel() != 1:
                shape = tuple(operands[name].shape)
                raise ValueError(f"{name} must have 1 element, got shape {shape}")
        return [operands[name] for name in self._names]


def epilogue(function: Callable[..., Any]) -> Epilogue:
    """Makes an epilogue of a function of values.

    The first parameter is an `Acc`, the sums. Every other one is an operand, of the kind that its
    annotation says: `Row`, `Col`, `Full` or `Scalar`. The function computes with operators and the
    functions of this module, and returns one value, or a tuple of them. It runs once, now, on
    values without elements; each operation on them becomes a node of the program, which rounds
    once. Anything else that the function does, such as a loop or a choice by a Python number, has
    happened when the program stands.

    Raises:
        TypeError: a parameter has no kind, or an operation is given what it does not take. The
            message has the function's line.
        ValueError: there are more than 128 nodes, 32 operands or 8 outputs, an operand is not read,
            or values of `pairs` meet values of all columns.
    """
    return Epilogue(function)


def _kinds(function: Callable[..., Any]) -> dict[str, type]:
    hints = get_type_hints(function)
    kinds = {name: hints.get(name) for name in inspect.signature(function).parameters}
    for place, (name, kind) in enumerate(kinds.items()):
        if not isinstance(kind, _Kind):
            raise TypeError(f"{name} must be annotated Acc, Row, Col, Full or Scalar, got {kind}")
        if (kind.axis is None) != (place == 0):
            raise TypeError(f"the first parameter, and no other, must be Acc, got {name}")
    if taken := kinds.keys() & {"self", "a", "b", "out_dtype"}:
        raise TypeError(f"an epilogue must not have a parameter {min(taken)}: a call has one")
    if not kinds:
        raise TypeError("an epilogue must have a first parameter, Acc, got none")
    if len(kinds) > MAX_OPERANDS + 1:
        raise ValueError(f"an epilogue must have at most {MAX_OPERANDS} operands")
    return kinds  # type: ignore[return-value]


def _traced(function: Callable[..., Any], kinds: dict[str, Any]) -> Program:
    trace, values = Trace(), list[Value]()
    for name, kind in kinds.items():
        if kind.axis is None:
            values.append(trace.value("acc"))
        else:
            values.append(trace.operand(name, kind.axis, kind.dtype is torch.float32))
    made = function(*values)
    outputs = made if isinstance(made, tuple) else (made,)
    if not 1 <= len(outputs) <= MAX_OUTPUTS:
        raise ValueError(f"an epilogue must return 1 to {MAX_OUTPUTS} values, got {len(outputs)}")
    for each in outputs:
        if not isinstance(each, Value) or each._trace is not trace:
            raise TypeError(f"an epilogue must return its values, got {_kind_name(each)}")
        if each._type == "b":
            raise TypeError("an epilogue must return numbers, got a truth value")
    return trace.finished(tuple(each._node for each in outputs))


def _kind_name(x: object) -> str:
    return "none" if x is None else type(x).__name__
