"""A program as CUDA source for one kernel: a type as csrc/cuda/epilogue/compiled.cuh wants it.

Nothing but the typed program is written: operations by their names, numbers by their bits.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from .._program import DTYPES, Axis, Program

TYPES = {"i": "int32_t", "f": "float", "b": "bool", "q": "int32_t", "e": "int32_t"}
_LIGHT_SUMS, _SUMS = 256, 128
"""Sums that a thread can have beside a program that is light, and beside any."""
_PLACES = {dtype: place for place, dtype in enumerate(DTYPES)}


class NotCompiled(Exception):
    """There is no compiled form of a program for a kernel: the reason."""


@dataclass(frozen=True)
class Line:
    """A kernel of a table."""

    arch: str
    name: str
    streams: bool
    sums: int
    """Of a thread, at the end; of a kernel that streams it does not matter."""


@cache
def lines(csrc: Path, arch: str) -> dict[str, Line]:
    """The kernels of an arch that programs can be compiled for."""
    table = csrc / "cuda" / arch / "int8.table"
    if not (csrc / "cuda" / arch / "compiled.cuh").is_file():
        return {}
    found = {}
    for name, kind, numbers in re.findall(
        r"^KERNEL\((\w+),\s*(\w+),(.*)\)", table.read_text(), re.M
    ):
        words = [word.strip() for word in numbers.split(",")]
        threads = 128 if "pingpong" in words else 256
        sums = int(words[0]) * int(words[1]) // threads
        found[name] = Line(arch, name, kind == "Stream", sums)
    return found


def source(program: Program, dtypes: Sequence[torch.dtype], line: Line, light: bool) -> str:
    """The source of a library for the program with outputs of those dtypes.

    Args:
        light: whether the program is, as the library says (csrc/problems/program.h).

    Raises:
        NotCompiled: the kernel does not take the program.
    """
    if not line.streams and len(dtypes) > 1:
        raise NotCompiled(f"{line.name} writes one output, the program has {len(dtypes)}")
    most = _LIGHT_SUMS if light else _SUMS
    if not line.streams and line.sums > most:
        raise NotCompiled(f"{line.name} has no registers for the program beside its sums")
    name = f"{line.arch}::int8::{line.name}"
    return f"""\
// Written by scaled_mm: a program for {line.arch}/{line.name}.
{"#define SCALED_MM_STREAMS" if line.streams else ""}
#include "cuda/{line.arch}/compiled.cuh"

namespace {{
{ending(program, dtypes, light)}
}}  // namespace

extern "C" __attribute__((visibility("default"))) int32_t scaled_mm_launch(
    const CompiledCall& call) {{
  return {line.arch}::int8::launch<{name}, Ending>(call);
}}
"""


def ending(program: Program, dtypes: Sequence[torch.dtype], light: bool) -> str:
    """The type `Ending`, the program's, for csrc/cuda/epilogue/compiled.cuh."""
    writer = _Writer(program)
    body = "\n".join(f"    {text}" for text in writer.body())
    held = ", ".join(str(_PLACES[dtype]) for dtype in dtypes)
    return f"""\
using namespace scaled_mm::cuda;
using scaled_mm::epilogue::Axis;
{writer.leaves()}
struct Ending {{
  static constexpr int kColumns = {program.out_columns}, kOperands = {len(program.operands)};
  static constexpr int kDtypes[] = {{{held}}};
  static constexpr bool kIsLight = {"true" if light else "false"};
{writer.lists()}
  template <class Get>
  static __device__ void at(const int32_t* acc, const Get& get, uint32_t* out) {{
{body}
  }}
}};"""


class _Writer:
    """The parts of the source. In a program of pairs of columns, a value of all columns is written
    for each of the pair that is wanted."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._pairs = program.out_columns == 2
        self._wanted = self._reached()
        read = {program.nodes[i].arguments[0] for i, _ in self._wanted if self._reads(i)}
        self._read = sorted(read)
        self._staged = [i for i in self._read if self._is_staged(i)]
        self._direct = [i for i in self._read if i not in self._staged]

    def _reads(self, node: int) -> bool:
        return self._program.nodes[node].operation == "operand"

    def _is_staged(self, operand: int) -> bool:
        _, axis, _, columns = self._program.operands[operand]
        return axis is Axis.COL or (axis is Axis.ROW and columns == 1)

    def _value(self, node: int, column: int) -> tuple[int, int]:
        """A node's value, of the first or second column if it has one of each."""
        return node, column if self._pairs and self._program.columns[node] == 1 else 0

    def _arguments(self, value: tuple[int, int]) -> Iterator[tuple[int, int]]:
        node, column = value
        operation, arguments = self._program.nodes[node]
        if operation in ("acc", "operand", "integer", "number"):
            return
        if operation in ("gate", "value"):
            column = int(operation == "value")
        for x in arguments:
            yield self._value(x, column)

    def _reached(self) -> list[tuple[int, int]]:
        found = {self._value(node, 0) for node in self._program.outputs}
        rest = list(found)
        while rest:
            for x in self._arguments(rest.pop()):
                if x not in found:
                    found.add(x)
                    rest.append(x)
        return sorted(found)

    def leaves(self) -> str:
        made = []
        for i in self._read:
            _, axis, is_float, columns = self._program.operands[i]
            order = (self._staged if i in self._staged else self._direct).index(i)
            kind = f"{i}, {'float' if is_float else 'int32_t'}, Axis::{axis.name.title()}"
            made.append(f"using L{i} = CompiledLeaf<{kind}, {columns}, {order}>;\n")
        return "".join(made)

    def lists(self) -> str:
        named = {"Staged": self._staged, "Direct": self._direct}
        return "\n".join(
            f"  using {name} = Leaves<{', '.join(f'L{i}' for i in places)}>;"
            for name, places in named.items()
        )

    def body(self) -> Iterator[str]:
        for value in self._wanted:
            letter = TYPES[self._program.types[value[0]]]
            yield f"const {letter} {_name(value)} = {self._term(value)};"
        for place, node in enumerate(self._program.outputs):
            name = _name(self._value(node, 0))
            is_float = self._program.types[node] == "f"
            bits = f"__float_as_uint({name})" if is_float else f"static_cast<uint32_t>({name})"
            yield f"out[{place}] = {bits};"

    def _term(self, value: tuple[int, int]) -> str:
        node, column = value
        operation, arguments = self._program.nodes[node]
        if operation == "acc":
            return f"acc[{column}]"
        if operation == "operand":
            return f"get(L{arguments[0]}{{}}, {column})"
        if operation in ("integer", "number"):
            bits = f"{arguments[0] & 0xFFFFFFFF:#010x}u"
            return (
                f"__uint_as_float({bits})"
                if operation == "number"
                else f"compiled::wrapped({bits})"
            )
        given = [_name(x) for x in self._arguments(value)]
        if operation in ("gate", "value"):
            return given[0]
        return f"compiled::{operation}({', '.join(given)})"


def _name(value: tuple[int, int]) -> str:
    return f"v{value[0]}_{value[1]}"
