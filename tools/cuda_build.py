"""What setup.py decides about the CUDA library, as functions of plain values: nothing of torch,
nothing compiled. tests/test_build.py has the tables.

A folder csrc/cuda/smXX serves every device of its major version from capability XX on; the newest
such folder wins. Its code is compiled for

    below 90   sm_XX                     runs on every later device of the major version
    90         sm_90a                    wgmma and TMA; on 9.0 alone, and there is no other 9.x
    from 100   sm_XXf, of its family     tcgen05 and block scaling; 10.0 and 10.3, 12.0 and 12.1
    a kind of NARROW                     what it says: an instruction that not all of a family have

A family has one major version, and its code runs from XX on, so the rule above holds for it too.
"+PTX" in TORCH_CUDA_ARCH_LIST adds compute_XX, which the driver compiles for any later device, of
later major versions too. Folders from 90 on have none: what an "a" or "f" is for ends with it.

SCALED_MM_STAND_IN="9.0" compiles the folders below 90 for that GPU as well, as machine code of what
their PTX says. The GPU then runs them without a driver that compiles them first: that is how their
kernels are tested and timed where there is no such GPU.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CUTLASS = "nvidia-cutlass==4.2.0.0"
USUAL_HOME = "/usr/local/cuda"


# ---- For which GPUs ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Wanted:
    """An entry of TORCH_CUDA_ARCH_LIST, or a GPU of this machine."""

    capability: int  # 10 * major + minor
    ptx: bool = False


def wanted_by(arch_list: str) -> list[Wanted]:
    """TORCH_CUDA_ARCH_LIST taken apart: "8.0;9.0+PTX". An "a" or "f" behind a number is dropped."""
    entries = re.split(r"[;,\s]+", arch_list.strip(" ;,\t\n"))
    found = [re.fullmatch(r"(\d+)\.(\d)[af]?(\+PTX)?", entry) for entry in entries]
    if not all(found):
        raise SystemExit(f'TORCH_CUDA_ARCH_LIST must be like "8.0;9.0+PTX", got "{arch_list}"')
    return [Wanted(10 * int(m[1]) + int(m[2]), bool(m[3])) for m in found if m]


def serving(wanted: Wanted, folders: Iterable[str]) -> str | None:
    """The folder whose code runs on that device, the newest of them; None where there is none."""
    present = sorted(int(name[2:]) for name in folders)
    cc = wanted.capability
    own = [xx for xx in present if xx // 10 == cc // 10 and xx <= cc]
    by_ptx = [xx for xx in present if wanted.ptx and xx <= min(cc, 89)]
    found = own or by_ptx
    return f"sm{found[-1]}" if found else None


def gencode(folder: str, ptx: bool = False, stand_in: int | None = None) -> list[str]:
    """nvcc's options for the code of a folder; `ptx` and `stand_in`, the capability of another GPU
    that is to run it, are without effect from 90 on."""
    number = int(folder[2:])
    suffix = "" if number < 90 else "a" if number == 90 else "f"
    options = [f"-gencode=arch=compute_{number}{suffix},code=sm_{number}{suffix}"]
    if ptx and not suffix:
        options.append(f"-gencode=arch=compute_{number},code=compute_{number}")
    if stand_in and not suffix and stand_in // 10 > number // 10:
        options.append(f"-gencode=arch=compute_{number},code=sm_{stand_in}")
    return options


def stand_in_by(capability: str | None) -> int | None:
    """SCALED_MM_STAND_IN as 10 * major + minor; None where it is not set."""
    if not capability:
        return None
    if not re.fullmatch(r"\d+\.\d", capability):
        raise SystemExit(f'SCALED_MM_STAND_IN must be like "9.0", got "{capability}"')
    return int(capability.replace(".", ""))


NARROW = {"int8_tcgen05": "100a"}
"""FAMILY_kind whose instructions only some GPUs of its folder have: what it is compiled for."""


def gencode_of(kind: str, options: Sequence[str]) -> tuple[str, ...]:
    """nvcc's options for a kind of kernel, of a folder with these."""
    own = NARROW.get(kind)
    return (f"-gencode=arch=compute_{own},code=sm_{own}",) if own else tuple(options)


def targets(
    wanted: Sequence[Wanted] | None, folders: Sequence[str], stand_in: int | None = None
) -> dict[str, list[str]]:
    """The folders to build, each with nvcc's options; `wanted` None: all folders."""
    ptx: dict[str, bool] = {}
    if wanted is None:
        ptx = dict.fromkeys(folders, False)
    for each in wanted or ():
        if folder := serving(each, folders):
            ptx[folder] = ptx.get(folder, False) or each.ptx
    by_number = sorted(ptx, key=lambda folder: int(folder[2:]))
    return {folder: gencode(folder, ptx[folder], stand_in) for folder in by_number}


MOST = 999
"""A compute capability beyond all."""


def runs(options: Iterable[str]) -> list[tuple[int, int]]:
    """The compute capabilities, from the first to the last, that run what nvcc makes by each."""
    found = []
    for option in options:
        made, number, suffix = re.fullmatch(r".*,code=(\w+)_(\d+)([af]?)", option).groups()
        first = int(number)
        last = MOST if made == "compute" else first if suffix == "a" else first // 10 * 10 + 9
        found.append((first, last))
    return found


def common_options(targets: Mapping[str, Sequence[str]]) -> list[str]:
    """nvcc's options for the code that all folders share: theirs. One that several folders have
    machine code for, a stand-in, gets the newest folder's."""
    by_code = {
        code: option
        for options in targets.values()
        for option in options
        for code in (option.rpartition("code=")[2].rstrip("af"),)
    }
    return list(by_code.values())


# ---- Whether -------------------------------------------------------------------------------------


def find_cuda(*more: str | Path | None) -> Path | None:
    """A CUDA toolkit with nvcc: CUDA_HOME, `more`, the one of the nvcc in PATH, USUAL_HOME."""
    nvcc = shutil.which("nvcc")
    beside = Path(nvcc).resolve().parent.parent if nvcc else None
    for home in map(Path, filter(None, (os.environ.get("CUDA_HOME"), *more, beside, USUAL_HOME))):
        if (home / "bin/nvcc").is_file() and (home / "include/cuda_runtime.h").is_file():
            return home
    return None


def find_cutlass(package_file: str | None) -> Path | None:
    """A CUTLASS tree: SCALED_MM_CUTLASS, or the one inside the package cutlass_library."""
    tree = os.environ.get("SCALED_MM_CUTLASS")
    if tree is None and package_file is not None:
        tree = str(Path(package_file).parent / "source")
    return Path(tree) if tree and Path(tree, "include/cutlass/cutlass.h").is_file() else None


@dataclass(frozen=True)
class Machine:
    """What there is to build the CUDA library with."""

    torch_cuda: str | None  # torch.version.cuda
    cuda_home: Path | None
    cutlass: Path | None

    def missing(self) -> str:
        lacks = []
        if self.cuda_home is None:
            lacks.append("nvcc (install the CUDA toolkit, or set CUDA_HOME)")
        if self.cutlass is None:
            named = os.environ.get("SCALED_MM_CUTLASS")
            held = f" in {named}, which must hold include/cutlass/cutlass.h" if named else ""
            how = f"pip install --no-deps {CUTLASS}, or set SCALED_MM_CUTLASS"
            lacks.append(f"CUTLASS's headers{held} ({how})")
        return " and ".join(lacks)


def decide(asked: str | None, machine: Machine) -> tuple[bool, str]:
    """Whether to build the CUDA library, and one line to say, or "".

    `asked` is SCALED_MM_CUDA: "1" makes what is missing an error, "0" leaves the library out, and
    without either it is built when torch is a CUDA build and nothing is missing.
    """
    if asked not in (None, "", "0", "1"):
        raise SystemExit(f'SCALED_MM_CUDA must be 0 or 1, got "{asked}"')
    if asked == "0" or (asked != "1" and machine.torch_cuda is None):
        return False, ""
    missing = machine.missing()
    if missing and asked == "1":
        raise SystemExit(f"SCALED_MM_CUDA=1 needs {missing}")
    if missing:
        return False, f"scaled_mm: the CUDA library is left out; it needs {missing}"
    return True, ""
