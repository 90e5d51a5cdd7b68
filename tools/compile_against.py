"""Type-checks every source against the headers of another torch than the installed one.

    python tools/compile_against.py oldest       the oldest that pyproject.toml allows
    python tools/compile_against.py newest       the newest that pip finds; or a version: 2.14.0
    python tools/compile_against.py DIR          the headers in DIR, a torch/include
    python tools/compile_against.py oldest gemm  of the sources those whose path holds a word

The exit code is 1 when a source is refused. `newest --version` prints that version and ends.

Sources and flags are those of setup.py. No code is generated: host code goes through
g++ -fsyntax-only, CUDA code through nvcc's two front ends. setup.py writes a file for each row of a
table; of these one per kind of kernel is taken, for the others differ in a name.

The headers are taken out of a wheel that pip downloads, that for macOS, which is a fraction of
the others' size; they are kept in ~/.cache/scaled_mm (or $XDG_CACHE_HOME/scaled_mm). Where they
cannot be had, a line says so and the exit code is 0. Without nvcc or CUTLASS the CUDA library's
sources are left out, and a line says that.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SMALLEST_WHEEL = ("--platform", "macosx_14_0_arm64", "--python-version", "3.11")
TORCH_HEADERS = "torch/include/"
ERROR_LINES = 12  # of what a compiler says; g++ lists every operator that does not match


class NotToBeHad(Exception):
    """The headers could not be had; the message says why."""


def oldest_torch() -> str:
    """2.11.0, when the package's dependencies say torch>=2.11."""
    found = re.search(r'^dependencies = \[.*"torch>=([\d.]+)"', pyproject(), re.MULTILINE)
    if not found:
        raise SystemExit('pyproject.toml must hold dependencies = [..., "torch>=X.Y", ...]')
    return found[1] if found[1].count(".") == 2 else f"{found[1]}.0"


def newest_torch() -> str:
    """The newest that pip finds for this machine."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", "torch"]
    done = subprocess.run(pip, capture_output=True, text=True)
    found = re.search(r"^torch \(([\d.]+)\)", done.stdout, re.MULTILINE)
    if not found:
        raise NotToBeHad(f"pip index versions torch: exit code {done.returncode}")
    return found[1]


def pyproject() -> str:
    return (ROOT / "pyproject.toml").read_text(encoding="utf-8")


def headers(version: str) -> Path:
    """The folder torch/include of that version, from the cache or by a download."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "scaled_mm" / f"torch-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            unpacked = Path(scratch, "unpacked")
            with zipfile.ZipFile(download(version, Path(scratch))) as wheel:
                names = [name for name in wheel.namelist() if name.startswith(TORCH_HEADERS)]
                wheel.extractall(unpacked, names)
            unpacked.rename(folder)  # whole or not at all
    return folder / TORCH_HEADERS


def download(version: str, folder: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet"]
    options = ["--no-deps", "--only-binary=:all:", *SMALLEST_WHEEL, "--dest", str(folder)]
    print(f"headers: downloading the headers of torch {version}", flush=True)
    done = subprocess.run([*pip, *options, f"torch=={version}"], capture_output=True, text=True)
    wheels = list(folder.glob("torch-*.whl"))
    if done.returncode or not wheels:
        said = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
        raise NotToBeHad(said[-1] if said else f"pip download: exit code {done.returncode}")
    return wheels[0]


def load_setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scaled_mm_setup", ROOT / "setup.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Check:
    source: str
    command: list[str]


def against(include: Path, flags: Sequence[str], torch_folder: str) -> list[str]:
    """The flags with the installed torch's headers replaced by those of `include`."""
    installed = f"{torch_folder}/include"
    return [flag.replace(installed, str(include)) for flag in flags]


def host_checks(library: Any, include: Path, torch_folder: str) -> list[Check]:
    flags = [*library.extra_compile_args["cxx"], *(f"-I{p}" for p in library.include_dirs)]
    command = [os.environ.get("CXX", "g++"), "-fsyntax-only"]
    command += against(include, flags, torch_folder)
    return [Check(source, [*command, source]) for source in library.sources]


def device_checks(
    library: Any, nvcc: Path, device_flags: list[str], include: Path, torch_folder: str
) -> list[Check]:
    includes = [f"-I{path}" for path in library.include_dirs]
    found: dict[str, Check] = {}
    for _, code, flags in library.device_code:
        command = [str(nvcc), "-fdevice-syntax-only", "-Xcompiler=-fsyntax-only", "-c"]
        command += against(include, [*device_flags, *flags, *includes], torch_folder)
        for source in code:
            generated = source.startswith("build/")
            what = Path(ROOT, source).read_text().split("\n", 1)[1] if generated else source
            found.setdefault(what, Check(source, [*command, "-o", os.devnull, source]))
    return list(found.values())


def checks(include: Path) -> list[Check]:
    setup = load_setup()
    torch_folder = str(Path(setup.torch.__file__).parent)
    library = setup.cpu_library()
    found = host_checks(library, include, torch_folder)
    machine = setup.machine()
    if missing := machine.missing():
        print(f"headers: the CUDA library's sources are left out; they need {missing}")
        return found
    targets = setup.cuda_build.targets(None, setup.present_archs())
    library = setup.cuda_library(machine.cuda_home, machine.cutlass, targets)
    nvcc = machine.cuda_home / "bin/nvcc"
    found += host_checks(library, include, torch_folder)
    found += device_checks(library, nvcc, setup.DEVICE_FLAGS, include, torch_folder)
    return found


def run(check: Check) -> bool:
    start = time.monotonic()
    done = subprocess.run(check.command, cwd=ROOT, capture_output=True, text=True)
    word = "FAILED" if done.returncode else "ok"
    report = f"{word:6} {time.monotonic() - start:4.0f} s  {check.source}\n"
    if done.returncode:
        report += "\n".join((done.stdout + done.stderr).splitlines()[:ERROR_LINES]) + "\n"
    print(report, end="", flush=True)
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("torch", help="oldest, newest, a version, or a torch/include")
    parser.add_argument("words", nargs="*", help="only sources whose path holds one of these")
    parser.add_argument("--version", action="store_true", help="print the version and end")
    options = parser.parse_args()
    of = options.torch
    named = {"oldest": oldest_torch, "newest": newest_torch}
    try:
        if of in named:
            of = named[of]()
        if options.version:
            print(of)
            return 0
        include = Path(of) if Path(of).is_dir() else headers(of)
    except NotToBeHad as why:
        print(f"headers: skipped, those of torch {of} could not be had: {why}")
        return 0
    words = options.words
    chosen = [c for c in checks(include) if not words or any(word in c.source for word in words)]
    with ThreadPoolExecutor(int(os.environ.get("MAX_JOBS") or os.cpu_count() or 1)) as pool:
        passed = list(pool.map(run, chosen))
    print(f"{sum(passed)} of {len(passed)} sources compile against the headers of torch {of}")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    if not shutil.which(os.environ.get("CXX", "g++")):
        raise SystemExit("g++ is missing")
    sys.exit(main())
