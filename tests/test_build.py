"""What setup.py builds, for which GPUs, and what it says when something is missing."""

import os
import subprocess
from functools import partial
from pathlib import Path

import compile_against
import cuda_build
import pytest
from helpers import refuses, run_python

ROOT = Path(__file__).resolve().parent.parent
Wanted = cuda_build.Wanted

# ---- The GPUs ------------------------------------------------------------------------------------

ALL = ("sm75", "sm80", "sm89", "sm90", "sm100", "sm120")
SUFFIXES = dict.fromkeys((75, 80, 86, 87, 89), "") | {90: "a"}
SUFFIXES |= dict.fromkeys((100, 103, 120, 121), "f")
GENCODE = {  # folder: what nvcc is told, and what +PTX adds
    f"sm{number}": (
        f"-gencode=arch=compute_{number}{of},code=sm_{number}{of}",
        None if of else f"-gencode=arch=compute_{number},code=compute_{number}",
    )
    for number, of in SUFFIXES.items()
}


@pytest.mark.parametrize("folder", GENCODE)
def test_gencode(folder: str) -> None:
    code, ptx = GENCODE[folder]
    assert cuda_build.gencode(folder) == [code]
    assert cuda_build.gencode(folder, ptx=True) == [code, *filter(None, [ptx])]


def test_nvcc_knows_the_targets(tmp_path: Path) -> None:
    home = cuda_build.find_cuda()
    if home is None:
        pytest.skip("no nvcc")
    options = [option for pair in GENCODE.values() for option in pair if option]
    command = [str(home / "bin/nvcc"), "--dryrun", "--cubin", "nothing.cu"]
    for option in (o for o in options if "code=sm_" in o):
        done = subprocess.run([*command, option], capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arch_list", "expected"),
    [
        ("9.0", [Wanted(90)]),
        ("8.0;9.0a", [Wanted(80), Wanted(90)]),
        ("7.5 8.6+PTX, 12.1", [Wanted(75), Wanted(86, ptx=True), Wanted(121)]),
        ("10.3f;", [Wanted(103)]),
    ],
)
def test_arch_list(arch_list: str, expected: list[object]) -> None:
    assert cuda_build.wanted_by(arch_list) == expected


def test_targets() -> None:
    code = {folder: options[0] for folder, options in GENCODE.items()}
    assert cuda_build.targets(None, ALL) == {folder: [code[folder]] for folder in ALL}
    assert cuda_build.targets([Wanted(103), Wanted(89)], ALL) == {
        "sm89": [code["sm89"]],
        "sm100": [code["sm100"]],
    }
    twice = cuda_build.targets([Wanted(86), Wanted(80, ptx=True), Wanted(87)], ALL)
    assert twice == {"sm80": [*GENCODE["sm80"]]}
    assert cuda_build.targets([Wanted(75)], ("sm90",)) == {}


def test_a_stand_in_runs_the_older_folders() -> None:
    """SCALED_MM_STAND_IN=9.0: their code for that GPU too; shared code once for each GPU."""
    wanted = [Wanted(75), Wanted(80, ptx=True), Wanted(90)]
    found = cuda_build.targets(wanted, ALL, cuda_build.stand_in_by("9.0"))
    for folder in ("sm75", "sm80"):
        extra = f"-gencode=arch=compute_{folder[2:]},code=sm_90"
        assert found[folder][-1] == extra and found[folder][0] == GENCODE[folder][0]
    assert found["sm90"] == [GENCODE["sm90"][0]]
    assert cuda_build.common_options(found) == [
        GENCODE["sm75"][0],
        GENCODE["sm90"][0],
        *GENCODE["sm80"],
    ]
    alone = cuda_build.targets([Wanted(75), Wanted(80)], ALL, 90)
    assert cuda_build.common_options(alone) == [
        GENCODE["sm75"][0],
        "-gencode=arch=compute_80,code=sm_90",
        GENCODE["sm80"][0],
    ]
    assert cuda_build.targets([Wanted(89)], ALL, 80) == {"sm89": [GENCODE["sm89"][0]]}
    assert cuda_build.stand_in_by(None) is cuda_build.stand_in_by("") is None


@pytest.mark.parametrize(
    ("arch_list", "stand_in", "chosen"),
    [  # by capability, the folder: the newest with code that the GPU runs
        ("8.0+PTX;8.9", None, {80: "sm80", 86: "sm80", 89: "sm89", 90: "sm80", 100: "sm80"}),
        ("7.5+PTX;8.0", None, {75: "sm75", 86: "sm80", 90: "sm75", 120: "sm75"}),
        ("8.0;9.0;10.0", None, {80: "sm80", 90: "sm90", 103: "sm100", 110: None, 75: None}),
        ("7.5;8.0;12.0", "9.0", {89: "sm80", 90: "sm80", 100: None, 121: "sm120"}),
    ],
)
def test_a_folder_serves_what_runs_its_code(
    arch_list: str, stand_in: str | None, chosen: dict[int, str | None]
) -> None:
    wanted = cuda_build.wanted_by(arch_list)
    found = cuda_build.targets(wanted, ALL, cuda_build.stand_in_by(stand_in))
    for capability, expected in chosen.items():
        serving = [None] + [  # as find_arch, which has these ranges by archs.h
            folder
            for folder, options in found.items()
            if any(first <= capability <= last for first, last in cuda_build.runs(options))
        ]
        assert serving[-1] == expected, capability


# ---- Whether there is a CUDA library -------------------------------------------------------------

HERE = Path("/somewhere")
FULL = cuda_build.Machine("13.0", HERE, HERE)
CPU_TORCH = cuda_build.Machine(None, HERE, HERE)
NO_NVCC = cuda_build.Machine("13.0", None, HERE)
NO_CUTLASS = cuda_build.Machine("13.0", HERE, None)
BARE = cuda_build.Machine("13.0", None, None)


@pytest.mark.parametrize("asked", [None, "", "0", "1"])
@pytest.mark.parametrize("machine", [FULL, CPU_TORCH, NO_NVCC, NO_CUTLASS, BARE])
def test_decision(asked: str | None, machine: object, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCALED_MM_CUTLASS", raising=False)
    lacks = {NO_NVCC: ["nvcc"], NO_CUTLASS: ["CUTLASS's"], BARE: ["nvcc", "CUTLASS's"]}
    missing = lacks.get(machine, [])
    if asked == "1" and missing:
        with pytest.raises(SystemExit) as caught:
            cuda_build.decide(asked, machine)
        assert all(name in str(caught.value) for name in ["SCALED_MM_CUDA=1", *missing])
        return
    build, remark = cuda_build.decide(asked, machine)
    assert build is (asked == "1" or (asked in (None, "") and machine is FULL))
    if not missing or asked == "0":
        assert remark == ""
    else:
        assert remark.startswith("scaled_mm: the CUDA library is left out; it needs ")
        assert all(name in remark for name in missing)
        assert "\n" not in remark


ARCH_LISTS, CAPABILITIES = ("Hopper", "90", "9.0+ptx", "9.0 x", ";"), ("90", "9", "9.0a", "9.0;8.0")
REFUSED = {
    "TORCH_CUDA_ARCH_LIST must be like": [partial(cuda_build.wanted_by, x) for x in ARCH_LISTS],
    "SCALED_MM_STAND_IN must be like": [partial(cuda_build.stand_in_by, x) for x in CAPABILITIES],
    'SCALED_MM_CUDA must be 0 or 1, got "yes"': partial(cuda_build.decide, "yes", FULL),
}
test_refused = refuses(REFUSED, error=SystemExit)


def test_what_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home, tree = tmp_path / "cuda", tmp_path / "cutlass"
    for file in (home / "bin/nvcc", home / "include/cuda_runtime.h"):
        file.parent.mkdir(parents=True)
        file.touch()
    monkeypatch.setattr(cuda_build, "USUAL_HOME", tmp_path / "nothing")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CUDA_HOME", raising=False)
    assert cuda_build.find_cuda() is None
    assert cuda_build.find_cuda(None, home) == home
    monkeypatch.setenv("CUDA_HOME", str(home))
    assert cuda_build.find_cuda() == home
    (home / "include/cuda_runtime.h").unlink()
    assert cuda_build.find_cuda() is None

    monkeypatch.delenv("SCALED_MM_CUTLASS", raising=False)
    assert cuda_build.find_cutlass(None) is None
    package = tree / "cutlass_library/__init__.py"
    (package.parent / "source/include/cutlass").mkdir(parents=True)
    (package.parent / "source/include/cutlass/cutlass.h").touch()
    assert cuda_build.find_cutlass(str(package)) == package.parent / "source"
    monkeypatch.setenv("SCALED_MM_CUTLASS", str(tree))
    assert cuda_build.find_cutlass(str(package)) is None, "the tree that is named, or none"
    with pytest.raises(SystemExit, match=r"must hold include/cutlass/cutlass\.h"):
        cuda_build.decide("1", cuda_build.Machine("13.0", HERE, None))


STREAM = """#include <sstream>
extern "C" __attribute__((visibility("default"))) int digits() {
  std::ostringstream text;
  text << 1234;
  return static_cast<int>(text.str().size());
}
"""


def test_a_static_libstdcxx_is_not_taken(tmp_path: Path) -> None:
    """Half of it would be torch's: a stream then writes no numbers, or ends the process."""
    source, library = tmp_path / "stream.cpp", tmp_path / "stream.so"
    source.write_text(STREAM)
    setup = compile_against.load_setup()
    command = [os.environ.get("CXX", "c++"), "-static-libstdc++", "-shared", "-fPIC", str(source)]
    flags = ["-fvisibility=hidden", "-o", str(library), *setup.LINK_FLAGS]
    subprocess.run([*command, *flags], check=True)
    code = "import ctypes, sys, torch; print(ctypes.CDLL(sys.argv[1]).digits())"
    assert run_python(code, str(library)) == "4\n"


# ---- Other torches -------------------------------------------------------------------------------


def test_the_oldest_torch_is_the_one_that_is_built_for() -> None:
    version = compile_against.oldest_torch()
    major, minor, _ = (int(part) for part in version.split("."))
    assert f"TORCH_TARGET_VERSION=0x{major:02x}{minor:02x}" in (ROOT / "setup.py").read_text()
    assert f'"torch>={major}.{minor}"]' in compile_against.pyproject(), "build-system.requires too"


def test_every_source_meets_the_oldest_torch(capsys: pytest.CaptureFixture[str]) -> None:
    checks = compile_against.checks(Path("/oldest/include"))
    checked = {check.source for check in checks}
    wanted = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*.c*")}
    wanted -= {path for path in wanted if path.endswith(".cuh")}
    if "are left out" in capsys.readouterr().out:  # no nvcc, no CUTLASS
        wanted = {s for s in wanted if not s.startswith("csrc/cuda/") or s.endswith("model.cpp")}
    assert wanted <= checked
    generated = checked - wanted
    assert all(source.startswith("build/stubs/") for source in generated)
    for check in checks:
        flags = " ".join(check.command)
        assert "/oldest/include" in flags
        assert "site-packages/torch/include" not in flags


def test_what_a_kind_is_compiled_for() -> None:
    """As its folder, unless its instructions are not of the whole family."""
    folder = cuda_build.gencode("sm100")
    assert cuda_build.gencode_of("int8_multistage", folder) == tuple(folder)
    narrow = cuda_build.gencode_of("int8_tcgen05", folder)
    assert narrow == ("-gencode=arch=compute_100a,code=sm_100a",)
