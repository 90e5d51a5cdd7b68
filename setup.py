"""Builds the shared libraries of scaled_mm; everything else is declared in pyproject.toml.

    scaled_mm/_C_cpu.abi3.so    the op schemas and the CPU kernels; always
    scaled_mm/_C_cuda.abi3.so   the CUDA kernels; when torch is a CUDA build and nvcc and CUTLASS
                                are there, or SCALED_MM_CUDA=1 asks for it (tools/cuda_build.py)

Both are loaded with `torch.ops.load_library`, are no Python modules, and see nothing of torch but
the stable ABI of torch 2.11: one binary serves every Python and every torch from there on.

Environment:
    SCALED_MM_CUDA        1 or 0: build the CUDA library or fail, or do not; whatever torch is
    SCALED_MM_CUTLASS     a CUTLASS tree (holding include/); default: the nvidia-cutlass package
    SCALED_MM_SANITIZE    1: AddressSanitizer and UBSan (see `make asan`); thread: ThreadSanitizer
                          (see `make tsan`)
    TORCH_CUDA_ARCH_LIST  "8.0+PTX;9.0": default the local GPUs, without one every arch folder
    SCALED_MM_STAND_IN    "9.0": a GPU that is to run the older folders' kernels as well
    CUDA_HOME, MAX_JOBS   as for any torch extension
"""

import importlib.util
import os
import re
import sys
from pathlib import Path

import torch
from setuptools import setup
from setuptools.command.build_py import build_py
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "tools"))  # an isolated build leaves the project's folder out
import cuda_build  # noqa: E402

SANITIZERS = {
    "1": ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"],
    "thread": ["-fsanitize=thread"],
}
SANITIZE = SANITIZERS.get(os.environ.get("SCALED_MM_SANITIZE", ""), [])
COMMON_FLAGS = [
    "-DTORCH_TARGET_VERSION=0x020b000000000000ULL",  # 2.11, as torch/headeronly/version.h packs it
    "-std=c++20",  # torch 2.11 would pass c++17
    "-O3",
]
HOST_FLAGS = [
    *COMMON_FLAGS,
    "-g0",
    "-ffp-contract=off",  # g++ fuses a*b+c, intrinsics too; docs/numerics.md places every fma
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
    *(f"-isystem{path}" for path in cpp_extension.include_paths()),  # torch's own headers warn
]
# The libstdc++ that torch has loaded, where g++ would link its own: streams of half of each fail.
LINK_FLAGS = ["-Wl,-Bsymbolic", "-l:libstdc++.so.6"]
if SANITIZE:
    HOST_FLAGS += [*SANITIZE, "-O1", "-g1", "-fno-omit-frame-pointer"]
    LINK_FLAGS += SANITIZE
DEVICE_FLAGS = [
    *COMMON_FLAGS,
    "-DNDEBUG",  # asserts left in make ptxas serialise wgmma (C7510) and spill
    "-DUSE_CUDA",  # torch's shims for streams and launch checks sit behind it
    "-fmad=false",  # the counterpart of -ffp-contract=off; fmaf() and __fmaf_rn() stay
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fvisibility=hidden",
    "-Xptxas=--warn-on-spills",
    "-Xfatbin=-compress-all",  # a quarter of the size; any driver unpacks it
]


def sources(*patterns: str) -> list[str]:
    """The files that match, relative to the root, in a fixed order."""
    return sorted(str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern))


HEADERS = sources(*(f"csrc/**/*.{kind}" for kind in ("h", "def", "cuh", "table")))


def cpu_library() -> CppExtension:
    with_ptx = {arch: cuda_build.gencode(arch, ptx=True) for arch in present_archs()}
    return CppExtension(
        "scaled_mm._C_cpu",
        # model.cpp: every arch's tables and predictions, for `scaled-mm explain`
        sources(*(f"csrc/{room}*.cpp" for room in ("", "ops/", "problems/", "dispatch/", "cpu/")))
        + sources("csrc/cuda/sm*/*model.cpp"),
        depends=HEADERS,
        include_dirs=[str(ROOT / "csrc"), arch_list("cpu", with_ptx)],
        extra_compile_args={"cxx": HOST_FLAGS},
        extra_link_args=LINK_FLAGS,
        py_limited_api=True,
    )


# ---- CUDA ----------------------------------------------------------------------------------------


def machine() -> cuda_build.Machine:
    package = importlib.util.find_spec("cutlass_library")
    return cuda_build.Machine(
        torch_cuda=torch.version.cuda,
        cuda_home=cuda_build.find_cuda(cpp_extension.CUDA_HOME),  # None with a CPU torch
        cutlass=cuda_build.find_cutlass(package and package.origin),
    )


def wanted_gpus() -> list[cuda_build.Wanted] | None:
    """What to build for; None: everything there is."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        return cuda_build.wanted_by(listed)
    devices = range(torch.cuda.device_count())
    found = [torch.cuda.get_device_capability(device) for device in devices]
    return [cuda_build.Wanted(10 * major + minor) for major, minor in found] or None


def present_archs() -> list[str]:
    """The arch folders, the oldest first: sm80 before sm100."""
    folders = (ROOT / "csrc/cuda").glob("sm[0-9]*")
    return sorted((p.name for p in folders), key=lambda name: int(name[2:]))


def write_if_new(path: Path, text: str) -> None:
    """What is written anew would be compiled anew."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)


def arch_list(library: str, targets: dict[str, list[str]]) -> str:
    """The folder of a generated archs.h, which names the arch folders that a library holds and says
    which GPUs run the code of each; `targets`: as for cuda_library."""
    path = ROOT / "build/stubs" / library / "archs.h"
    declared = "".join(
        f"namespace scaled_mm::cuda::{arch} {{\nextern const Arch arch;\n}}\n" for arch in targets
    )
    ranges = {
        arch: ", ".join(f"{{{first}, {last}}}" for first, last in cuda_build.runs(options))
        for arch, options in targets.items()
    }
    names = " ".join(f"ARCH({arch}, {text})" for arch, text in ranges.items())
    head = '#pragma once\n\n#include "dispatch/kernel.h"\n'
    write_if_new(path, f"{head}\n{declared}\n#define SCALED_MM_ARCHS {names}\n")
    return str(path.parent)


TOGETHER = 4  # lines to a file, of kinds that arch folders share: most of its time goes to headers


def table_text(path: Path) -> str:
    """A table, with those in it that it includes: some GPUs run the kernels of others."""

    def included(line: re.Match[str]) -> str:
        return table_text(ROOT / "csrc" / line[1])

    include = re.compile(r'^#include "(.*)"$', re.MULTILINE)
    return include.sub(included, path.read_text())


def kernel_stubs(arch: str) -> dict[str, list[str]]:
    """Translation units for the lines `KERNEL(name, Kind, ...)` of the arch's tables, of each
    FAMILY_kind.

    For a line of FAMILY.table one includes FAMILY_kind.h of the arch, with SCALED_MM_KERNEL_NAME
    defined as the name. Where the arch has none, it is mma_sync's, for TOGETHER lines of a kind at
    a time, with SCALED_MM_KERNEL_NAMES defined, behind the arch.h.
    """
    cuda, found, stubs = ROOT / "csrc/cuda", {}, ROOT / "build/stubs" / arch

    def add(header: str, stem: str, text: str) -> None:
        path = stubs / f"{stem}.cu"
        write_if_new(path, text)
        found.setdefault(header, []).append(str(path.relative_to(ROOT)))

    for table in sorted((cuda / arch).glob("*.table")):
        names: dict[str, list[str]] = {}
        lines = re.findall(r"^KERNEL\((\w+),\s*(\w+)", table_text(table), re.MULTILINE)
        for name, kind in lines:
            names.setdefault(f"{table.stem}_{kind.lower()}", []).append(name)
        for header, all_names in names.items():
            if (cuda / arch / f"{header}.h").is_file():
                for name in all_names:
                    include = f'#include "cuda/{arch}/{header}.h"\n'
                    text = f"#define SCALED_MM_KERNEL_NAME {name}\n{include}"
                    add(header, f"{table.stem}_{name}", text)
                continue
            for i in range(0, len(all_names), TOGETHER):
                calls = " ".join(f"X({name})" for name in all_names[i : i + TOGETHER])
                text = (
                    f"#define SCALED_MM_KERNEL_NAMES(X) {calls}\n"
                    f'#include "cuda/{arch}/arch.h"\n#include "cuda/mma_sync/{header}.h"\n'
                )
                add(header, f"{header}_{i // TOGETHER}", text)
    return found


def cuda_library(home: Path, cutlass: Path, targets: dict[str, list[str]]) -> CppExtension:
    """`targets`: the arch folders to build, each with nvcc's -gencode options."""
    host_code = ("cuda/", "cuda/common/", *(f"cuda/{arch}/" for arch in targets))
    cpp_extension.CUDA_HOME = str(home)
    library = CppExtension(
        "scaled_mm._C_cuda",
        sources("csrc/rules.cpp", "csrc/old_glibc.cpp")
        + sources(*(f"csrc/dispatch/{name}.cpp" for name in ("archs", "gpus", "tuning")))
        + sources("csrc/problems/*.cpp")
        + sources(*(f"csrc/{room}*.cpp" for room in host_code)),
        depends=HEADERS,
        include_dirs=[str(ROOT / "csrc"), arch_list("cuda", targets), str(home / "include")],
        library_dirs=[str(home / "lib64")],
        libraries=["cudart_static", "rt", "dl", "pthread"],
        extra_compile_args={"cxx": [*HOST_FLAGS, "-DUSE_CUDA"]},
        # A CUDA runtime of our own, hidden; -ltorch again because it is dropped as unneeded before.
        extra_link_args=[
            *LINK_FLAGS,
            "-Wl,--exclude-libs,ALL",
            "-Wl,--no-as-needed",
            "-ltorch",
        ],
        py_limited_api=True,
    )
    # (folder of the objects, sources, nvcc's flags): common code for all archs, the rest for one.
    # CUTLASS's own headers warn.
    headers = [f"-isystem={cutlass}/include", f"-isystem={cutlass}/tools/util/include"]
    everywhere = cuda_build.common_options(targets)
    library.device_code = [
        (
            "common",
            sources(*(f"csrc/cuda/{room}*.cu" for room in ("", "common/", "quantize/"))),
            everywhere,
        )
    ]
    for arch, options in targets.items():
        by_options = {tuple(options): sources(f"csrc/cuda/{arch}/*.cu")}
        for kind, code in kernel_stubs(arch).items():
            by_options.setdefault(cuda_build.gencode_of(kind, options), []).extend(code)
        for own, code in by_options.items():
            group = arch if own == tuple(options) else own[0].rpartition("code=")[2]
            library.device_code.append((group.replace("_", ""), code, [*own, *headers]))
    return library


class BuildLibrary(BuildExtension):
    """Each library's objects in a folder of its own that outlives pip; .cu files by arch."""

    def build_extension(self, ext):
        folder = "sanitize" if SANITIZE else ext.name.rpartition(".")[2]
        self.build_temp = str(ROOT / "build" / folder)
        for group, code, flags in getattr(ext, "device_code", []):
            if code:
                ext.extra_objects += self.compile_device_code(ext, group, code, flags)
        super().build_extension(ext)

    def compile_device_code(self, ext, group, code, flags):
        folder = Path(self.build_temp, group)
        if torch.version.cuda is None:  # then torch's ninja rule for .cu leaves out the headers
            changed = max((ROOT / header).stat().st_mtime for header in HEADERS)
            for stale in folder.rglob("*.o"):
                if stale.stat().st_mtime < changed:
                    stale.unlink()
        return self.compiler.compile(
            code,
            output_dir=str(folder),
            include_dirs=ext.include_dirs,
            extra_postargs={"cxx": [], "nvcc": [*DEVICE_FLAGS, *flags]},
            depends=ext.depends,
        )


class BuildPackage(build_py):
    """The kernels' headers go into a wheel: scaled_mm/compiled has nvcc compile with them."""

    def run(self):
        super().run()
        if getattr(self, "editable_mode", False):  # then they are read where they are
            return
        for header in HEADERS:
            if not header.startswith("csrc/cpu/"):
                target = Path(self.build_lib, "scaled_mm/_csrc", header.removeprefix("csrc/"))
                self.mkpath(str(target.parent))
                self.copy_file(str(ROOT / header), str(target))


def libraries() -> list[CppExtension]:
    """What is to be built here; one line is printed where that is less than could be expected."""
    asked = "0" if SANITIZE else os.environ.get("SCALED_MM_CUDA")
    here = machine()
    build, remark = cuda_build.decide(asked, here)
    stand_in = cuda_build.stand_in_by(os.environ.get("SCALED_MM_STAND_IN"))
    targets = cuda_build.targets(wanted_gpus(), present_archs(), stand_in) if build else {}
    if build and not targets:
        remark = "no csrc/cuda/smXX serves the wanted GPUs"
        if asked == "1":
            raise SystemExit(f"SCALED_MM_CUDA=1: {remark}")
        remark = f"scaled_mm: the CUDA library is left out; {remark}"
    if remark:
        print(remark)
    if not targets:
        return [cpu_library()]
    assert here.cuda_home and here.cutlass  # decide() saw to it
    return [cpu_library(), cuda_library(here.cuda_home, here.cutlass, targets)]


if __name__ == "__main__":  # tools/compile_oldest.py reads the libraries and builds none
    setup(
        ext_modules=libraries(),
        cmdclass={"build_ext": BuildLibrary, "build_py": BuildPackage},
        options={"bdist_wheel": {"py_limited_api": "cp310"}},
    )
