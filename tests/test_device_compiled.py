"""Programs written out as CUDA source, played on the CPU: device_on_host/compiled.cpp says how."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import torch
from helpers import assert_bits
from program_cases import problem
from torch.utils import cpp_extension

from scaled_mm._program import decoded
from scaled_mm.compiled.source import ending

ROOT = Path(__file__).resolve().parent.parent
COUNT = 40


def test_random_programs(tmp_path: Path) -> None:
    text = ["#pragma once"]
    for seed in range(COUNT):
        program, dtypes = decoded(problem(seed).ints)
        text.append(f"namespace program{seed} {{\n{ending(program, dtypes, False)}\n}}")
    text.append("#define PROGRAMS " + " ".join(f"PROGRAM({seed})" for seed in range(COUNT)))
    (tmp_path / "endings.h").write_text("\n".join(text) + "\n")
    sources = ["tests/device_on_host/compiled.cpp", "csrc/rules.cpp"]
    sources += [f"csrc/problems/{name}.cpp" for name in ("program", "int8", "tensors")]
    library = str(tmp_path / "played.so")
    command: list[Any] = [os.environ.get("CXX", "c++"), "-std=c++20", "-O0", "-shared", "-fPIC"]
    command += ["-fvisibility=hidden", "-ffp-contract=off", "-o", library]
    command += ["-DTORCH_TARGET_VERSION=0x020b000000000000ULL", f"-I{tmp_path}"]
    command += [f"-I{ROOT / 'tests/device_on_host'}", f"-I{ROOT / 'csrc'}"]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    command += [ROOT / source for source in sources]
    command += [*(f"-L{path}" for path in cpp_extension.library_paths()), "-ltorch_cpu", "-lc10"]
    subprocess.run(command, check=True)
    torch.ops.load_library(library)
    op = torch.ops.scaled_mm_compiled.epilogue_mm.default
    for seed in range(COUNT):
        a, b, operands, ints, expected, told = problem(seed)
        for i, (x, y) in enumerate(zip(op(a, b, operands, ints, seed), expected, strict=True)):
            assert_bits(x, y, i, told)
