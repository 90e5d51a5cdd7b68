"""What an epilogue's function becomes: a program, nodes that each compute one value for every
element of the output, from the values of nodes before.

`scaled_mm.epilogue` makes it of a Python function. csrc/epilogue/program.def has the same
operations, csrc/problems/program.h the form as integers, and `scaled_mm.reference.program` what
they mean.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import NamedTuple

import torch

VERSION = 1
MAX_NODES, MAX_OPERANDS, MAX_OUTPUTS = 128, 32, 8

OPERATIONS: dict[str, tuple[str, str]] = {
    "acc": ("i", ""),
    "operand": ("x", ""),
    "integer": ("i", ""),
    "number": ("f", ""),
    "add_int": ("i", "ii"),
    "sub_int": ("i", "ii"),
    "mul_int": ("i", "ii"),
    "neg_int": ("i", "i"),
    "abs_int": ("i", "i"),
    "min_int": ("i", "ii"),
    "max_int": ("i", "ii"),
    "less_int": ("b", "ii"),
    "at_most_int": ("b", "ii"),
    "equal_int": ("b", "ii"),
    "where_int": ("i", "bii"),
    "to_float": ("f", "i"),
    "to_int": ("i", "f"),
    "add": ("f", "ff"),
    "sub": ("f", "ff"),
    "mul": ("f", "ff"),
    "div": ("f", "ff"),
    "fma": ("f", "fff"),
    "neg": ("f", "f"),
    "abs": ("f", "f"),
    "min": ("f", "ff"),
    "max": ("f", "ff"),
    "sqrt": ("f", "f"),
    "less": ("b", "ff"),
    "at_most": ("b", "ff"),
    "equal": ("b", "ff"),
    "where": ("f", "bff"),
    "relu": ("f", "f"),
    "silu": ("f", "f"),
    "gelu": ("f", "f"),
    "gelu_tanh": ("f", "f"),
    "exp": ("f", "f"),
    "erf": ("f", "f"),
    "sigmoid": ("f", "f"),
    "tanh": ("f", "f"),
    "to_bfloat16": ("f", "f"),
    "to_float16": ("f", "f"),
    "gate": ("f", "f"),
    "value": ("f", "f"),
    "to_int8": ("q", "ff"),
    "to_int8_azp": ("q", "ffi"),
    "to_e4m3": ("e", "ff"),
}
"""Name -> the type of the result and of the arguments, in the order of program.def. i int32,
f float32, b a truth value, q int8, e float8_e4m3fn; an operand (x) has its own."""

TYPES = {"i": "int32", "f": "float32", "b": "truth value", "q": "int8", "e": "float8_e4m3fn"}
DTYPES = {
    torch.float32: "f",
    torch.bfloat16: "f",
    torch.float16: "f",
    torch.int32: "i",
    torch.int8: "q",
    torch.float8_e4m3fn: "e",
}
"""Output dtype -> the type that it holds, in the order of kProgramDtypes."""
CONSTANTS = ("integer", "number")
_NUMBERS = {name: number for number, name in enumerate(OPERATIONS)}
_DTYPES = {dtype: number for number, dtype in enumerate(DTYPES)}


class Axis(Enum):
    """How an operand lies over the output [M, N]."""

    ROW = 0
    """One element for each column n."""
    COL = 1
    """One element for each row m; or one for all."""
    FULL = 2
    """One element for each (m, n)."""


class Operand(NamedTuple):
    name: str
    axis: Axis
    is_float: bool
    """float32, bfloat16 or float16, read as float32; or int32."""
    columns: int
    """Of B for each element along n: 2 for an operand of pairs; 0 for one of rows alone."""

    def shape(self, m: int, n: int) -> tuple[int, int]:
        """Beside sums [m, n]."""
        wide = n // max(1, self.columns)
        return {Axis.ROW: (1, wide), Axis.COL: (m, 1), Axis.FULL: (m, wide)}[self.axis]


class Node(NamedTuple):
    operation: str
    arguments: tuple[int, ...] = ()
    """Nodes before; of an operand its place, of a constant its bits."""


@dataclass(frozen=True)
class Program:
    """Operands, nodes in the order in which they are computed, and the nodes that are outputs."""

    operands: tuple[Operand, ...]
    nodes: tuple[Node, ...]
    outputs: tuple[int, ...]

    @cached_property
    def types(self) -> list[str]:
        """A letter of `TYPES` for each node."""
        of_operands = ["f" if each.is_float else "i" for each in self.operands]
        return [
            of_operands[x.arguments[0]] if x.operation == "operand" else OPERATIONS[x.operation][0]
            for x in self.nodes
        ]

    @cached_property
    def columns(self) -> list[int]:
        """Of B for each element of a node: 1, 2 behind gate and value, 0 where all columns are the
        same."""
        found: list[int] = []
        for operation, arguments in self.nodes:
            if operation in ("gate", "value"):
                found.append(2)
            elif operation == "operand":
                found.append(self.operands[arguments[0]].columns)
            elif operation in CONSTANTS:
                found.append(0)
            else:
                found.append(1 if operation == "acc" else max(found[x] for x in arguments))
        return found

    @property
    def out_columns(self) -> int:
        """Columns of B for each of the outputs."""
        return max(1, *(self.columns[x] for x in self.outputs), 0)

    def dtypes(self, out_dtype: torch.dtype) -> list[torch.dtype]:
        """Of the outputs: those that are floats have `out_dtype`."""
        fixed = {letter: dtype for dtype, letter in DTYPES.items() if letter != "f"}
        return [fixed.get(self.types[node], out_dtype) for node in self.outputs]

    def encoded(self, out_dtype: torch.dtype) -> list[int]:
        """As integers, as the op takes it."""
        made = [VERSION, len(self.operands)]
        for each in self.operands:
            made += [each.axis.value, int(each.is_float), each.columns]
        made.append(len(self.nodes))
        for operation, arguments in self.nodes:
            made += [_NUMBERS[operation], *arguments, *[-1] * (3 - len(arguments))]
        made.append(len(self.outputs))
        for node, dtype in zip(self.outputs, self.dtypes(out_dtype), strict=True):
            made += [node, _DTYPES[dtype]]
        return made

    def __str__(self) -> str:
        """A line for each node, `%3 = fma %0 %1 %2`, and the outputs."""
        lines = []
        for i, (operation, arguments) in enumerate(self.nodes):
            words = [f"%{x}" for x in arguments]
            if operation == "operand":
                operand = self.operands[arguments[0]]
                kind = "float" if operand.is_float else "int32"
                half = " of pairs" if operand.columns == 2 else ""
                words = [f"{operand.name} ({operand.axis.name.title()}, {kind}{half})"]
            elif operation == "integer":
                words = [str(arguments[0])]
            elif operation == "number":
                words = [repr(struct.unpack("<f", struct.pack("<i", arguments[0]))[0])]
            lines.append(" ".join([f"%{i} =", operation, *words]))
        outputs = ", ".join(f"%{node}" for node in self.outputs)
        return "\n".join([*lines, f"return {outputs}"])


def decoded(ints: list[int]) -> tuple[Program, list[torch.dtype]]:
    """The program that was encoded, but for the names of its operands, and the outputs' dtypes.

    Raises:
        ValueError: the integers are none of a program.
    """
    try:
        return _decoded(iter(ints))
    except (StopIteration, IndexError, ValueError):
        raise ValueError("program must be what an epilogue encodes, got other numbers") from None


def _decoded(rest: Iterator[int]) -> tuple[Program, list[torch.dtype]]:
    def below(limit: int) -> int:
        number = next(rest)
        if not 0 <= number < limit:
            raise ValueError
        return number

    if next(rest) != VERSION:
        raise ValueError
    operands, nodes = [], list[Node]()
    for i in range(below(MAX_OPERANDS + 1)):
        axis, is_float, columns = Axis(next(rest)), bool(next(rest)), below(3)
        operands.append(Operand(f"operands[{i}]", axis, is_float, columns))
    names, dtypes = list(OPERATIONS), list(DTYPES)
    for i in range(below(MAX_NODES + 1)):
        name, given = names[below(len(names))], [next(rest) for _ in range(3)]
        limit = len(operands) if name == "operand" else i
        count = 1 if name in ("operand", *CONSTANTS) else len(OPERATIONS[name][1])
        if name not in CONSTANTS and not all(0 <= x < limit for x in given[:count]):
            raise ValueError
        nodes.append(Node(name, tuple(given[:count])))
    outputs = [(below(len(nodes)), below(len(dtypes))) for _ in range(below(MAX_OUTPUTS + 1))]
    program = Program(tuple(operands), tuple(nodes), tuple(node for node, _ in outputs))
    return program, [dtypes[dtype] for _, dtype in outputs]
