"""The stores of CUDA kernels, played on the CPU: device_on_host/stores.cpp says how.

No GPU, nvcc or CUTLASS takes part; headers in device_on_host/ stand for what the device code takes
from CUDA and CUTLASS.
"""

import os
import re
import subprocess
from pathlib import Path

from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
CSRC = ROOT / "csrc"
SOURCES = ROOT / "tests/device_on_host"


def test_each_element_is_stored_once_at_its_place(tmp_path):
    """Vectors of elements at multiples of their width, and nothing beside D."""
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-c", "-fsanitize=thread"]
    command += ["-DTORCH_TARGET_VERSION=0x020b000000000000ULL", "-Wall", "-Wno-unknown-pragmas"]
    command += [f"-I{SOURCES}", f"-I{ROOT / 'csrc'}"]
    command += [f"-isystem{path}" for path in cpp_extension.include_paths()]
    played = tmp_path / "stores"
    subprocess.run([*command, str(SOURCES / "stores.cpp"), "-o", f"{played}.o"], check=True)
    # Without the sanitizer, in whose place the program's own functions are called.
    subprocess.run([command[0], f"{played}.o", "-o", str(played)], check=True)
    run = subprocess.run([str(played)], capture_output=True, text=True, timeout=100)
    assert run.returncode == 0 and run.stdout.endswith(" 0 faults\n"), run.stdout + run.stderr


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
