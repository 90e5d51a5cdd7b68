"""Builds the shared libraries of scaled_mm; everything else is declared in pyproject.toml.

`scaled_mm/_C_cpu.abi3.so` holds the op schemas and the CPU kernels. It is loaded with
`torch.ops.load_library`, is no Python module, and sees nothing of torch but the stable ABI of
torch 2.11: one binary serves every Python and every torch from there on.
"""

from pathlib import Path

from setuptools import setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).resolve().parent
HOST_FLAGS = [
    "-DTORCH_TARGET_VERSION=0x020b000000000000ULL",  # 2.11, as torch/headeronly/version.h packs it
    "-std=c++20",  # torch 2.11 would pass c++17
    "-O3",
    "-g0",
    "-ffp-contract=off",  # g++ fuses a*b+c, intrinsics too; docs/numerics.md places every fma
    "-fvisibility=hidden",
    "-Wall",
    "-Wextra",
]
LINK_FLAGS = ["-Wl,-Bsymbolic"]


def sources(*patterns: str) -> list[str]:
    """The files that match, relative to the root, in a fixed order."""
    return sorted(str(p.relative_to(ROOT)) for pattern in patterns for p in ROOT.glob(pattern))


HEADERS = sources("csrc/**/*.h", "csrc/**/*.def", "csrc/**/*.cuh")


class BuildLibrary(BuildExtension):
    """Keeps each library's objects in its own folder, which outlives pip: rebuilds are partial."""

    def build_extension(self, ext):
        self.build_temp = str(ROOT / "build" / ext.name.rpartition(".")[2])
        super().build_extension(ext)


def cpu_library() -> CppExtension:
    return CppExtension(
        "scaled_mm._C_cpu",
        sources("csrc/*.cpp", "csrc/cpu/*.cpp"),
        depends=HEADERS,
        include_dirs=[str(ROOT / "csrc")],
        extra_compile_args=HOST_FLAGS,
        extra_link_args=LINK_FLAGS,
        py_limited_api=True,
    )


setup(
    ext_modules=[cpu_library()],
    cmdclass={"build_ext": BuildLibrary},
    options={"bdist_wheel": {"py_limited_api": "cp310"}},
)
