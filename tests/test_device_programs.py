"""The interpreter of programs on CUDA, played on the CPU: device_on_host/program.cpp says how."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from helpers import assert_bits
from program_cases import ROOT, int8, played_library, pressed, problem
from torch import Tensor

Played = Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[int]], list[Tensor]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The op whose kernel is played."""
    to = tmp_path_factory.mktemp("played")
    played_library("program", to, "-O1", ROOT / "csrc/cuda/program.cpp")
    op: Played = torch.ops.scaled_mm_played.epilogue_mm.default
    return op


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
