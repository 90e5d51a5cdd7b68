"""The stores of CUDA kernels, played on the CPU: device_on_host/stores.cpp says how.

No GPU, nvcc or CUTLASS takes part; headers in device_on_host/ stand for what the device code takes
from CUDA and CUTLASS.
"""

import os
import subprocess
from pathlib import Path

from torch.utils import cpp_extension

ROOT = Path(__file__).resolve().parent.parent
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
