"""The interpreter of programs on CUDA, played on the CPU: device_on_host/program.cpp says how."""

from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import assert_bits
from program_cases import ROOT, int8, played_library, pressed, problem
from torch import Tensor

from scaled_mm import epilogue as ep

Played = Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[int]], list[Tensor]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The op whose kernel is played."""
    to = tmp_path_factory.mktemp("played")
    played_library("program", to, "-O1", ROOT / "csrc/cuda/program.cpp")
    op: Played = torch.ops.scaled_mm_played.epilogue_mm.default
    return op


# Two operations are one step, unless the first one's value is wanted again.
@ep.epilogue
def scaled(acc: ep.Acc, row: ep.Row, column: ep.Col):
    x = ep.to_float(acc) * row
    return row * ep.to_float(acc + 1), column * (x - column), x


@ep.epilogue
def added(acc: ep.Acc, row: ep.Row, column: ep.Col, full: ep.Full):
    x = row - ep.to_float(acc)
    y = full * x
    return x * column + row, column + row * x, y + x, y


@ep.epilogue
def clamped(acc: ep.Acc, row: ep.Row, column: ep.Col, full: ep.Full):
    x = ep.to_float(acc)
    y = ep.maximum(x, full)
    return ep.clamp(x, column, row), ep.minimum(row, ep.maximum(x, row)), ep.minimum(y, row), y


@ep.epilogue
def corrected(acc: ep.Acc, row: ep.Row[torch.int32], azp: ep.Col[torch.int32]):
    x = acc - azp * row
    y = x - (row + 1) * azp
    z = azp * 3
    return y, y * row - x, y - z, z


@ep.epilogue
def per_token(
    acc: ep.Acc,
    column: ep.Col,
    row: ep.Row,
    azp: ep.Col[torch.int32],
    adj: ep.Row[torch.int32],
    bias: ep.Row,
):
    return ep.fma(column, row * ep.to_float(acc - azp * adj), bias)


def operand(kind: str, m: int, n: int, seed: int) -> Tensor:
    """Of any dtype, some with gaps, some with infinities and NaNs."""
    generator = torch.Generator().manual_seed(seed)
    shape = {"Row": (n,), "Col": (m, 1), "Full": (m, n)}[kind]
    x = torch.randn(*shape[:-1], 2 * shape[-1], generator=generator) * 100
    values = torch.tensor([torch.inf, -torch.inf, torch.nan, -0.0, 1e-42])
    x.view(-1)[: len(values)] = values[: x.numel()]
    x = x.to((torch.float32, torch.bfloat16, torch.float16)[seed % 3])
    return x[..., ::2] if seed % 2 else x[..., : shape[-1]].contiguous()


@pytest.mark.parametrize(
    "epilogue", [scaled, added, clamped, corrected, per_token], ids=lambda x: x.__name__
)
def test_joined_steps(played: Played, epilogue: ep.Epilogue) -> None:
    for seed, (m, n) in enumerate([(1, 1), (3, 6), (16, 64), (13, 70), (17, 36), (9, 4)] * 2):
        a, b = int8(m, 16, seed=seed), int8(n, 16, seed=seed + 1).t()
        given = {}
        for i, each in enumerate(epilogue.program.operands):
            x = operand(each.axis.name.title(), m, n, seed + i)
            given[each.name] = x if each.is_float else (x.float().nan_to_num() * 1e6).int()
        arguments = a, b, list(given.values()), epilogue.program.encoded(torch.float32)
        expected = epilogue.reference(a, b, **given, out_dtype=torch.float32)
        expected = (expected,) if isinstance(expected, Tensor) else expected
        for x, y in zip(played(*arguments), expected, strict=True):
            assert_bits(x, y, seed)


def test_random_programs(played: Played) -> None:
    for seed in range(300):
        a, b, operands, ints, expected, text = problem(seed)
        for i, (x, y) in enumerate(zip(played(a, b, operands, ints), expected, strict=True)):
            assert_bits(x, y, i, text)


def test_many_values_at_once(played: Played) -> None:
    epilogue = pressed(30)
    a, b, scale = int8(5, 8), int8(7, 8).t(), torch.randn(5, 7)
    expected = epilogue.reference(a, b, scale=scale, out_dtype=torch.float32)
    (got,) = played(a, b, [scale], epilogue.program.encoded(torch.float32))
    assert_bits(got, expected)
