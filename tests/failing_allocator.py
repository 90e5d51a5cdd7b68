"""An allocator of GPU memory for torch that fails where it is told to (failing_allocator.cpp).

It is in force for the whole process, and must be so before CUDA starts.
"""

import ctypes
import re
import subprocess
import tempfile
from pathlib import Path

import torch
from torch.utils import cpp_extension

SOURCE = Path(__file__).with_name("failing_allocator.cpp")


def loaded(name: str) -> str:
    """The file of a library that this process has loaded."""
    found = re.search(rf"/\S*/{name}\S*$", Path("/proc/self/maps").read_text(), re.MULTILINE)
    assert found, f"{name} is not loaded"
    return found[0]


def compile_allocator(folder: Path) -> Path:
    library = folder / "failing_allocator.so"
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    libraries = [loaded("libcudart.so"), loaded("libc10.so")]
    command = ["c++", "-std=c++20", "-shared", "-fPIC", *includes, str(SOURCE), *libraries]
    subprocess.run([*command, "-o", str(library)], check=True)
    return library


def install() -> ctypes.CDLL:
    """Puts the allocator in force; its library, which is told what fails."""
    with tempfile.TemporaryDirectory() as folder:
        library = str(compile_allocator(Path(folder)))
        allocator = torch.cuda.memory.CUDAPluggableAllocator(library, "allocate", "release")
        torch.cuda.memory.change_current_allocator(allocator)
        hooks = ctypes.CDLL(library)
    hooks.arm.argtypes = [ctypes.c_long]
    hooks.count_made.restype = hooks.count_live.restype = ctypes.c_long
    return hooks
