"""The op of products whose epilogue is a program (`scaled_mm.epilogue`)."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _library
from .._arguments import called
from .._program import MAX_OPERANDS, decoded
from .packed_weight import PackedWeight, factor_arguments
from .shapes import must, must_share_device, product_sizes

INTERPRETED = (
    "on CUDA an epilogue of one's own is interpreted: the sums go to memory, and one more kernel "
    "reads them (print(epilogue.explain(m, n, k)) says how many bytes)"
)

OPERANDS = [f"operands[{i}]" for i in range(MAX_OPERANDS)]

_epilogue_mm = torch.ops.scaled_mm.epilogue_mm.default


def epilogue_mm(
    a: Tensor, b: Tensor | PackedWeight, operands: list[Tensor], program: list[int]
) -> list[Tensor]:
    """The outputs of a program in its form as integers (csrc/problems/program.h) over A B."""
    weight, packed = factor_arguments(b)
    given = {"a": a, "b": weight, **dict(zip(OPERANDS, operands, strict=False))}
    made: list[Tensor] = called(_epilogue_mm, (a, weight, operands, program), given, {}, packed)
    if a.is_cuda and not torch.compiler.is_compiling() and _library.jit_mode() == "off":
        note_interpreted()
    return made


@functools.cache
def note_interpreted() -> None:
    """Once in a process."""
    warnings.warn(INTERPRETED, stacklevel=4)


@torch.library.register_fake("scaled_mm::epilogue_mm")
def _(
    a: Tensor,
    b: Tensor,
    operands: Sequence[Tensor],
    program: Sequence[int],
    *,
    b_shape: Sequence[int] | None = None,
    b_settled: bool = False,
) -> list[Tensor]:
    *rows, n = product_sizes(a, b, b_shape)
    for i, x in enumerate(operands):
        must_share_device("a", a, **{f"operands[{i}]": x})
    read, dtypes = decoded(list(program))
    columns = read.out_columns
    must("b", n % columns == 0, "have an even number of columns for pairs", lambda: f"N={n}")
    return [a.new_empty([*rows, n // columns], dtype=dtype) for dtype in dtypes]
