"""What the nodes of an epilogue's program mean: `evaluate` is the definition."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._program import Axis, Program
from . import functions
from .arithmetic import FORMATS, Array, fma32, round_to
from .arrays import matrix_product, to_numpy, to_tensor
from .float_mode import ieee
from .int8 import store

F32 = np.float32


def _to_int(x: Array) -> Array:
    inside = np.clip(np.rint(x.astype(np.float64)), -(2.0**31), 2.0**31 - 1)
    return np.where(np.isnan(x), 0, inside).astype(np.int32)


def _through(dtype: torch.dtype) -> Callable[[Array], Array]:
    return lambda x: round_to(x.astype(np.float64), FORMATS[dtype]).astype(F32)


def _where(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


MEANING: dict[str, Callable[..., Array]] = {
    "add_int": lambda x, y: x + y,
    "sub_int": lambda x, y: x - y,
    "mul_int": lambda x, y: x * y,
    "neg_int": lambda x: -x,
    "abs_int": np.abs,
    "min_int": np.minimum,
    "max_int": np.maximum,
    "less_int": lambda x, y: x < y,
    "at_most_int": lambda x, y: x <= y,
    "equal_int": lambda x, y: x == y,
    "where_int": _where,
    "to_float": lambda x: x.astype(F32),
    "to_int": _to_int,
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / y,
    "fma": lambda x, y, z: fma32(*np.broadcast_arrays(x, y, z)),
    "neg": lambda x: -x,
    "abs": np.abs,
    "min": lambda x, y: _where((x < y) | np.isnan(x), x, y),
    "max": lambda x, y: _where((x > y) | np.isnan(x), x, y),
    "sqrt": np.sqrt,
    "less": lambda x, y: x < y,
    "at_most": lambda x, y: x <= y,
    "equal": lambda x, y: x == y,
    "where": _where,
    **functions.ACTIVATIONS,
    "exp": functions.exp,
    "erf": functions.erf,
    "sigmoid": functions.sigmoid,
    "tanh": functions.tanh,
    "to_bfloat16": _through(torch.bfloat16),
    "to_float16": _through(torch.float16),
    "gate": lambda x: x if x.shape[1] == 1 else x[:, 0::2],  # N is even
    "value": lambda x: x if x.shape[1] == 1 else x[:, 1::2],
    "to_int8": lambda x, scale: store(x, torch.int8, scale, None),
    "to_int8_azp": lambda x, scale, azp: store(x, torch.int8, scale, azp),
    "to_e4m3": lambda x, scale: store(x, torch.float8_e4m3fn, scale, None),
}
"""Of each operation with arguments. int32 wraps; float32 is rounded once, to the nearest even."""


def _operand(x: Tensor, axis: Axis, rows: int) -> Array:
    shape = {Axis.ROW: (1, -1), Axis.COL: (-1, 1), Axis.FULL: (rows, x.shape[-1] if x.ndim else 1)}
    return to_numpy(x).reshape(shape[axis]).astype(F32 if x.is_floating_point() else np.int32)


@ieee()
def epilogue_mm(
    a: Tensor,
    b: Tensor,
    operands: Sequence[Tensor],
    program: Program,
    dtypes: Sequence[torch.dtype],
) -> list[Tensor]:
    """The outputs of `program` over A B, each as its dtype holds it."""
    acc = matrix_product(a, b).astype(np.int32)
    m, n = acc.shape
    values: list[Any] = []
    with np.errstate(all="ignore"):
        for operation, arguments in program.nodes:
            if operation == "acc":
                values.append(acc)
            elif operation == "operand":
                axis = program.operands[arguments[0]].axis
                values.append(_operand(operands[arguments[0]], axis, m))
            elif operation == "integer":
                values.append(np.full((1, 1), arguments[0], np.int32))
            elif operation == "number":
                number = struct.unpack("<f", struct.pack("<i", arguments[0]))[0]
                values.append(np.full((1, 1), number, F32))
            else:
                values.append(MEANING[operation](*(values[x] for x in arguments)))
        columns = program.out_columns
        shape = (*a.shape[:-1], n // columns)
        made = []
        for node, dtype in zip(program.outputs, dtypes, strict=True):
            d = np.broadcast_to(values[node], (m, n // columns)).copy()
            wide = round_to(d.astype(np.float64), FORMATS[dtype]) if dtype in FORMATS else d
            made.append(to_tensor(wide, shape, dtype))
    return made
