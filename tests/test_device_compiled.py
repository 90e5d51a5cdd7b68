"""Programs written out as CUDA source, played on the CPU: device_on_host/compiled.cpp says how."""

from __future__ import annotations

from pathlib import Path

import torch
from helpers import assert_bits
from program_cases import played_library, problem

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
    played_library("compiled", tmp_path, "-O0", f"-I{tmp_path}")
    op = torch.ops.scaled_mm_compiled.epilogue_mm.default
    for seed in range(COUNT):
        a, b, operands, ints, expected, told = problem(seed)
        for i, (x, y) in enumerate(zip(op(a, b, operands, ints, seed), expected, strict=True)):
            assert_bits(x, y, i, told)
