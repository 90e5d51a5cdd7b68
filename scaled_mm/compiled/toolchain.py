"""nvcc, CUTLASS's headers and the library's own: where they are, and how they compile a source."""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch

from .source import NotCompiled

FLAGS = (
    "-shared",
    "-DTORCH_TARGET_VERSION=0x020b000000000000ULL",
    "-std=c++20",
    "-O3",
    "-DNDEBUG",
    "-DUSE_CUDA",
    "-fmad=false",
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fPIC,-fvisibility=hidden",
    "-Xlinker=-z,defs",
)
"""As setup.py has them for kernels, and for a library that stands alone."""
CODE = {"sm90": "-gencode=arch=compute_90a,code=sm_90a"}
TIMEOUT = 900.0
"""Seconds for a compiler."""

_PACKAGE = Path(__file__).resolve().parent.parent
CSRC = _PACKAGE / "_csrc" if (_PACKAGE / "_csrc").is_dir() else _PACKAGE.parent / "csrc"
"""In a wheel, headers alone."""


@dataclass(frozen=True)
class Toolchain:
    """What there is to compile with."""

    nvcc: Path
    cutlass: Path

    @property
    def version(self) -> str:
        """nvcc's, which is asked, and CUTLASS's headers' as a hash."""
        return f"{_version(self.nvcc)}-{_hash_of_cutlass(self.cutlass)}"

    @property
    def stamp(self) -> str:
        """Of the files themselves: where it is the same, so is the version."""
        files = (self.nvcc, self.cutlass / "include/cutlass/version.h")
        return " ".join(f"{x} {x.stat().st_size} {x.stat().st_mtime_ns}" for x in files)

    def compile(self, source: str, arch: str, folder: Path) -> Path:
        """The library, in the folder, where everything else is written too.

        Raises:
            NotCompiled: the compiler failed: what it said.
            OSError: it could not be run, or the folder not be written.
        """
        made, text = folder / "epilogue.so", folder / "epilogue.cu"
        text.write_text(source)
        torch_headers = Path(inspect.getfile(torch)).parent / "include"
        command = [
            str(self.nvcc),
            *FLAGS,
            CODE[arch],
            f"-I{CSRC}",
            f"-isystem={torch_headers}",
            f"-isystem={self.cutlass}/include",
            str(text),
            "-o",
            str(made),
        ]
        try:
            ran = subprocess.run(
                command,
                cwd=folder,
                env={**os.environ, "TMPDIR": str(folder)},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise NotCompiled(f"{self.nvcc} did not end in {TIMEOUT:.0f} s") from None
        if ran.returncode != 0 or not made.is_file():
            said = (ran.stderr or ran.stdout).strip()[-1500:]
            raise NotCompiled(f"{self.nvcc} failed ({ran.returncode}): {said}")
        return made


def find() -> Toolchain | str:
    """What there is, or what is missing."""
    nvcc, cutlass = _nvcc(), _cutlass()
    if nvcc is None:
        return "nvcc is missing: set CUDA_HOME, or pip install nvidia-cuda-nvcc nvidia-cuda-cccl"
    if cutlass is None:
        return "CUTLASS's headers are missing: pip install --no-deps nvidia-cutlass==4.2.0.0"
    return Toolchain(nvcc, cutlass)


def _nvcc() -> Path | None:
    return next((nvcc for nvcc in _places_of_nvcc() if os.access(nvcc, os.X_OK)), None)


def _places_of_nvcc() -> Iterator[Path]:
    for home in filter(None, map(os.environ.get, ("CUDA_HOME", "CUDA_PATH"))):
        yield Path(home) / "bin/nvcc"
    if found := shutil.which("nvcc"):
        yield Path(found).resolve().with_name("nvcc")  # a link may lead to a cache of compilers
    yield Path("/usr/local/cuda/bin/nvcc")
    packages = Path(sysconfig.get_paths()["purelib"]) / "nvidia"
    yield from sorted(packages.glob("cu[0-9]*/bin/nvcc"), reverse=True)


def _cutlass() -> Path | None:
    tree = os.environ.get("SCALED_MM_CUTLASS") or os.environ.get("CUTLASS_PATH")
    if not tree:
        package = importlib.util.find_spec("cutlass_library")
        tree = str(Path(package.origin).parent / "source") if package and package.origin else None
    return Path(tree) if tree and Path(tree, "include/cutlass/cutlass.h").is_file() else None


@cache
def _version(nvcc: Path) -> str:
    try:
        said = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"V(\d+(?:\.\d+)+)", said.stdout)
    return found[1] if found else ""


@cache
def _hash_of_cutlass(tree: Path) -> str:
    """Of the file that has its version."""
    text = (tree / "include/cutlass/version.h").read_bytes()
    return hashlib.sha256(text).hexdigest()[:12]


@cache
def hash_of_headers(arch: str) -> str:
    """Of the library's own headers that a compiled epilogue may include."""
    device = ("common", "cutlass3", "epilogue", "quantize", arch)
    made = hashlib.sha256()
    for room in ("", "epilogue", "problems", "dispatch", "cuda", *(f"cuda/{x}" for x in device)):
        for path in sorted((CSRC / room).iterdir(), key=lambda path: path.name):
            if path.name.endswith((".h", ".cuh", ".def", ".table")):
                made.update(f"{room}/{path.name}\n".encode())
                made.update(path.read_bytes())
    return made.hexdigest()
