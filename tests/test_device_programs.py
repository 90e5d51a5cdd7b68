"""The interpreter of programs on CUDA, played on the CPU: device_on_host/program.cpp says how."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import assert_bits
from program_cases import int8, pressed, problem
from torch import Tensor
from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
Played = Callable[[Tensor, Tensor, Sequence[Tensor], Sequence[int]], list[Tensor]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """The op whose kernel is played."""
    sources = ["tests/device_on_host/program.cpp", "csrc/cuda/program.cpp", "csrc/rules.cpp"]
    sources += [f"csrc/problems/{name}.cpp" for name in ("program", "int8", "tensors")]
    library = str(tmp_path_factory.mktemp("played") / "played.so")
    command: list[Any] = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", "-ffp-contract=off", "-o", library]
    command += ["-DTORCH_TARGET_VERSION=0x020b000000000000ULL"]
    command += [f"-I{ROOT / 'tests/device_on_host'}", f"-I{ROOT / 'csrc'}"]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    command += [ROOT / source for source in sources]
    command += [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    torch.ops.load_library(library)
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
