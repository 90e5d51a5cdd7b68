"""Kernels launched before the one ahead has ended (csrc/cuda/common/launch.cuh) wait for what it
makes. One that does not finds what the memory held before: the values of another turn."""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from awq_cases import AwqCase
from cuda_mixed_cases import MixedCase, arms
from cuda_support import (
    DEVICE,
    GPU,
    ROWS,
    count,
    forced,
    how_many_differ,
    kernels,
    on_device,
    streams_only,
)
from test_cuda_streams import sleep
from torch import Tensor

import scaled_mm

pytestmark = [*GPU, streams_only]

# The first product of a turn has few tiles and much to sum: the second starts beside it.
TURNS, M, K, MIDDLE, N = 24, 16, 8192, 256, 512


def int8(*shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(shape[-1])
    return torch.randint(-128, 128, shape, dtype=torch.int8, generator=generator)


def assert_turns(what: str, turn: Callable[[Tensor], Tensor], xs: Tensor, expected: Tensor) -> None:
    """Turns that were queued while the device slept; `expected`: of all, on the device."""
    turn(xs[0])  # loads the kernels
    torch.cuda.synchronize()
    sleep(5)
    got = [turn(x) for x in xs]
    torch.cuda.synchronize()
    different = how_many_differ(got, expected)
    count(what, expected.numel(), sum(different))
    assert not any(different), (what, different)


@pytest.fixture(scope="module")
def tokens() -> Tensor:
    return int8(TURNS, M, K)


@pytest.mark.parametrize("row", ROWS)
def test_products(tokens: Tensor, row: str) -> None:
    """The second reads the first's D, and the next turn's first writes it again."""
    b, c = int8(MIDDLE, K).t(), int8(N, MIDDLE).t()
    scale, one = torch.full((1,), 1e-4), torch.ones(1)

    def turn(a: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        b, c, scale, one = operands
        y = scaled_mm.scaled_mm(a, b, scale, scale.sqrt(), out_dtype=torch.int8, out_scale=one)
        return scaled_mm.int8_mm(y, c)

    here = (b, c, scale, one)
    expected = torch.stack([turn(a, here) for a in tokens]).to(DEVICE)
    there = tuple(x.to(DEVICE) for x in here)
    with forced(row):
        assert_turns(row or "chosen", partial(turn, operands=there), tokens.to(DEVICE), expected)


@pytest.mark.parametrize("row", ROWS)
def test_a_quantiser_and_a_product(tokens: Tensor, row: str) -> None:
    x, b, scale = tokens.bfloat16(), int8(MIDDLE, K).t(), torch.full((1,), 1e-3)

    def turn(x: Tensor, operands: tuple[Tensor, ...]) -> Tensor:
        b, scale = operands
        q, scale_a, azp = scaled_mm.quantize_int8(x, symmetric=False)
        return scaled_mm.scaled_mm(q, b, scale_a, scale, azp=azp, azp_adj=scaled_mm.azp_adj(b))

    expected = torch.stack([turn(y, (b, scale)) for y in x]).to(DEVICE)
    there = (b.to(DEVICE), scale.to(DEVICE))
    with forced(row):
        assert_turns(row or "chosen", partial(turn, operands=there), x.to(DEVICE), expected)


def exact_product(form: str | int, k: int, n: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A product with a weight of AWQ, or of so many bits, and the weight. Of small integers it is
    exact: the sums are, in whatever order."""
    if form == "AWQ":
        given = on_device(AwqCase(f"chain {k}", k, n, 128, torch.bfloat16).weight())
        given["scales"].fill_(1 / 8)
        return lambda x: scaled_mm.awq_gemm(x, **given), scaled_mm.awq_dequantize(**given)
    weight = MixedCase(1, n, k, 128, int(form), exact=True).weight()
    return partial(scaled_mm.mixed_mm, w=weight), weight.dequantize()


LOWBIT = [(bits, kernel) for bits in (4, 8) for kernel in arms(bits)]
LOWBIT += [("AWQ", kernel) for kernel in kernels("lowbit") if "/stream" in kernel]


@pytest.mark.parametrize(("form", "kernel"), LOWBIT)
def test_products_of_few_bits(form: str | int, kernel: str) -> None:
    """In slices of K whose sums a kernel behind adds up, and a second product behind that one."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    xs = torch.randint(-2, 3, (TURNS, M, K), device=DEVICE, generator=generator).bfloat16()
    first, weight = exact_product(form, K, MIDDLE)
    second, _ = exact_product(form, MIDDLE, N)
    between = (xs.double() @ weight.double()).bfloat16()
    with forced(kernel):
        expected = []
        for y in between:
            expected.append(second(y))
            torch.cuda.synchronize()
        what = f"chain {kernel or form}"
        assert_turns(what, first, xs, between)
        assert_turns(what, lambda x: second(first(x)), xs, torch.stack(expected))
