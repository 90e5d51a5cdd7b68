"""Shapes of real layers on the GPU, every element: the product through float64 on the same device,
the epilogue replayed there, and the reference on a sample of rows and columns."""

import itertools

import pytest
import torch
from cuda_support import (
    ENDS,
    GPU,
    ON_CPU,
    ROWS,
    assert_outputs,
    blocks,
    columns_of_b,
    exact_product,
    forced,
    layer_operands,
    part,
    products,
    replay,
)
from helpers import assert_bits
from operands import OUT_DTYPES, Operands
from torch import Tensor

import scaled_mm
from scaled_mm import reference

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

SMALLER = 32 if ON_CPU else 1
LAYERS = [(4096, 4096), (4096, 14_336), (28_672, 8192)]  # (N, K)
HEIGHTS = (1, 5, 16, 17, 33, 64, 65, 128, 129, 257, 1024, 4096)


def expected_outputs(operands: Operands) -> dict[str, Tensor]:
    (m, k), n = operands["a"].shape, operands["b"].shape[1]
    width = n // 2 if "activation" in operands else n
    acc = torch.empty(m, n, dtype=torch.int32, device=operands["a"].device)
    out = torch.empty(m, width, dtype=operands["out_dtype"], device=acc.device)
    for rows, columns in blocks(m, width, k):
        cut = part(operands, rows, columns)
        product = exact_product(cut["a"], cut["b"])
        acc[rows, columns_of_b(operands, columns)] = product
        out[rows, columns] = replay(product, cut)
    both = {"scaled_mm": out, "int8_mm": acc}
    return both | {f"{name} packed": x for name, x in both.items()}


def assert_sample(operands: Operands, out: Tensor) -> None:
    """The reference on four rows and 64 columns, the corners among them."""
    m, n = out.shape
    rows = sorted({0, m // 3, m - 2, m - 1} & set(range(m)))
    columns = torch.linspace(0, n - 1, 64).round().long().unique().to(out.device)
    cut = part(operands, torch.tensor(rows, device=out.device), columns)
    assert_bits(out[rows][:, columns].cpu(), reference.scaled_mm(**cut))


@pytest.mark.parametrize("m", HEIGHTS)
@pytest.mark.parametrize(("n", "k"), LAYERS)
@pytest.mark.parametrize("end", ENDS)
def test_layer(m: int, n: int, k: int, end: str) -> None:
    m, n, k = -(-m // SMALLER), n // SMALLER, k // SMALLER
    dtype = dict(zip(HEIGHTS, itertools.cycle(OUT_DTYPES), strict=False)).get(m, torch.bfloat16)
    operands = layer_operands(m, n, k, dtype, seed=m, end=end)
    weight = scaled_mm.pack_weight_int8(operands["b"])
    expected = expected_outputs(operands)
    assert_sample(operands, expected["scaled_mm"])
    for row in ROWS:
        with forced(row):
            assert_outputs(row or "chosen", products(operands, weight), expected, (m, n, k))


ODD = [(1000, 4099, 4097), (515, 8200, 5000), (333, 11_008, 4095), (4095, 2050, 1111)]


@pytest.mark.parametrize(("m", "n", "k"), ODD)
def test_layer_of_odd_size(m: int, n: int, k: int) -> None:
    """Leading dimensions that TMA refuses: the operands are laid out anew, large as they are."""
    m, n, k = m // SMALLER, n // SMALLER, k // SMALLER
    operands = layer_operands(m, n, k, torch.float16)
    expected = expected_outputs(operands)
    row_major = {**operands, "b": operands["b"].contiguous()}
    column_major = {**operands, "a": operands["a"].t().contiguous().t()}
    for row, layout in itertools.product(ROWS, (operands, row_major, column_major)):
        with forced(row):
            assert_outputs(row or "chosen", products(layout, None), expected, (m, n, k))
