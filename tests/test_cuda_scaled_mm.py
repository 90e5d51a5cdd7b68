"""scaled_mm and int8_mm on the GPU: the tables of cases.py, every row of the tuning table, a plain
and a packed weight, poisoned outputs, operands that stay as they were. Tolerance zero, against the
reference and against the CPU backend."""

import numpy as np
import pytest
import torch
from cases import CASES, random_case
from cuda_support import DEVICE, GPU, ON_CPU, assert_products, fma, random_large_case, replay
from helpers import assert_bits
from test_epilogues import int8, operands
from test_scaled_epilogue import SERVED as SUMS_END_BY
from test_scaled_mm import BLOCKS

import scaled_mm
from scaled_mm import reference
from scaled_mm.parallel.sums import scaled_epilogue

pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]


def test_outputs_are_poisoned() -> None:
    """What an op does not write shows."""
    assert torch.empty(1000, device=DEVICE).isnan().all()
    ints = torch.empty(1000, dtype=torch.int32, device=DEVICE)
    assert (ints == torch.iinfo(torch.int32).max).all()


@pytest.mark.parametrize("name", CASES)
def test_named(name: str) -> None:
    assert_products(CASES[name], CASES[name].build(), r1=True)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks(name: str) -> None:
    for out_dtype in (torch.bfloat16, torch.float32):
        assert_products(BLOCKS[name], {**BLOCKS[name].build(), "out_dtype": out_dtype}, r1=True)


@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_epilogue_by_itself(out_dtype: torch.dtype) -> None:
    """What layers cut over ranks end their sums by."""
    for names in SUMS_END_BY:
        given = {name: x.to(DEVICE) for name, x in operands(names).items()}
        a, b = int8(13, 37), int8(70, 37).t()
        acc = scaled_mm.int8_mm(a, b).to(DEVICE)
        got = scaled_epilogue(acc, **given, out_dtype=out_dtype)
        expected = reference.scaled_mm(a, b, **operands(names), out_dtype=out_dtype)
        assert_bits(got.cpu(), expected, names)


@pytest.mark.parametrize("m", [1, 2, 15, 16, 17, 31, 33, 64, 65, 97])
def test_the_output_is_on_the_device_of_the_operands(m: int) -> None:
    a = torch.ones(m, 64, dtype=torch.int8, device=DEVICE)
    weight = scaled_mm.pack_weight_int8(a.t())
    for out in (scaled_mm.int8_mm(a, a.t()), scaled_mm.int8_mm(a, weight), weight.data):
        assert out.device == a.device
        assert not out.requires_grad
    assert (weight.k, weight.n) == (64, m)


def test_the_replay_on_the_device_is_the_reference() -> None:
    """Products too large for the reference are compared with `replay`, which stands on this."""
    rng, seen = np.random.default_rng(7), 0
    while seen < 500:
        case = random_case(rng, endings=False)
        operands = case.build(rng=rng)
        if any(x.dim() != 2 for x in operands.values() if isinstance(x, torch.Tensor)):
            continue
        there = {k: x.to(DEVICE) if torch.is_tensor(x) else x for k, x in operands.items()}
        acc = reference.int8_mm(operands["a"], operands["b"]).to(DEVICE)
        assert_bits(replay(acc, there).cpu(), reference.scaled_mm(**operands), case)
        seen += 1


def test_the_replayed_fma_rounds_once() -> None:
    """x y + z half an ulp from a tie by less than float64 holds of the sum: RN64 first is wrong."""
    rng = np.random.default_rng(0)
    x = np.float32(rng.uniform(1, 2, 20_000))
    off = np.float64(x) * np.float64(np.float32(1 / x)) - 1
    x = x[(off != 0) & (np.abs(off) < 2.0**-30)]
    y, z = np.float32(1 / x) * np.float32(2.0**-24), np.ones(len(x), np.float32)
    above = np.float64(x) * np.float64(y) > 2.0**-24  # past the tie, which goes to even: 1
    expected = np.where(above, np.float32(1 + 2.0**-23), np.float32(1))
    got = fma(*(torch.from_numpy(v).to(DEVICE) for v in (x, y, z)))
    assert len(x) > 100
    assert 0 < above.sum() < len(x)
    assert_bits(got.cpu(), torch.from_numpy(expected))


@pytest.mark.skipif(ON_CPU, reason="shape and bytes of the GPU's layout")
def test_packed_weight_is_k_major() -> None:
    rng = np.random.default_rng(3)
    for k, n in ((0, 3), (1, 1), (15, 4), (16, 5), (17, 40), (64, 96), (130, 7), (5, 0)):
        b = torch.from_numpy(rng.integers(-128, 128, (k, n), np.int8)).to(DEVICE)
        data = scaled_mm.pack_weight_int8(b).data
        width = max(16, (k + 15) // 16 * 16)
        assert (data.dtype, tuple(data.shape)) == (torch.uint8, (n * width,))
        assert torch.equal(data.view(n, width)[:, :k].view(torch.int8), b.t())


@pytest.mark.parametrize("seed", range(200, 205))
def test_small(seed: int) -> None:
    """Every kind of operand; each tenth case against the reference too."""
    rng = np.random.default_rng(seed)
    for i in range(80):
        case = random_case(rng)
        assert_products(case, case.build(rng=rng), r1=i % 10 == 0)


@pytest.mark.parametrize("seed", range(300, 305))
def test_large(seed: int) -> None:
    """Several tiles in each direction, several turns of the pipeline."""
    rng = np.random.default_rng(seed)
    for i in range(20):
        case = random_large_case(rng)
        assert_products(case, case.build(rng=rng), r1=i == 0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(400, 420))
def test_many(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for i in range(1000):
        case = random_case(rng) if i % 4 else random_large_case(rng)
        assert_products(case, case.build(rng=rng))
