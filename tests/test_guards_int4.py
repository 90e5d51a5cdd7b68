"""int4: guards for what tables of random operands do not reach. Each stands in catalogue.md."""

from collections.abc import Callable

import pytest
import torch
from awq_cases import DTYPES, AwqCase
from helpers import ROUNDING, assert_bits, run_python, strange_mode, x86_only
from operands import Operands

import scaled_mm
from scaled_mm import awq, reference

pytestmark = pytest.mark.usefixtures("poisoned")
dtypes = pytest.mark.parametrize("dtype", DTYPES)


def outputs(operands: Operands) -> list[torch.Tensor]:
    weight = {name: operands[name] for name in ("qweight", "scales", "qzeros")}
    return [scaled_mm.awq_dequantize(**weight), scaled_mm.awq_gemm(**operands)]


# --- strides of 0 ---------------------------------------------------------------------------------

ONE_OF: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "rows": lambda x: x[:1].expand_as(x),
    "columns": lambda x: x[:, :1].expand_as(x),
    "both": lambda x: x[:1, :1].expand_as(x),
}


@dtypes
@pytest.mark.parametrize("way", ONE_OF)
@pytest.mark.parametrize("name", ["qweight", "scales", "qzeros", "x"])
def test_an_expanded_operand(isa: str, name: str, way: str, dtype: torch.dtype) -> None:
    """One row, column or element that is read as all of them."""
    for n, rows in ((8, 1), (16, 3), (136, 5), (264, 9)):
        operands = AwqCase(f"{name}{way}", 96, n, 32, dtype, rows=(rows,)).product()
        operands[name] = ONE_OF[way](operands[name])
        dense = {**operands, name: operands[name].contiguous()}
        for got, expected in zip(outputs(operands), outputs(dense), strict=True):
            assert_bits(got, expected, name, way, n)
        weight = {key: dense[key] for key in ("qweight", "scales", "qzeros")}
        assert_bits(outputs(operands)[0], reference.awq_dequantize(**weight), name, way, n)


# --- products of which 16 bits have no normal value -----------------------------------------------


@dtypes
@pytest.mark.parametrize("rows", [1, 4, 32])
def test_products_at_both_ends(isa: str, dtype: torch.dtype, rows: int) -> None:
    """Scales around the least and the largest that float32 can stand in for: where a product is
    infinite in 16 bits, all of its column is (0 times it is NaN); elsewhere the weight, exactly."""
    edges = [2.0**e for e in (-133, -130, -126, -120, -101, -100, -99, -24, -20, -16, -15, -14)]
    edges += [2.0**e for e in (-13, 9, 10, 11, 12, 13, 14, 15, 99, 100, 101, 120, 124, 126, 127)]
    scales = torch.tensor([f * e for e in edges for f in (1.0, 1.3, -1.7)]).to(dtype)
    for s in scales.tolist():
        of_a_tile = torch.full((1, 16), s).to(dtype)
        q = torch.arange(16)[:, None].repeat(1, 16)
        z = torch.arange(16)[None].clone()
        operands = awq.pack(q), of_a_tile, awq.pack(z)
        expected = scaled_mm.awq_dequantize(*operands)
        assert_bits(expected, reference.awq_dequantize(*operands), s)
        eye = torch.eye(16, dtype=dtype).repeat(2, 1)[: max(rows, 16)]
        got = torch.cat([scaled_mm.awq_gemm(x, *operands) for x in eye.split(rows)])
        finite = expected.isfinite().all(0)
        wanted = torch.cat([expected, expected])[: len(got)]
        assert torch.equal(got[:, finite], wanted[:, finite]), s  # but for the sign of a zero
        assert not got[:, ~finite].isfinite().any(), s


# --- the caller's floating-point mode -------------------------------------------------------------

CASES = {
    "usual": AwqCase("usual", 160, 152, 80, rows=(9,), bias=torch.float32),
    "bfloat16": AwqCase("bfloat16", 160, 152, 80, torch.bfloat16, "signed", (3,), torch.bfloat16),
    "subnormal": AwqCase("subnormal", 64, 24, 32, torch.float16, "subnormal", (40,)),
    "wide": AwqCase("wide", 640, 264, 64, torch.bfloat16, "wide", (70,)),
}
OPERANDS = {name: case.product() for name, case in CASES.items()}
# Products that are subnormal in float32, too.
OPERANDS["tiny"] = AwqCase("tiny", 64, 24, 32, torch.bfloat16, "signed", (5,)).product()
OPERANDS["tiny"]["scales"] *= 2.0**-120
OPERANDS["tiny"]["x"] *= 2.0**-8


def all_outputs() -> list[torch.Tensor]:
    return [out for operands in OPERANDS.values() for out in outputs(operands)]


modes = pytest.mark.parametrize(
    ("mode", "flush"), [("nearest", True), ("down", False), ("up", True), ("to-zero", False)]
)


@x86_only
@modes
def test_the_mode_changes_nothing_and_is_restored(isa: str, mode: str, flush: bool) -> None:
    expected = all_outputs()
    assert any(((x != 0) & (x.abs() < 2.0**-126)).any() for x in expected)
    tiny = torch.tensor([1e-40])
    with strange_mode(mode, flush) as libm:
        got = all_outputs()
        restored, flushed = libm.fegetround(), tiny.mul(1.0).item() == 0
    assert (restored, flushed) == (ROUNDING[mode], flush)
    for x, y in zip(got, expected, strict=True):
        assert_bits(x, y, mode, flush)


IN_STRANGE_WORKERS = """
import sys, torch
torch.set_num_threads(1)
from helpers import bits, strange_mode
from test_guards_int4 import all_outputs
before, x = all_outputs(), torch.arange(4e6)
nearest = x / 7
with strange_mode(sys.argv[1], True):
    torch.set_num_threads(4)  # workers are born in the mode of the thread that makes them
    x.div(7)
assert not torch.equal(x.div(7), nearest), "no worker is in the strange mode"
for x, y in zip(all_outputs(), before, strict=True):
    assert torch.equal(bits(x), bits(y))
print("the same")
"""


@x86_only
def test_the_mode_of_workers() -> None:
    assert run_python(IN_STRANGE_WORKERS, "up").strip() == "the same"
