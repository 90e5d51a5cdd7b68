"""No result depends on what memory held before: every kernel over memory of three contents.

compute-sanitizer's initcheck looks for the same, but takes rows that TMA writes for unwritten. Here
all memory that torch may hand out for outputs, copies and scratch holds one value, then another.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from awq_cases import AwqCase
from cuda_mixed_cases import MixedCase
from cuda_support import DEVICE, GPU, ROWS, count, forced, kernels, on_device, streams_only
from test_cuda_streams import Work
from torch import Tensor

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


# No whole number of any kernel's rows. torch keeps what has less than 1 MiB apart from the rest: W
# has more, the packed weight less.
K, N = 1533, 512


def awq_weight() -> Callable[[], Tensor]:
    operands = on_device(AwqCase("behind", K, N, K).weight())
    return lambda: scaled_mm.awq_dequantize(**operands)


def mixed_weight(bits: int, group: int) -> Callable[[], Tensor]:
    weight = MixedCase(1, N, K, group, bits).weight()
    return weight.dequantize


DEQUANTIZED: dict[str, Callable[[], Callable[[], Tensor]]] = {
    "AWQ": awq_weight,
    **{
        f"{bits} bits in {form}": partial(mixed_weight, bits, group)
        for bits in (4, 8)
        for form, group in {"units": K, "rows": 21}.items()
    },
}


@pytest.mark.parametrize("weight", DEQUANTIZED)
def test_nothing_behind_a_dequantised_weight(weight: str) -> None:
    """It is split off the front of free memory that torch keeps; the rest stays as it is. In a pool
    of its own, which has no other free memory."""
    dequantize = DEQUANTIZED[weight]()
    value, size = 0x7F, 64 * MIB
    with torch.cuda.use_mem_pool(torch.cuda.MemPool()):
        free = torch.full((size,), value, dtype=torch.uint8, device=DEVICE)
        address = free.data_ptr()
        del free
        w = dequantize()
        behind = torch.empty(size - w.nbytes, dtype=torch.uint8, device=DEVICE)
    assert (w.data_ptr(), behind.data_ptr()) == (address, address + w.nbytes)
    untouched = bool((behind == value).all())
    del w, behind  # before their pool: a failure would keep them
    assert untouched
