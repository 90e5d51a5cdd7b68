"""A compiler that is none, for tests of what surrounds it: it notes that it ran, and copies."""

from __future__ import annotations

import stat
import subprocess
from pathlib import Path

LIBRARY = "int scaled_mm_launch(const void* call) { return call == 0; }\n"
SCRIPT = """\
#!/bin/sh
if [ "$1" = --version ]; then echo "release 13.0, V{version}"; exit 0; fi
echo run >> "{log}"
while [ $# -gt 0 ]; do if [ "$1" = -o ]; then out=$2; fi; shift; done
{before}
cp "{library}" "$out"
"""


def library(folder: Path) -> Path:
    """A shared library with the function."""
    made, text = folder / "given.so", folder / "given.c"
    text.write_text(LIBRARY)
    subprocess.run(["cc", "-shared", "-fPIC", text, "-o", made], check=True)
    return made


def fake_home(folder: Path, version: str = "13.0.88", before: str = "") -> tuple[Path, Path]:
    """A CUDA_HOME whose nvcc is such a compiler, which first does `before`; and its log."""
    home, log = folder / f"cuda-{version}", folder / "log"
    (home / "bin").mkdir(parents=True, exist_ok=True)
    log.touch()
    nvcc = home / "bin/nvcc"
    given = library(folder)
    nvcc.write_text(SCRIPT.format(version=version, log=log, library=given, before=before))
    nvcc.chmod(nvcc.stat().st_mode | stat.S_IXUSR)
    return home, log


def fake_cutlass(folder: Path) -> Path:
    tree = folder / "cutlass"
    (tree / "include/cutlass").mkdir(parents=True, exist_ok=True)
    for name in ("cutlass.h", "version.h"):
        (tree / "include/cutlass" / name).write_text("// none\n")
    return tree
