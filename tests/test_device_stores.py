"""The stores of CUDA kernels, played on the CPU: device_on_host/stores.cpp says how.

No GPU, nvcc or CUTLASS takes part; headers in device_on_host/ stand for what the device code takes
from CUDA and CUTLASS.
"""

import os
import re
import subprocess
from pathlib import Path

import torch
from helpers import assert_bits
from program_cases import played_library, problem
from torch.utils import cpp_extension

from scaled_mm._program import decoded
from scaled_mm.compiled.source import ending

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SOURCES = ROOT / "tests/device_on_host"


def play(tmp_path, name, *options):
    """Compiles device_on_host/NAME.cpp and runs it."""
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1"]
    compiling = ["-DTORCH_TARGET_VERSION=0x020b000000000000ULL", "-Wall", "-Wno-unknown-pragmas"]
    compiling += [f"-I{SOURCES}", f"-I{ROOT / 'csrc'}"]
    compiling += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    source, program = str(SOURCES / f"{name}.cpp"), str(tmp_path / name)
    subprocess.run([*command, "-c", *options, *compiling, source, "-o", f"{program}.o"], check=True)
    subprocess.run([*command, f"{program}.o", "-o", program], check=True)
    run = subprocess.run([program], capture_output=True, text=True, timeout=300)
    assert run.returncode == 0 and run.stdout.endswith(" 0 faults\n"), run.stdout + run.stderr


def test_each_element_is_stored_once_at_its_place(tmp_path):
    """Vectors of elements at multiples of their width, and nothing beside D."""
    # Linked without the sanitizer, in whose place the program's own functions are called.
    play(tmp_path, "stores", "-fsanitize=thread")


def test_each_row_is_in_one_tile_of_its_expert(tmp_path):
    play(tmp_path, "groups")


def test_scales_along_k(tmp_path):
    """Units of 4 bits and int8 in blocks: each sum over groups has the contract's bits."""
    play(tmp_path, "k_scales")


def test_scales_along_k_on_hopper(tmp_path):
    """Whole blocks: the ring, products, parts of tiles and their join."""
    play(tmp_path, "w4a8")


def test_a_warp_rotates_what_it_has(tmp_path):
    """Bit for bit as butterflies in the order of the columns' bits."""
    play(tmp_path, "rotate")


def included(files):
    """The files, and all of csrc that they include."""
    found, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file in found or not file.is_file():
            continue
        found.add(file)
        waiting += [CSRC / name for name in re.findall(r'#include "(.+?)"', file.read_text())]
    return found


def test_no_read_only_loads_behind_the_wait():
    """ld.global.nc is for memory that nobody writes while the kernel runs: the one before may."""
    early = [
        file
        for file in CSRC.glob("cuda/**/*.cu*")
        if "  wait_for_dependencies();" in file.read_text()
    ]
    assert len(early) > 4
    loads = {
        str(file.relative_to(CSRC))
        for file in included(early)
        if re.search(r"__ldg\(|ld\.global\.nc", re.sub(r"//.*", "", file.read_text()))
    }
    assert not loads


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
