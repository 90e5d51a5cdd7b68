"""No result depends on what memory held before: every kernel over memory of three contents.

compute-sanitizer's initcheck looks for the same, but takes rows that TMA writes for unwritten. Here
all memory that torch may hand out for outputs, copies and scratch holds one value, then another.
"""

from __future__ import annotations

import pytest
import torch
from awq_cases import AwqCase
from cuda_support import DEVICE, GPU, ROWS, count, forced, kernels, on_device, streams_only
from test_cuda_streams import Work

import scaled_mm

pytestmark = [*GPU, streams_only]

FILLS = (0x00, 0x7F, 0xFF)  # zeros; large numbers; NaN, and -1 in integers
MIB = 2**20


def fill_free_memory(value: int) -> None:
    """torch keeps what is freed here, small pieces apart from large ones, and hands it out next."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    small = [torch.full((MIB // 2,), value, dtype=torch.uint8, device=DEVICE) for _ in range(128)]
    large = torch.full((512 * MIB,), value, dtype=torch.uint8, device=DEVICE)
    addresses = [x.data_ptr() for x in small]
    del small, large
    again = torch.empty(MIB // 2, dtype=torch.uint8, device=DEVICE)
    assert again.data_ptr() in addresses, "torch hands out other memory than was filled"
    assert int(again[0]) == value


@pytest.fixture(scope="module")
def work() -> Work:
    return Work()


@pytest.mark.parametrize("row", ROWS)
def test_products_and_quantisers(work: Work, row: str) -> None:
    for value in FILLS:
        fill_free_memory(value)
        with forced(row):
            work.assert_right(work.run(), row, hex(value))


@pytest.mark.parametrize("kernel", ["", *kernels("lowbit")])
def test_int4(kernel: str) -> None:
    for m in (1, 40, 300):
        case = AwqCase(f"old memory {m}", 1024, 520, 128, rows=(m,), bias=torch.float16)
        there = on_device(case.product())
        results = []
        for value in FILLS:
            fill_free_memory(value)
            with forced(kernel):
                results.append(scaled_mm.awq_gemm(**there).view(torch.int16))
        different = sum(int((x != results[0]).sum()) for x in results[1:])
        count(f"awq_gemm {kernel or 'chosen'}", sum(x.numel() for x in results), different)
        assert different == 0, m
