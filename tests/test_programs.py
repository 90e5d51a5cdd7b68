"""Epilogues of one's own: programs, and the bits that they give on every instruction set."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest
import torch
from helpers import assert_bits, each_isa
from program_cases import Case, int8, problem
from torch import Tensor

import scaled_mm
from scaled_mm import epilogue as ep
from scaled_mm._program import MAX_OPERANDS, OPERATIONS, Axis, decoded
from scaled_mm.ops.epilogue_mm import epilogue_mm


def test_the_kernels_have_the_same_list() -> None:
    text = (Path(__file__).parent.parent / "csrc/epilogue/program.def").read_text()
    found = re.findall(r'^(?:OP|FUNCTION)\((\d+), (\w+), (\w), "(\w*)"\)', text, re.MULTILINE)
    assert [(int(number), name, (result, taken)) for number, name, result, taken in found] == [
        (number, name, types) for number, (name, types) in enumerate(OPERATIONS.items())
    ]


def check_case(seed: int) -> None:
    a, b, operands, ints, expected, text = problem(seed)
    weights = [b, scaled_mm.pack_weight_int8(b)]
    for isa in each_isa():
        for weight in weights:
            got = epilogue_mm(a, weight, operands, ints)
            for i, (x, y) in enumerate(zip(got, expected, strict=True)):
                assert_bits(x, y, isa, i, text)
    shapes = [x.shape for x in epilogue_mm(a.to("meta"), b.to("meta"), _meta(operands), ints)]
    assert shapes == [x.shape for x in expected]


def _meta(operands: list[Tensor]) -> list[Tensor]:
    return [x.to("meta") for x in operands]


@pytest.mark.parametrize("first", range(0, 300, 20))
def test_random_programs(first: int) -> None:
    for seed in range(first, first + 20):
        check_case(seed)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 3000, 100))
def test_many_random_programs(first: int) -> None:
    for seed in range(first, first + 100):
        check_case(seed)


def test_a_program_is_read_back() -> None:
    for seed in range(50):
        case = Case(seed)
        again, dtypes = decoded(case.program.encoded(case.out_dtype))
        assert (again.nodes, again.outputs) == (case.program.nodes, case.program.outputs)
        assert [x[1:] for x in again.operands] == [x[1:] for x in case.program.operands]
        assert dtypes == case.program.dtypes(case.out_dtype)


def test_broken_programs_are_refused_or_run() -> None:
    """Never a crash, whatever the numbers."""
    rng = random.Random(0)
    refused = 0
    for seed in range(400):
        case = Case(seed % 40)
        a, b = int8(case.m, case.k), int8(case.n, case.k).t()
        operands, ints = case.operands(), case.program.encoded(case.out_dtype)
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(ints))
            ints[at] = rng.choice([-1, 0, 1, 2, 45, 46, 1000, 2**40, -(2**40), ints[at] + 1])
        if rng.random() < 0.2:
            ints = ints[: rng.randrange(len(ints))]
        try:
            torch.ops.scaled_mm.epilogue_mm(a, b, operands, ints)
        except (RuntimeError, ValueError) as error:
            assert re.match(r"(program|operands|b|operands\[\d+\]) must ", str(error)), error
            refused += 1
    assert refused > 200


@ep.epilogue
def sums(acc: ep.Acc):
    return ep.to_float(acc)


def test_only_so_many_operands_are_decoded() -> None:
    version, _, *rest = sums.program.encoded(torch.float32)
    operand = [Axis.ROW.value, 1, 0]
    program, _ = decoded([version, MAX_OPERANDS, *operand * MAX_OPERANDS, *rest])
    assert len(program.operands) == MAX_OPERANDS
    with pytest.raises(ValueError, match="program must be what an epilogue encodes"):
        decoded([version, MAX_OPERANDS + 1, *operand * (MAX_OPERANDS + 1), *rest])
