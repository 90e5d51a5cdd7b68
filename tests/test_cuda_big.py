"""Products whose operands or output have more than 2^31 elements, or more than 65535 tiles along an
axis, on the GPU: every element, on every row of the tuning table."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from cases import BIG_CASES
from cuda_support import (
    BLOCK,
    DEVICE,
    GPU,
    ON_CPU,
    ROWS,
    blocks,
    count,
    exact_product,
    forced,
    how_many_differ,
    layer_operands,
    part,
    replay,
)
from helpers import assert_bits
from operands import Case, Operands
from torch import Tensor

import scaled_mm
from scaled_mm import reference

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]

CASES = {
    **BIG_CASES,
    "big-b": Case("big-b", 8, 70_000, 32_768),
    "big-out-odd": Case("big-out-odd", 32_771, 65_601, 33),
    "big-grid-m-odd": Case("big-grid-m-odd", 65_537 * 128 + 1, 3, 17),
}
if ON_CPU:
    CASES = {k: replace(c, m=-(-c.m // 256), n=-(-c.n // 256)) for k, c in CASES.items()}


@pytest.fixture(autouse=True)
def room() -> Any:
    """The memory of the test before goes back first."""
    yield
    if not ON_CPU:
        torch.cuda.empty_cache()


def assert_sample(operands: Operands, out: Tensor) -> None:
    """The reference on rows and columns around both ends and around the 2^31st element."""
    m, n = out.shape
    k = operands["a"].shape[1]
    at = [0, m // 2, m - 1, 2**31 // k - 1, 2**31 // k, 2**31 // n, 2**31 // n + 1, 65_535 * 128]
    rows = sorted({i for i in at if i < m})
    at = [0, 1, n // 2, n - 2, n - 1, 2**31 // k, 65_535 * 128, 65_535 * 128 - 1]
    columns = sorted({i for i in at if 0 <= i < n})
    index = [torch.tensor(x, device=out.device) for x in (rows, columns)]
    cut = part(operands, *index)
    assert_bits(out[index[0]][:, index[1]].cpu(), reference.scaled_mm(**cut))


def assert_same(what: str, got: Tensor, expected: Tensor, *context: object) -> None:
    assert (got.shape, got.dtype) == (expected.shape, expected.dtype), context
    got, expected = got.view(-1), expected.view(-1)
    different = 0
    for i in range(0, got.numel(), BLOCK):
        both = got[i : i + BLOCK], expected[i : i + BLOCK]
        different += sum(how_many_differ(*([x] for x in both)))
    count(what, got.numel(), different)
    assert different == 0, (what, different, *context)


def assert_big(operands: Operands, calls: dict[str, Any], expected: Tensor) -> None:
    for row in ROWS:
        for name, call in calls.items():
            with forced(row):
                assert_same(row or "chosen", call(), expected, name, expected.shape)


@pytest.mark.parametrize(
    ("packed", "end"), [(False, ""), (True, ""), (False, "residual"), (True, "reglu")]
)
@pytest.mark.parametrize("name", CASES)
def test_scaled_mm(name: str, packed: bool, end: str) -> None:
    case = replace(CASES[name], activation="reglu" if end == "reglu" else None).paired()
    operands = layer_operands(case.m, case.n, case.k, case.out_dtype, end=end)
    width = case.n // 2 if case.activation else case.n
    expected = torch.empty(case.m, width, dtype=case.out_dtype, device=DEVICE)
    for rows, columns in blocks(case.m, width, case.k):
        cut = part(operands, rows, columns)
        expected[rows, columns] = replay(exact_product(cut["a"], cut["b"]), cut)
    assert_sample(operands, expected)
    if packed:
        operands["b"] = scaled_mm.pack_weight_int8(operands["b"])
    assert_big(operands, {"scaled_mm": lambda: scaled_mm.scaled_mm(**operands)}, expected)


@pytest.mark.parametrize("name", CASES)
def test_int8_mm(name: str) -> None:
    case = CASES[name]
    operands = layer_operands(case.m, case.n, case.k, case.out_dtype)
    expected = torch.empty(case.m, case.n, dtype=torch.int32, device=DEVICE)
    for rows, columns in blocks(case.m, case.n, case.k):
        cut = part(operands, rows, columns)
        expected[rows, columns] = exact_product(cut["a"], cut["b"])
    a, b = operands["a"], operands["b"]
    assert_big(operands, {"int8_mm": lambda: scaled_mm.int8_mm(a, b)}, expected)


# Operands that are copied before the product: (m, n, k), then what is made of a and of b.
RELAID: dict[str, tuple[tuple[int, int, int], Any, Any]] = {
    "a column-major": ((70_000, 16, 32_768), lambda a: a.t().contiguous().t(), lambda b: b),
    "b row-major": ((16, 70_000, 32_768), lambda a: a, lambda b: b.contiguous()),
    "a odd": ((70_001, 16, 30_679), lambda a: a, lambda b: b),
    "b odd": ((16, 70_001, 30_679), lambda a: a, lambda b: b),
    "a far apart": ((4, 16, 64), lambda a: far_apart(a), lambda b: b),
    "a of 20 rows far apart": ((20, 16, 128), lambda a: far_apart(a, bits=29), lambda b: b),
    "a far apart and misaligned": ((4, 16, 64), lambda a: far_apart(a, 1), lambda b: b),
    "b far apart": ((4, 16, 64), lambda a: a, lambda b: far_apart(b.t()).t()),
    "b far apart, row-major": ((4, 16, 64), lambda a: a, lambda b: far_apart(b[:4])),
}


def far_apart(x: Tensor, more: int = 0, bits: int = 30) -> Tensor:
    """Rows of which the last begins after 2^31 elements; of 20 rows after 2^32, as does the last of
    those that one thread loads."""
    stride = (2**10 if ON_CPU else 2**bits) + more
    buffer = torch.zeros(stride * len(x), dtype=torch.int8, device=x.device)
    return buffer.as_strided(x.shape, (stride, 1)).copy_(x)


@pytest.mark.parametrize("name", RELAID)
def test_laid_out_anew(name: str) -> None:
    (m, n, k), of_a, of_b = RELAID[name]
    if ON_CPU:
        m, n, k = min(m, 300), min(n, 300), min(k, 300)
    if "far apart" in name:
        n = min(n, 4) if name == "b far apart" else n
        k = 4 if name.endswith("row-major") else k
    operands = layer_operands(m, n, k, torch.float32)
    a, b = operands["a"], operands["b"]
    expected = torch.empty(m, n, dtype=torch.int32, device=DEVICE)
    for rows, columns in blocks(m, n, k):
        expected[rows, columns] = exact_product(a[rows], b[:, columns])
    a, b = of_a(a), of_b(b)
    calls = {
        "plain": lambda: scaled_mm.int8_mm(a, b),
        "packed": lambda: scaled_mm.int8_mm(a, scaled_mm.pack_weight_int8(b)),
    }
    assert_big(operands, calls, expected)
    sums = scaled_mm.azp_adj(b)
    expected = torch.cat([b[:, i : i + 1000].sum(0, dtype=torch.int32) for i in range(0, n, 1000)])
    assert_same("azp_adj", sums, expected[None], name)


@pytest.mark.skipif(ON_CPU, reason="the CPU has no such limits")
def test_rows_too_long_for_32_bits() -> None:
    """Refused before anything is launched: bytes of a token's row, columns of a producer's."""
    k = 2**30
    x = torch.empty(1, k, dtype=torch.float16, device=DEVICE)
    qweight = torch.empty(k, 1, dtype=torch.int32, device=DEVICE)
    scales = torch.empty(1, 8, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^x must have fewer than 2\^31 bytes in a row on CUDA"):
        scaled_mm.awq_gemm(x, qweight, scales, qweight[:1])
    del x, qweight
    row = torch.empty(1, 2**31 - 2**15 + 1, dtype=torch.float16, device=DEVICE)
    with pytest.raises(ValueError, match=r"^x must have at most 2147450880 columns on CUDA"):
        scaled_mm.relu_quantize_int8(row)
