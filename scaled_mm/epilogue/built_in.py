"""The epilogues of `scaled_mm` as programs, and which of them a program is: what has a compiled
kernel then runs on it.

Two programs are the same when their canonical forms are: operands by position, not by name, and of
operations that do not care for the order of two arguments the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from .._program import CONSTANTS, Axis, Node, Operand, Program
from ..ops.int8 import scaled_mm
from ..ops.packed_weight import PackedWeight
from .values import Trace, Value, fma, operation, pairs, quantize, to_float

OPERANDS = {
    "scale_a": (Axis.COL, True),
    "scale_b": (Axis.ROW, True),
    "bias": (Axis.ROW, True),
    "azp": (Axis.COL, False),
    "azp_adj": (Axis.ROW, False),
    "azp_with_adj": (Axis.ROW, False),
    "residual": (Axis.FULL, True),
    "out_scale": (Axis.COL, True),
    "out_azp": (Axis.COL, False),
}
"""Of `scaled_mm`: how each lies over the output, and whether it is float32."""

GATED = {"relu": "reglu", "silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh"}
"""Function -> the gated linear unit by it."""
QUANTISED = {"to_int8": torch.int8, "to_int8_azp": torch.int8, "to_e4m3": torch.float8_e4m3fn}
ZERO_POINTS: dict[tuple[str, ...], str] = {
    (): "ScaledEpilogue",
    ("azp_with_adj",): "ScaledEpilogueAzp",
    ("azp", "azp_adj"): "ScaledEpilogueAzpPerToken",
}
_COMMUTATIVE = ("add", "mul", "fma", "add_int", "mul_int")  # in the first two arguments


def program_of(
    given: Sequence[str], activation: str | None = None, out_dtype: torch.dtype = torch.bfloat16
) -> Program:
    """What `scaled_mm` computes with these operands."""
    trace = Trace()
    acc = trace.value("acc")
    of = {name: trace.operand(name, *OPERANDS[name]) for name in OPERANDS if name in given}
    sums: Value = acc
    if "azp" in of:
        sums = acc - of["azp"] * of["azp_adj"]
    elif "azp_with_adj" in of:
        sums = acc - of["azp_with_adj"]
    x = of["scale_b"] * to_float(sums)
    x = fma(of["scale_a"], x, of["bias"]) if "bias" in of else of["scale_a"] * x
    if "residual" in of:
        x = x + of["residual"]
    if activation in GATED:
        x = operation(activation, x)
    elif activation is not None:
        gate, value = pairs(x)
        function = next(name for name, gated in GATED.items() if gated == activation)
        x = operation(function, gate) * value
    if "out_scale" in of:
        x = quantize(x, of["out_scale"], out_dtype, of.get("out_azp"))
    return trace.finished((x._node,))


def canonical(program: Program) -> tuple[Program, list[int]]:
    """The program in its canonical form, and which of its own operands each of that's is."""
    digests, swapped = list[bytes](), list[Node]()
    for name, arguments in program.nodes:
        if name == "operand":
            kind = repr((name, program.operands[arguments[0]][1:]))
        elif name in CONSTANTS:
            kind = repr((name, arguments))
        else:
            if name in _COMMUTATIVE:
                first, second = sorted(arguments[:2], key=digests.__getitem__)
                arguments = (first, second, *arguments[2:])
            kind = name + "".join(digests[x].hex() for x in arguments)
        swapped.append(Node(name, arguments))
        digests.append(hashlib.sha256(kind.encode()).digest())
    operands, nodes, numbers = list[int](), list[Node](), dict[int, int]()
    for output in program.outputs:
        waiting = [output]
        while waiting:
            name, arguments = swapped[waiting[-1]]
            missing = [] if name in ("operand", *CONSTANTS) else arguments
            missing = [x for x in missing if x not in numbers]
            if missing:
                waiting.append(missing[0])
                continue
            node = waiting.pop()
            if node in numbers:
                continue
            if name == "operand":
                operands.append(arguments[0])
                arguments = (len(operands) - 1,)
            elif name not in CONSTANTS:
                arguments = tuple(numbers[x] for x in arguments)
            numbers[node] = len(nodes)
            nodes.append(Node(name, arguments))
    kinds = [Operand("", *program.operands[i][1:]) for i in operands]
    outputs = tuple(numbers[x] for x in program.outputs)
    return Program(tuple(kinds), tuple(nodes), outputs), operands


@dataclass(frozen=True)
class BuiltIn:
    """The epilogue of `scaled_mm` that a program is."""

    names: tuple[str, ...]
    """Of the program's operands, as `scaled_mm` has them."""
    activation: str | None
    out_dtype: torch.dtype | None
    """Of 8 bits; None: the call's."""

    @property
    def name(self) -> str:
        """ScaledEpilogueAzpPerTokenQuantised, say."""
        azp = tuple(x for x in self.names if x.startswith("azp"))
        name = ZERO_POINTS[tuple(sorted(azp))]
        if not azp and "bias" in self.names:
            name += "Bias"
        if self.activation:
            return name + ("Activated" if self.activation in GATED else "Gated")
        if "residual" in self.names:
            return name + "Residual"
        return name + ("Quantised" if self.out_dtype else "")

    def takes(
        self, b: Tensor | PackedWeight, operands: list[Tensor], out_dtype: torch.dtype
    ) -> bool:
        """Whether `scaled_mm` does: a program takes more dtypes and shapes."""
        added = (torch.float32, self.out_dtype or out_dtype)
        for name, x in zip(self.names, operands, strict=True):
            wide = name in ("bias", "residual")
            if name in ("bias", "azp_adj", "azp_with_adj") and x.shape[-1:] != b.shape[-1:]:
                return False
            if wide and not self.out_dtype and x.dtype not in added:
                return False
            if not wide and OPERANDS[name][1] and x.dtype != torch.float32:
                return False
        return True

    def __call__(
        self, a: Tensor, b: Tensor | PackedWeight, operands: list[Tensor], out_dtype: torch.dtype
    ) -> Tensor:
        options: dict[str, Any] = dict(zip(self.names, operands, strict=True))
        options["out_dtype"] = self.out_dtype or out_dtype
        return scaled_mm(a, b, activation=self.activation, **options)


def recognised(program: Program) -> BuiltIn | None:
    """The epilogue of `scaled_mm` that has the program's bits, and a compiled kernel."""
    if len(program.outputs) != 1:
        return None
    operations = {x.operation for x in program.nodes}
    last = program.nodes[program.outputs[0]].operation
    out_dtype = QUANTISED.get(last)
    activation = next((name for name in GATED if name in operations), None)
    if activation and "gate" in operations:
        activation = GATED[activation]
    ending = ["residual"] if any(x.axis is Axis.FULL for x in program.operands) else []
    if ending and (activation or out_dtype):
        return None
    if out_dtype:
        ending += ["out_scale", "out_azp"] if last == "to_int8_azp" else ["out_scale"]
    own, order = canonical(program)
    for zero_points, bias in product(ZERO_POINTS, ([], ["bias"])):
        given = ["scale_a", "scale_b", *bias, *zero_points, *ending]
        if len(given) != len(program.operands):
            continue
        known = program_of(given, activation, out_dtype or torch.bfloat16)
        form, places = canonical(known)
        if form == own:
            named = zip(order, (known.operands[i].name for i in places), strict=True)
            names = tuple(name for _, name in sorted(named))
            return BuiltIn(names, activation, out_dtype)
    return None
