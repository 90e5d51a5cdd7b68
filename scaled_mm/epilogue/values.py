"""The values that an epilogue's function computes with: an operator or a function makes a node of a
program of them."""

from __future__ import annotations

import struct
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, cast

import torch

from .._program import CONSTANTS, MAX_NODES, OPERATIONS, TYPES, Axis, Node, Operand, Program

_HERE = str(Path(__file__).parent)


def where_written() -> str:
    """The line outside of this package that is being run: what a message points at."""
    for frame in reversed(traceback.extract_stack()):
        if not frame.filename.startswith(_HERE):
            return f" ({Path(frame.filename).name}:{frame.lineno}: {frame.line})"
    return ""


def wrong(text: str) -> TypeError:
    return TypeError(text + where_written())


@dataclass
class Trace:
    """A program while its function runs."""

    operands: list[Operand] = field(default_factory=list)
    nodes: list[Node] = field(default_factory=list)
    _known: dict[Node, int] = field(default_factory=dict)

    def value(self, operation: str, *arguments: int) -> Value:
        """What was computed already is not computed again."""
        node = Node(operation, arguments)
        if node not in self._known:
            if len(self.nodes) == MAX_NODES:
                raise ValueError(f"an epilogue must have at most {MAX_NODES} nodes")
            self._known[node] = len(self.nodes)
            self.nodes.append(node)
        return Value(self, self._known[node])

    def operand(self, name: str, axis: Axis, is_float: bool) -> Value:
        columns = 0 if axis is Axis.COL else 1
        self.operands.append(Operand(name, axis, is_float, columns))
        return self.value("operand", len(self.operands) - 1)

    def finished(self, outputs: tuple[int, ...]) -> Program:
        """The program of the nodes that outputs need.

        Raises:
            ValueError: an operand is not among them, or values of pairs of columns meet values of
                all columns.
        """
        nodes, outputs = _needed(self.nodes, outputs)
        operands = _of_pairs(self.operands, nodes, outputs)
        read = {x.arguments[0] for x in nodes if x.operation == "operand"}
        for i, each in enumerate(self.operands):
            if i not in read:
                raise ValueError(f"{each.name} must be read by the epilogue, got one that is not")
        return Program(tuple(operands), tuple(nodes), outputs)


def _takes_nodes(node: Node) -> bool:
    return node.operation not in ("operand", *CONSTANTS)


def _needed(nodes: list[Node], outputs: tuple[int, ...]) -> tuple[list[Node], tuple[int, ...]]:
    """The nodes that outputs need, in their order, under new numbers."""
    wanted = set(outputs)
    for i in reversed(range(len(nodes))):
        if i in wanted and _takes_nodes(nodes[i]):
            wanted.update(nodes[i].arguments)
    number = {old: new for new, old in enumerate(sorted(wanted))}
    kept = []
    for i in sorted(wanted):
        operation, arguments = nodes[i]
        if _takes_nodes(nodes[i]):
            arguments = tuple(number[x] for x in arguments)
        kept.append(Node(operation, arguments))
    return kept, tuple(number[x] for x in outputs)


def _of_pairs(
    operands: list[Operand], nodes: list[Node], outputs: tuple[int, ...]
) -> list[Operand]:
    """The operands, those as such that meet values of pairs of columns."""
    same = list(range(len(nodes)))  # leads to a node that has the same columns
    uniform = Program(tuple(operands), tuple(nodes), outputs).columns

    def root(x: int) -> int:
        while same[x] != x:
            x = same[x]
        return x

    whole, halves = set[int](), set[int]()
    for i, (operation, arguments) in enumerate(nodes):
        if operation in ("gate", "value"):
            halves.add(i)
            whole.update(x for x in arguments if uniform[x])
        elif operation == "acc":
            whole.add(i)
        elif _takes_nodes(nodes[i]):
            for x in arguments:
                if uniform[x]:
                    same[root(i)] = root(x)
    varied = [x for x in outputs if uniform[x]]
    for x in varied:
        same[root(x)] = root(varied[0])
    halved = {root(x) for x in halves}
    if halved & {root(x) for x in whole}:
        raise ValueError("an epilogue must not mix values of pairs of columns with those of all")
    made = list(operands)
    for i, (operation, arguments) in enumerate(nodes):
        if operation == "operand" and uniform[i] and root(i) in halved:
            made[arguments[0]] = made[arguments[0]]._replace(columns=2)
    return made


class Value:
    """int32, float32 or a truth value for every element of the output. Operators give new ones:
    `+ - *` of two of a type, `/` of floats, `-x`, `abs(x)`, and `< <= > >=`; a Python number stands
    for a constant of the other's type."""

    __array_priority__ = 1000  # a numpy scalar on the left does not take the operator
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: Trace, node: int) -> None:
        self._trace, self._node = trace, node

    @property
    def _type(self) -> str:
        operation, arguments = self._trace.nodes[self._node]
        if operation == "operand":
            return "f" if self._trace.operands[arguments[0]].is_float else "i"
        return OPERATIONS[operation][0]

    def __repr__(self) -> str:
        return f"<{TYPES[self._type]} of an epilogue>"

    def __add__(self, other: Value | float) -> Value:
        return operation("add", self, other)

    def __radd__(self, other: float) -> Value:
        return operation("add", other, self)

    def __sub__(self, other: Value | float) -> Value:
        return operation("sub", self, other)

    def __rsub__(self, other: float) -> Value:
        return operation("sub", other, self)

    def __mul__(self, other: Value | float) -> Value:
        return operation("mul", self, other)

    def __rmul__(self, other: float) -> Value:
        return operation("mul", other, self)

    def __truediv__(self, other: Value | float) -> Value:
        return operation("div", self, other)

    def __rtruediv__(self, other: float) -> Value:
        return operation("div", other, self)

    def __neg__(self) -> Value:
        return operation("neg", self)

    def __abs__(self) -> Value:
        return operation("abs", self)

    def __lt__(self, other: Value | float) -> Value:
        return operation("less", self, other)

    def __le__(self, other: Value | float) -> Value:
        return operation("at_most", self, other)

    def __gt__(self, other: Value | float) -> Value:
        return operation("less", other, self)

    def __ge__(self, other: Value | float) -> Value:
        return operation("at_most", other, self)

    def __eq__(self, other: object) -> Value:  # type: ignore[override]
        return operation("equal", self, other)  # type: ignore[arg-type]

    def __ne__(self, other: object) -> Value:  # type: ignore[override]
        raise wrong("!= is not there; where(x == y, b, a) says a where they differ")

    def __bool__(self) -> bool:
        raise wrong("a value differs from element to element: where(condition, x, y), not if")


_OF_INTS = {"add", "sub", "mul", "neg", "abs", "min", "max", "less", "at_most", "equal", "where"}
"""Operations that there are for int32 too, as name_int."""


def operation(name: str, *arguments: Value | float) -> Value:
    """The node of an operation, of the form that its arguments' type asks for.

    Raises:
        TypeError: an argument is of another type than the operation takes.
    """
    values = [x for x in arguments if isinstance(x, Value)]
    if not values:
        raise wrong(f"{name} takes values of an epilogue, got {_names(arguments)}")
    if any(x._trace is not values[0]._trace for x in values):
        raise wrong(f"{name} takes values of one epilogue, got one of another")
    chosen = arguments[1:] if name == "where" else arguments
    of_ints = name in _OF_INTS and any(isinstance(x, Value) and x._type == "i" for x in chosen)
    full = f"{name}_int" if of_ints else name
    wanted = OPERATIONS[full][1]
    nodes = []
    for letter, given in zip(wanted, arguments, strict=True):
        x = given if isinstance(given, Value) else _constant(values[0]._trace, name, letter, given)
        if x._type != letter:
            taken = ", ".join(TYPES[each] for each in wanted)
            hint = "; to_float makes float32 of int32" if "i" in (letter, x._type) else ""
            raise wrong(f"{name} takes {taken}, got {_names(arguments)}{hint}")
        nodes.append(x._node)
    return values[0]._trace.value(full, *nodes)


def _constant(trace: Trace, name: str, letter: str, x: object) -> Value:
    if letter == "f" and isinstance(x, (int, float)) and not isinstance(x, bool):
        try:
            return trace.value("number", *struct.unpack("<i", struct.pack("<f", x)))
        except (OverflowError, struct.error):
            raise wrong(f"{name} takes a number within float32, got {x}") from None
    is_int = isinstance(x, int) and not isinstance(x, bool)
    if letter == "i" and is_int and -(2**31) <= cast(int, x) < 2**31:
        return trace.value("integer", cast(int, x))
    hint = "; to_float makes float32 of int32" if letter == "i" and isinstance(x, float) else ""
    raise wrong(f"{name} takes {TYPES[letter]} here, got {x!r}{hint}")


def _names(arguments: tuple[object, ...]) -> str:
    return ", ".join(
        TYPES[x._type] if isinstance(x, Value) else type(x).__name__ for x in arguments
    )


class Pairs(NamedTuple):
    """Of columns 2 j and 2 j + 1 of B, the first ones and the second ones."""

    gate: Value
    value: Value


def fma(x: Value | float, y: Value | float, z: Value | float) -> Value:
    """x * y + z, rounded once."""
    return operation("fma", x, y, z)


def minimum(x: Value | float, y: Value | float) -> Value:
    """The lesser, of float32 or int32; a NaN stays. Of equal ones y."""
    return operation("min", x, y)


def maximum(x: Value | float, y: Value | float) -> Value:
    """The greater, of float32 or int32; a NaN stays. Of equal ones y."""
    return operation("max", x, y)


def clamp(x: Value, least: Value | float, most: Value | float) -> Value:
    """minimum(maximum(x, least), most)."""
    return minimum(maximum(x, least), most)


def where(condition: Value, x: Value | float, y: Value | float) -> Value:
    """x where the condition holds, else y; of float32 or int32."""
    return operation("where", condition, x, y)


def sqrt(x: Value) -> Value:
    """The square root, rounded once."""
    return operation("sqrt", x)


def rsqrt(x: Value) -> Value:
    """1 / sqrt(x): two operations, each rounded."""
    return 1.0 / sqrt(x)


def exp(x: Value) -> Value:
    """e^x, within 1 ulp."""
    return operation("exp", x)


def erf(x: Value) -> Value:
    """The error function, within 1 ulp."""
    return operation("erf", x)


def sigmoid(x: Value) -> Value:
    """1 / (1 + e^-x)."""
    return operation("sigmoid", x)


def tanh(x: Value) -> Value:
    """The hyperbolic tangent."""
    return operation("tanh", x)


def relu(x: Value) -> Value:
    """max(x, 0); a NaN stays."""
    return operation("relu", x)


def silu(x: Value) -> Value:
    """x / (1 + e^-x), as `scaled_mm` has it."""
    return operation("silu", x)


def gelu(x: Value) -> Value:
    """x (1 + erf(x / sqrt 2)) / 2, as `scaled_mm` has it."""
    return operation("gelu", x)


def gelu_tanh(x: Value) -> Value:
    """gelu by tanh, as `scaled_mm` has it."""
    return operation("gelu_tanh", x)


def pairs(x: Value) -> Pairs:
    """The values of neighbouring columns, [M, N/2] each: those of columns 2 j, and of 2 j + 1."""
    if x._type != "f":
        raise wrong(f"pairs takes float32, got {TYPES[x._type]}; to_float makes float32 of int32")
    return Pairs(operation("gate", x), operation("value", x))


def to_float(x: Value) -> Value:
    """int32 as float32, rounded."""
    return operation("to_float", x)


def to_int(x: Value) -> Value:
    """float32 as int32, rounded to the nearest even; beyond int32 its ends, of a NaN 0."""
    return operation("to_int", x)


def round_to(x: Value, dtype: torch.dtype) -> Value:
    """x rounded to bfloat16 or float16, and float32 again."""
    names = {torch.bfloat16: "to_bfloat16", torch.float16: "to_float16"}
    if dtype not in names:
        raise wrong(f"round_to takes torch.bfloat16 or torch.float16, got {dtype}")
    return operation(names[dtype], x)


def quantize(
    x: Value, scale: Value | float, dtype: torch.dtype, azp: Value | int | None = None
) -> Value:
    """x in units of scale, which can only be an output.

    torch.int8           clamp(rne(x / scale), -127, 127); with azp,
                         clamp(rne(x / scale) + azp, -128, 127); of a NaN 0
    torch.float8_e4m3fn  clamp(x * (1 / scale), -448, 448), rounded; a NaN stays
    """
    if dtype == torch.int8:
        if azp is None:
            return operation("to_int8", x, scale)
        return operation("to_int8_azp", x, scale, azp)
    if dtype != torch.float8_e4m3fn:
        raise wrong(f"quantize takes torch.int8 or torch.float8_e4m3fn, got {dtype}")
    if azp is not None:
        raise wrong("quantize takes azp with torch.int8 alone, got one")
    return operation("to_e4m3", x, scale)
