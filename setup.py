"""Builds the shared libraries of scaled_mm; everything else is declared in pyproject.toml.

    scaled_mm/_C_cpu.abi3.so    the op schemas and the CPU kernels; always
    scaled_mm/_C_cuda.abi3.so   the CUDA kernels; when torch is a CUDA build or SCALED_MM_CUDA=1

Both are loaded with `torch.ops.load_library`, are no Python modules, and see nothing of torch but
the stable ABI of torch 2.11: one binary serves every Python and every torch from there on.

Environment:
    SCALED_MM_CUDA        1 or 0: build the CUDA library, or not, whatever torch is
    SCALED_MM_CUTLASS     a CUTLASS tree (holding include/); default: the nvidia-cutlass package
    SCALED_MM_SANITIZE    1: AddressSanitizer and UBSan (see `make asan`)
    TORCH_CUDA_ARCH_LIST  "8.0;9.0": default the local GPUs, without one every arch folder
    CUDA_HOME, MAX_JOBS   as for any torch extension
"""

import importlib.util
import os
import re
import shutil
from pathlib import Path

import torch
from setuptools import setup
from torch.utils import cpp_extension
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
SANITIZE = os.environ.get("SCALED_MM_SANITIZE") == "1"
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
LINK_FLAGS = ["-Wl,-Bsymbolic"]
if SANITIZE:
    SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    HOST_FLAGS += [*SANITIZERS, "-O1", "-g1", "-fno-omit-frame-pointer"]
    LINK_FLAGS += SANITIZERS
DEVICE_FLAGS = [
    *COMMON_FLAGS,
    "-DNDEBUG",  # asserts left in make ptxas serialise wgmma (C7510) and spill
    "-DUSE_CUDA",  # torch's shims for streams and launch checks sit behind it
    "-fmad=false",  # the counterpart of -ffp-contract=off; fmaf() and __fmaf_rn() stay
    "--expt-relaxed-constexpr",
    "-Xcompiler=-fvisibility=hidden",
    "-Xptxas=--warn-on-spills",
]


def sources(*patterns: str) -> list[str]:
    """The files that match, relative to the root, in a fixed order."""
    return sorted(str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern))


HEADERS = sources("csrc/**/*.h", "csrc/**/*.def", "csrc/**/*.cuh")


def cpu_library() -> CppExtension:
    return CppExtension(
        "scaled_mm._C_cpu",
        # *config.cpp: the tuning tables of the CUDA kernels, for `scaled-mm explain`
        sources("csrc/*.cpp", "csrc/cpu/*.cpp", "csrc/cuda/*config.cpp"),
        depends=HEADERS,
        include_dirs=[str(ROOT / "csrc"), arch_list("cpu", present_archs())],
        extra_compile_args={"cxx": HOST_FLAGS},
        extra_link_args=LINK_FLAGS,
        py_limited_api=True,
    )


# ---- CUDA ----------------------------------------------------------------------------------------


def cuda_wanted() -> bool:
    default = "0" if torch.version.cuda is None else "1"
    return os.environ.get("SCALED_MM_CUDA", default) == "1" and not SANITIZE


def cuda_home() -> Path:
    nvcc = shutil.which("nvcc")
    candidates = [
        os.environ.get("CUDA_HOME"),
        cpp_extension.CUDA_HOME,  # None with a CPU torch
        nvcc and Path(nvcc).resolve().parent.parent,
        "/usr/local/cuda",
    ]
    for home in map(Path, filter(None, candidates)):
        if (home / "bin/nvcc").is_file() and (home / "include/cuda_runtime.h").is_file():
            return home
    raise SystemExit("the CUDA library needs nvcc: set CUDA_HOME, or SCALED_MM_CUDA=0")


def cutlass_includes() -> list[str]:
    tree = os.environ.get("SCALED_MM_CUTLASS")
    if tree is None:
        package = importlib.util.find_spec("cutlass_library")
        if package is None or package.origin is None:
            raise SystemExit(
                "the CUDA library needs CUTLASS's headers: pip install nvidia-cutlass==4.2.0.0, "
                "or set SCALED_MM_CUTLASS, or SCALED_MM_CUDA=0"
            )
        tree = str(Path(package.origin).parent / "source")
    if not Path(tree, "include/cutlass/cutlass.h").is_file():
        raise SystemExit(f"SCALED_MM_CUTLASS must hold include/cutlass/cutlass.h, got {tree}")
    return [f"{tree}/include", f"{tree}/tools/util/include"]


def capabilities() -> list[int] | None:
    """What to build for, as 10 * major + minor; None: everything there is."""
    if listed := os.environ.get("TORCH_CUDA_ARCH_LIST"):
        found = re.findall(r"(\d+)\.(\d)[af]?(?:\+PTX)?", listed)
        if not found:
            raise SystemExit(f'TORCH_CUDA_ARCH_LIST must be like "8.0;9.0", got "{listed}"')
    else:
        devices = range(torch.cuda.device_count())
        found = [torch.cuda.get_device_capability(device) for device in devices]
    return [10 * int(major) + int(minor) for major, minor in found] or None


def present_archs() -> list[str]:
    return sorted(p.name for p in (ROOT / "csrc/cuda").glob("sm[0-9]*"))


def arch_folders() -> list[str]:
    """The csrc/cuda/smXX to build: per capability the newest one of its major that it can run."""
    present = [int(name[2:]) for name in present_archs()]
    wanted = capabilities()
    if wanted is None:
        return present_archs()
    serving = [max((s for s in present if cc // 10 * 10 <= s <= cc), default=0) for cc in wanted]
    return [f"sm{cc}" for cc in sorted({cc for cc in serving if cc})]


def gencode(arch: str) -> str:
    cc = arch[2:] + ("a" if int(arch[2:]) >= 90 else "")  # wgmma and TMA need the "a"
    return f"-gencode=arch=compute_{cc},code=sm_{cc}"


def arch_list(folder: str, archs: list[str]) -> str:
    """The folder of a generated archs.h, which names the tuning tables that a library holds."""
    path = ROOT / "build/stubs" / folder / "archs.h"
    path.parent.mkdir(parents=True, exist_ok=True)
    includes = "".join(f'#include "cuda/{arch}/arch.h"\n' for arch in archs)
    names = " ".join(f"ARCH({arch})" for arch in archs)
    text = f"#pragma once\n\n{includes}\n#define SCALED_MM_ARCHS {names}\n"
    if not path.is_file() or path.read_text() != text:
        path.write_text(text)
    return str(path.parent)


def instance_stubs(arch: str) -> list[str]:
    """One translation unit per row of the arch's table: `ROW(name, kernel, ...)` begins a line.

    A stub defines SCALED_MM_ROW as that name and includes the arch's header for that kind of
    kernel, which instantiates the row's kernels.
    """
    folder = ROOT / "build/stubs" / arch
    folder.mkdir(parents=True, exist_ok=True)
    stubs = []
    for table in (ROOT / "csrc/cuda" / arch).glob("table.h"):
        rows = re.findall(r"^\s*ROW\((\w+),\s*(\w+)", table.read_text(), re.MULTILINE)
        for row, kernel in rows:
            stub = folder / f"{row}.cu"
            text = f'#define SCALED_MM_ROW {row}\n#include "cuda/{arch}/{kernel}.h"\n'
            if not stub.is_file() or stub.read_text() != text:  # else it would be recompiled
                stub.write_text(text)
            stubs.append(str(stub.relative_to(ROOT)))
    return sorted(stubs)


def cuda_library() -> CppExtension:
    home, archs = cuda_home(), arch_folders()
    host_code = [f"{arch}/" for arch in archs]
    cpp_extension.CUDA_HOME = str(home)
    library = CppExtension(
        "scaled_mm._C_cuda",
        sources("csrc/*problem.cpp", *(f"csrc/cuda/{part}*.cpp" for part in ("", *host_code))),
        depends=HEADERS,
        include_dirs=[str(ROOT / "csrc"), arch_list("cuda", archs), str(home / "include")],
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
    # (folder of the objects, sources, nvcc's flags): the front for all archs, the rest for one.
    headers = [f"-isystem={path}" for path in cutlass_includes()]  # CUTLASS's own headers warn
    everywhere = [gencode(arch) for arch in archs]
    library.device_code = [("front", sources("csrc/cuda/*.cu"), everywhere)]
    for arch in archs:
        code = sources(f"csrc/cuda/{arch}/*.cu") + instance_stubs(arch)
        library.device_code.append((arch, code, [gencode(arch), *headers]))
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


libraries = [cpu_library()]
if cuda_wanted():
    if arch_folders():
        libraries.append(cuda_library())
    else:
        print("scaled_mm: no csrc/cuda/smXX serves the wanted GPUs; the CUDA library is left out")

setup(
    ext_modules=libraries,
    cmdclass={"build_ext": BuildLibrary},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
