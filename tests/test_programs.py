"""Epilogues of one's own: programs, and the bits that they give on every instruction set."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_bits, each_isa
from torch import Tensor

import scaled_mm
from scaled_mm import epilogue as ep
from scaled_mm._program import OPERATIONS, Axis, decoded
from scaled_mm.epilogue.values import Trace, Value, operation
from scaled_mm.ops.epilogue_mm import epilogue_mm
from scaled_mm.reference import program as reference

M, K, N = 13, 37, 70
WIDE = (torch.bfloat16, torch.float16, torch.float32)


def int8(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)


def test_the_kernels_have_the_same_list() -> None:
    text = Path(__file__).parent.parent / "csrc/epilogue/program.def"
    found = re.findall(r'^OP\((\d+), (\w+), (\w), "(\w*)"\)', text.read_text(), re.MULTILINE)
    assert [(int(number), name, (result, taken)) for number, name, result, taken in found] == [
        (number, name, types) for number, (name, types) in enumerate(OPERATIONS.items())
    ]


# --- random programs ------------------------------------------------------------------------------


class Case:
    """A program of random nodes over random operands, and operands for it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.torch = torch.Generator().manual_seed(seed)
        self.m, self.n = self.rng.choice([(0, 4), (1, 1), (3, 130), (M, N), (17, 64), (5, 0)])
        self.k = self.rng.choice([0, 1, 16, 37])
        self.trace, self.values = Trace(), list[Value]()
        self.half = self.n % 2 == 0 and self.rng.random() < 0.3
        self.leaves: list[tuple[Axis, bool, Value]] = []
        self.values.append(self.trace.value("acc"))
        self.values.append(ep.to_float(self.values[0]))
        for _ in range(self.rng.randrange(6)):
            self.leaf()
        for _ in range(self.rng.randrange(2, 13)):
            self.grow(lambda name: name not in ("gate", "value") and OPERATIONS[name][0] in "fib")
        if self.half:
            whole = [x for x in self.values if x._type == "f"]
            self.values = list(ep.pairs(self.rng.choice(whole) + self.total(0)))
            before = len(self.leaves)
            for _ in range(self.rng.randrange(3)):
                self.leaf()
            for _ in range(self.rng.randrange(6)):
                self.grow(lambda name: name not in ("gate", "value", "acc"))
            total = self.values[0] + self.total(before)
        else:
            total = self.values[1] + self.total(0)
        outputs = [x for x in self.values if x._type != "b"]
        chosen = self.rng.sample(outputs, min(len(outputs), self.rng.choice([0, 1, 3, 7])))
        chosen.append(self.quantized(total) if self.rng.random() < 0.4 else total)
        self.program = self.trace.finished(tuple(x._node for x in chosen))
        self.out_dtype = self.rng.choice(WIDE)

    def quantized(self, x: Value) -> Value:
        scale = abs(self.pick("f")) + 0.5
        if self.rng.random() < 0.4:
            return ep.quantize(x, scale, torch.float8_e4m3fn)
        azp = self.pick("i") if self.rng.random() < 0.5 else None
        return ep.quantize(x, scale, torch.int8, azp)

    def leaf(self) -> None:
        axis, is_float = self.rng.choice(list(Axis)), self.rng.random() < 0.7
        self.values.append(self.trace.operand(f"x{len(self.leaves)}", axis, is_float))
        self.leaves.append((axis, is_float, self.values[-1]))

    def total(self, first: int) -> Any:
        """Of the operands, so that each is read."""
        values = (x if is_float else ep.to_float(x) for _, is_float, x in self.leaves[first:])
        return sum(values, 0.25)

    def pick(self, letter: str) -> Any:
        found = [x for x in self.values if x._type == letter]
        if found and self.rng.random() < 0.9:
            return self.rng.choice(found)
        number = self.rng.choice([0, 1, -3, 100, 2**30])
        return number if letter == "i" else number / 7

    def grow(self, wanted: Callable[[str], bool]) -> None:
        names = [name for name, (made, taken) in OPERATIONS.items() if taken and made in "fib"]
        name = self.rng.choice([x for x in names if wanted(x)])
        taken = OPERATIONS[name][1]
        if "b" in taken and not any(x._type == "b" for x in self.values):
            return
        bare = name.removesuffix("_int")
        try:
            self.values.append(operation(bare, *(self.pick(letter) for letter in taken)))
        except (TypeError, KeyError):  # such as less of two constants
            return

    def operands(self) -> list[Tensor]:
        columns = {each.name: each.columns for each in self.program.operands}
        made = []
        for i, (axis, is_float, _) in enumerate(self.leaves):
            n = self.n // max(1, columns[f"x{i}"])
            shape = {
                Axis.ROW: self.rng.choice([(n,), (1, n)]),
                Axis.COL: self.rng.choice([(), (1,), (self.m,), (self.m, 1)]),
                Axis.FULL: (self.m, n),
            }[axis]
            made.append(self.tensor(shape, is_float))
        return made

    def tensor(self, shape: tuple[int, ...], is_float: bool) -> Tensor:
        if self.rng.random() < 0.3 and shape:  # with gaps
            wide = self.tensor((*shape[:-1], 2 * shape[-1]), is_float)
            return wide[..., ::2]
        if not is_float:
            x = torch.randint(-(2**31), 2**31 - 1, shape, generator=self.torch, dtype=torch.int32)
            return x >> self.rng.choice([0, 16, 24])
        x = torch.randn(shape, generator=self.torch) * 10.0 ** self.rng.randrange(-3, 4)
        if x.numel() and self.rng.random() < 0.2:
            x.view(-1)[0] = self.rng.choice([torch.inf, -torch.inf, torch.nan, -0.0, 1e-42])
        return x.to(self.rng.choice(WIDE))


def check_case(seed: int) -> None:
    case = Case(seed)
    a, b = int8(case.m, case.k, seed=seed), int8(case.n, case.k, seed=seed + 1).t()
    operands, dtypes = case.operands(), case.program.dtypes(case.out_dtype)
    ints = case.program.encoded(case.out_dtype)
    expected = reference.epilogue_mm(a, b, operands, case.program, dtypes)
    weights = [b, scaled_mm.pack_weight_int8(b)]
    for isa in each_isa():
        for weight in weights:
            got = epilogue_mm(a, weight, operands, ints)
            for i, (x, y) in enumerate(zip(got, expected, strict=True)):
                assert_bits(x, y, seed, isa, i, str(case.program))
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
