"""Lays the library out as a project of Hugging Face's kernel-builder, for the `kernels` package.

    python tools/hub_kernel.py FOLDER        a new or empty folder; `make hub` takes build/hub

    build.toml       what is compiled, for which backend, with which flags: those of setup.py
    flake.nix        names kernel-builder
    csrc/, stubs/    the sources, and the files that setup.py writes for every row of a table
    torch-ext/       the Python package: ops and layers, and all that they import of ours

Such a build differs from the wheel's in three ways. It is one module of Python for each backend,
where the wheel has a library without Python for each. The ops are in a namespace that no other
build has, `TORCH_EXTENSION_NAME`, so that several versions can be loaded together. And only torch
and the standard library may be imported, so there are no checkpoints, references or commands.

The format is that of the project's pages "Write kernels" and "Kernel requirements", edition 5 of
build.toml. CUTLASS is the builder's `cutlass_4_0`.
"""

from __future__ import annotations

import ast
import json
import re
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import imports
from compile_against import load_setup

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "scaled_mm"
ENTRANCES = ("ops", "nn")
"""Of the package: what the hub's package offers, and what its parts are followed from."""
SCHEMAS = "csrc/ops/schemas.cpp"
"""In the wheel part of the CPU library, which is always there; here every backend has it."""
BINDING = "torch-ext/torch_binding.cpp"
STABLE_ABI = "2.11"
NOT_A_FLAG = ("-isystem", "-DTORCH_TARGET_VERSION", "-W", "-g0", "-O")
"""The builder has its own of these."""


# ---- build.toml ----------------------------------------------------------------------------------


def build_toml(setup: ModuleType) -> dict[str, Any]:
    """The tables of build.toml."""
    archs = setup.present_archs()
    cpu = setup.cpu_library()
    cuda = setup.cuda_library(
        Path("/cuda"), Path("/cutlass"), setup.cuda_build.targets(None, archs)
    )
    kernels: dict[str, Any] = {
        "cpu": {
            "backend": "cpu",
            "depends": ["torch"],
            "include": ["csrc", "stubs/cpu"],
            "cxx-flags": _flags(setup.HOST_FLAGS),
            "src": sorted({_place(x) for x in cpu.sources} - {SCHEMAS}),
        }
    }
    device = {
        "backend": "cuda",
        "depends": ["torch", "cutlass_4_0"],
        "include": ["csrc", "stubs/cuda"],
        "cxx-flags": [*_flags(setup.HOST_FLAGS), "-DUSE_CUDA"],
        "cuda-flags": _flags(setup.DEVICE_FLAGS),
    }
    for group, sources, flags in cuda.device_code:
        kernels[group] = {
            **device,
            "cuda-capabilities": _capabilities(flags),
            "src": _places(sources),
        }
    kernels["common"]["src"] += _places(cuda.sources)
    return {
        "general": {
            "name": "scaled-mm",
            "version": 0,  # by convention: not yet settled
            "edition": 5,
            "license": "Apache-2.0",
            "backends": ["cpu", "cuda"],
        },
        "torch": {
            "src": [BINDING, SCHEMAS],
            "include": ["csrc"],
            "minver": STABLE_ABI,
            "stable-abi": dict.fromkeys(("cpu", "cuda"), STABLE_ABI),
        },
        "kernel": kernels,
    }


def _places(sources: list[str]) -> list[str]:
    return sorted(map(_place, sources))


def _place(source: str) -> str:
    """Where a source of setup.py's lies in the project."""
    return source.replace("build/stubs/", "stubs/")


def _flags(flags: list[str]) -> list[str]:
    return [flag for flag in flags if not flag.startswith(NOT_A_FLAG)]


def _capabilities(flags: Iterable[str]) -> list[str]:
    """What nvcc's options compile for: sm_80 is 8.0, sm_90a is 9.0a, sm_100f is 10.0f."""
    found = (re.search(r"code=sm_(\d+)(\d)([af]?)$", flag) for flag in flags)
    return [f"{m[1]}.{m[2]}{m[3]}" for m in found if m]


def as_toml(tables: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Tables of strings, integers and lists of strings; JSON's spelling of them is TOML's."""
    for name, value in tables.items():
        if not isinstance(value, dict):
            yield f"{name} = {json.dumps(value, indent=2 if isinstance(value, list) else None)}"
    for name, value in tables.items():
        if isinstance(value, dict):
            yield f"\n[{prefix}{name}]"
            yield from as_toml(value, f"{prefix}{name}.")


# ---- torch-ext -----------------------------------------------------------------------------------


def python_files() -> list[Path]:
    """The entrances and every file of ours that they import, relative to the package.

    Raises:
        SystemExit: one of them imports what is neither torch nor of the standard library.
    """
    files, imported = imports.modules(), imports.graph()
    found = set[str]()
    waiting = [x for x in files if imports.unit(x) in {f"scaled_mm.{part}" for part in ENTRANCES}]
    while waiting:
        name = waiting.pop()
        package = name.rpartition(".")[0]
        if name not in found and package:  # the package itself has an __init__ of its own
            found.add(name)
            waiting += [package, *imported[name]]
            for other in foreign(files[name]) - {*sys.stdlib_module_names, "torch"}:
                raise SystemExit(
                    f"{files[name].relative_to(ROOT)}: the hub's package has no {other}"
                )
    return sorted(files[name].relative_to(PACKAGE) for name in found)


def foreign(file: Path) -> set[str]:
    """The packages that it imports by their own names."""
    nodes = [*ast.walk(ast.parse(file.read_text(encoding="utf-8")))]
    names = [x.name for node in nodes if isinstance(node, ast.Import) for x in node.names]
    names += [x.module or "" for x in nodes if isinstance(x, ast.ImportFrom) and not x.level]
    return {name.partition(".")[0] for name in names}


def in_own_namespace(text: str) -> str:
    """A file of ours with the ops of `_ops`, the module that kernel-builder makes."""
    named = re.sub(
        r'f?"scaled_mm::([^"]+)"',
        lambda m: f'add_op_namespace_prefix({"f" if "{" in m[1] else ""}"{m[1]}")',
        re.sub(r"torch\.ops\.scaled_mm\.(?=\w)", "ops.", text),
    )
    used = [
        name for name in ("add_op_namespace_prefix", "ops") if re.search(rf"\b{name}[.(]", named)
    ]
    if named == text:
        return text
    line = f"from .._ops import {', '.join(used)}\n"
    return re.sub(r"(?m)^(from \.|_\w+ = )", rf"{line}\1", named, count=1)


def init() -> str:
    """The package's own: what the library's offers of the ops, and the layers."""
    ours = ast.parse((PACKAGE / "__init__.py").read_text(encoding="utf-8"))
    ops = [x for x in ours.body if isinstance(x, ast.ImportFrom) and f"{x.module}."[:4] == "ops."]
    names = sorted(alias.name for node in ops for alias in node.names)
    lines = ['"""Quantised linear layers: int8 and int4 products in one kernel, bit-exact."""', ""]
    lines += ["from . import nn", *map(ast.unparse, ops), "", f"__all__ = {['nn', *names]}"]
    return "\n".join(lines) + "\n"


REGISTRATION = """// The module of Python that holds the ops; kernel-builder makes registration.h.
#include "registration.h"

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
NAMESPACE = """// The namespace of the ops: that of this build alone, so that several can be loaded.
#pragma once

#define SCALED_MM_NAMESPACE TORCH_EXTENSION_NAME
"""
FLAKE = """{
  description = "scaled-mm, for the Kernel Hub";
  inputs.kernel-builder.url = "github:huggingface/kernels";
  outputs = { self, kernel-builder }:
    kernel-builder.lib.genKernelFlakeOutputs { inherit self; path = ./.; };
}
"""


# ---- The project ---------------------------------------------------------------------------------


def write(out: Path) -> None:
    """Fills the folder.

    Raises:
        SystemExit: it holds something, or `python_files` refuses.
    """
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out}: must be new or empty")
    setup = load_setup()
    tables = build_toml(setup)
    package = out / "torch-ext/scaled_mm"
    for file in python_files():
        text = (PACKAGE / file).read_text(encoding="utf-8")
        _write(package / file, in_own_namespace(text))
    _write(package / "__init__.py", init())
    _write(out / BINDING, REGISTRATION)
    _write(out / "flake.nix", FLAKE)
    _write(out / "build.toml", "\n".join(as_toml(tables)).strip() + "\n")
    shutil.copytree(ROOT / "csrc", out / "csrc")
    listed = (source for kernel in tables["kernel"].values() for source in kernel["src"])
    lists = [f"stubs/{library}/archs.h" for library in ("cpu", "cuda")]
    for stub in (*lists, *(x for x in listed if x.startswith("stubs/"))):
        _write(out / stub, (ROOT / "build" / stub).read_text())  # build_toml had them written
    _write(out / "csrc/ops/namespace.h", NAMESPACE)
    shutil.copy(ROOT / "LICENSE", out)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python tools/hub_kernel.py FOLDER")
    write(Path(sys.argv[1]))
