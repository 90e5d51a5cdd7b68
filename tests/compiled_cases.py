"""Epilogues to compile, and a compiler that is none, for tests of what surrounds it: it notes that
it ran, and copies."""

import stat
import subprocess
from pathlib import Path

import pytest
import torch

from scaled_mm import epilogue as ep
from scaled_mm.compiled import launches, toolchain

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


def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a compiler that is none; its runs are in `log`."""
    cuda, _ = fake_home(folder)
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    monkeypatch.setenv("SCALED_MM_CUTLASS", str(fake_cutlass(folder)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    toolchain._version.cache_clear()
    toolchain._hash_of_cutlass.cache_clear()
    return folder


def runs(home: Path) -> int:
    return len((home / "log").read_text().splitlines())


def make() -> launches.Made:
    ints = per_token.program.encoded(torch.bfloat16)
    text, key = launches.prepared(ints, "sm90", "stream_16x64", True)
    return launches.compiled(key, text, "sm90")


@ep.epilogue
def per_token(
    acc: ep.Acc,
    scale_a: ep.Col,
    scale_b: ep.Row,
    azp: ep.Col[torch.int32],
    azp_adj: ep.Row[torch.int32],
    bias: ep.Row,
):
    return ep.fma(scale_a, scale_b * ep.to_float(acc - azp * azp_adj), bias)


@ep.epilogue
def gated(acc: ep.Acc, scale_a: ep.Col, scale_b: ep.Row, bias: ep.Row, out_scale: ep.Scalar):
    gate, value = ep.pairs(scale_a * (scale_b * ep.to_float(acc)))
    y = ep.silu(gate) * value + bias
    return y, ep.quantize(y, out_scale, torch.int8)
