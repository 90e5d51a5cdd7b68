"""Epilogues compiled on demand: their source, the folder that keeps them, and what may go wrong;
without a GPU."""

from __future__ import annotations

import ctypes
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import compiled_cases
import program_cases
import pytest
import torch
from torch._subclasses import FakeTensorMode

from scaled_mm import _library, compiled
from scaled_mm import epilogue as ep
from scaled_mm._program import Axis
from scaled_mm.compiled import launches, store, toolchain
from scaled_mm.compiled.source import NotCompiled, lines, source

ROOT = Path(__file__).resolve().parent.parent
LINES = lines(toolchain.CSRC, "sm90")


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


def text_of(made: ep.Epilogue, kernel: str, light: bool = False) -> str:
    dtypes = made.program.dtypes(torch.bfloat16)
    return source(made.program, dtypes, LINES[kernel], light)


# --- the source -----------------------------------------------------------------------------------


def test_the_lines_are_the_table_s() -> None:
    assert list(LINES) == _library.cuda_kernels("sm90")
    assert LINES["stream_16x64"].streams and not LINES["ping_64x64_2x1"].streams
    assert LINES["ping_128x192_2x1"].sums == 192 and LINES["coop_128x256_1x1"].sums == 128
    assert lines(toolchain.CSRC, "sm80") == {}


def test_the_source_has_the_program() -> None:
    text = text_of(per_token, "stream_16x64", light=True)
    assert "using L3 = CompiledLeaf<3, int32_t, Axis::Row, 1, 3>;" in text
    assert "const float v10_0 = compiled::fma(v1_0, v9_0, v5_0);" in text
    assert "kDtypes[] = {1};" in text and "kIsLight = true" in text
    assert "launch<sm90::int8::stream_16x64, Ending>" in text


def test_pairs_are_written_for_both_columns() -> None:
    text = text_of(gated, "stream_16x64")
    assert "acc[0]" in text and "acc[1]" in text and "kColumns = 2" in text
    assert "get(L1{}, 1)" in text  # of the sums' columns, and once for each pair:
    assert "CompiledLeaf<2, float, Axis::Row, 2, 0>" in text and "get(L2{}, 1)" not in text
    assert "kDtypes[] = {1, 4};" in text


def test_names_of_the_user_reach_no_compiler() -> None:
    namespace: dict[str, Any] = {"ep": ep}
    exec("def evil(acc: ep.Acc, system: ep.Row):\n return ep.to_float(acc) * system", namespace)
    text = text_of(ep.epilogue(namespace["evil"]), "stream_8x64")
    assert "evil" not in text and "system" not in text


@pytest.mark.parametrize("seed", range(200))
def test_random_programs_use_what_was_made(seed: int) -> None:
    program = program_cases.Case(seed).program
    text = source(program, program.dtypes(torch.float32), LINES["stream_16x64"], False)
    made = set()
    for line in re.findall(r"^    (.*;)$", text, re.MULTILINE):
        name, _, term = line.removeprefix("const ").partition(" = ")
        assert set(re.findall(r"\bv\d+_\d", term)) <= made, line
        made |= {name.split()[-1]}
    header = (ROOT / "csrc/cuda/common/compiled_ops.cuh").read_text()
    for called in re.findall(r"compiled::(\w+)\(", text):
        assert re.search(rf" {called}\(", header), called


def test_what_a_kernel_does_not_take() -> None:
    with pytest.raises(NotCompiled, match="writes one output, the program has 2"):
        text_of(gated, "ping_64x64_2x1")
    with pytest.raises(NotCompiled, match="no registers"):
        text_of(per_token, "ping_128x192_2x1")
    assert text_of(per_token, "ping_128x192_2x1", light=True)
    with pytest.raises(NotCompiled, match="not compiled for sm90/other"):
        launches.prepared(per_token.program.encoded(torch.float16), "sm90", "other", True)


def test_what_is_light() -> None:
    def is_light(made: ep.Epilogue) -> bool:
        ints = made.program.encoded(torch.bfloat16)
        facts = ("H200", 90, 132, 4.8e6, 0.0)
        return _library.explain("program", ints, 16, 4096, 4096, *facts)["light"]

    assert is_light(per_token) and not is_light(gated)


# --- the key --------------------------------------------------------------------------------------


def beginning(made: ep.Epilogue = per_token, kernel: str = "stream_16x64", **more: Any) -> str:
    ints = made.program.encoded(more.get("out_dtype", torch.bfloat16))
    return launches.prepared(ints, "sm90", kernel, more.get("light", True))[1]


def test_the_key_has_all_that_matters(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = {
        beginning(),
        beginning(gated, light=False),
        beginning(kernel="stream_8x64"),
        beginning(light=False),
        beginning(out_dtype=torch.float16),
    }
    assert len(keys) == 5 and beginning() in keys
    for name, value in (("VERSION", "x"), ("FLAGS", ("-O0",)), ("CODE", {"sm90": "x"})):
        with monkeypatch.context() as changed:
            changed.setattr(launches, name, value)
            assert beginning() not in keys, name
    monkeypatch.setattr(toolchain, "hash_of_headers", lambda arch: "x")
    assert beginning() not in keys


# --- the folder -----------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache and a compiler that is none; its runs are in `log`."""
    cuda, _ = compiled_cases.fake_home(tmp_path)
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    monkeypatch.setenv("SCALED_MM_CUTLASS", str(compiled_cases.fake_cutlass(tmp_path)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    toolchain._version.cache_clear()
    toolchain._hash_of_cutlass.cache_clear()
    return tmp_path


def runs(home: Path) -> int:
    return len((home / "log").read_text().splitlines())


def make() -> launches.Made:
    ints = per_token.program.encoded(torch.bfloat16)
    text, key = launches.prepared(ints, "sm90", "stream_16x64", True)
    return launches.compiled(key, text, "sm90")


def test_it_is_compiled_once(home: Path) -> None:
    first, second = make(), make()
    assert runs(home) == 1 and first.path == second.path
    assert first.path.parent == home / "cache/scaled_mm/epilogues"
    assert first.path.parent.stat().st_mode & 0o777 == 0o700
    assert not first.is_verified
    first.verified()
    assert make().is_verified


def test_another_compiler_compiles_anew(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    cuda, _ = compiled_cases.fake_home(home, version="13.1.2")
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    assert make().path != first.path and runs(home) == 2


def test_the_same_compiler_elsewhere_does_not(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    (home / "elsewhere").mkdir()
    cuda, _ = compiled_cases.fake_home(home / "elsewhere")
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    assert make().path == first.path and runs(home) == 1


def test_a_compiler_that_is_known_is_not_asked(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    monkeypatch.setattr(toolchain, "_version", lambda nvcc: pytest.fail("it was"))
    assert make().path == first.path


def test_without_a_compiler_what_was_kept_serves(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = make()
    monkeypatch.setattr(toolchain, "_nvcc", lambda: None)
    assert make().path == first.path
    first.drop()
    with pytest.raises(NotCompiled, match="nvcc is missing"):
        make()


def damaged(path: Path, how: str) -> None:
    record = path.with_suffix(".json")
    if how == "bytes":
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:1000])
    elif how == "no record":
        record.unlink()
    elif how == "broken record":
        record.write_text("{")
    elif how == "a list":
        record.write_text("[]")
    elif how == "another format":
        record.write_text(json.dumps({**json.loads(record.read_text()), "format": 2}))
    elif how == "anyone's":
        path.chmod(0o666)
    elif how == "anyone's record":
        record.chmod(0o622)
    elif how == "a link":
        path.rename(path.with_suffix(".elsewhere"))
        path.symlink_to(path.with_suffix(".elsewhere"))


DAMAGES = "bytes, cut, no record, broken record, a list, another format, anyone's, "
DAMAGES += "anyone's record, a link"


@pytest.mark.parametrize("how", DAMAGES.split(", "))
def test_what_is_broken_or_foreign_is_compiled_anew(home: Path, how: str) -> None:
    first = make()
    first.verified()
    damaged(first.path, how)
    again = make()
    assert runs(home) == 2 and not again.is_verified
    assert again.path.read_bytes() == (home / "given.so").read_bytes()
    make()
    assert runs(home) == 2


def test_another_user_s_file_is_not_loaded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make()
    owner = os.geteuid()
    monkeypatch.setattr(store.os, "geteuid", lambda: owner + 1)
    folder = store.default_folder()
    assert folder
    found = list(store.Store(folder).find_all(""))
    assert len(found) == (owner == 0)  # root's are everybody's


def test_a_folder_that_others_may_write_is_left_alone(home: Path) -> None:
    folder = home / "cache/scaled_mm/epilogues"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    made = make()
    assert made.folder and not list(folder.iterdir()) and made.path.is_file()
    made.forget()
    assert not made.path.exists()


def test_a_read_only_cache(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store.Path, "mkdir", refuse)
    made = make()
    assert made.folder and runs(home) == 1


def test_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(store.tempfile, "mkdtemp", full)
    with pytest.raises(NotCompiled, match="No space left"):
        make()
    monkeypatch.undo()


def test_a_record_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as changed:
        changed.setattr(store.tempfile, "mkstemp", full)
        assert make().folder  # elsewhere
    assert make().folder is None


def test_the_oldest_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = make()
    os.utime(first.path, (1, 1))
    monkeypatch.setattr(store, "MOST_BYTES", first.path.stat().st_size)
    ints = gated.program.encoded(torch.bfloat16)
    text, key = launches.prepared(ints, "sm90", "stream_16x64", False)
    second = launches.compiled(key, text, "sm90")
    assert second.path.is_file() and not first.path.exists()
    assert not first.path.with_suffix(".json").exists()


def test_a_compiler_s_words_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda, _ = compiled_cases.fake_home(home, version="13.2.0", before="echo oh no >&2; exit 3")
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    with pytest.raises(NotCompiled, match=r"failed \(3\): oh no"):
        make()
    left = [x for x in (home / "cache/scaled_mm/epilogues").iterdir() if "lock" not in x.name]
    assert not left


PROCESS = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_compiled
print(test_compiled.make().path)
"""


def started(count: int) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", PROCESS, str(Path(__file__).parent)]
    return [
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]


def test_processes_at_once_compile_once(home: Path) -> None:
    compiled_cases.fake_home(home, before="sleep 2")
    processes = started(3)
    paths = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    assert len(paths) == 1 and runs(home) == 1


def test_a_kill_leaves_nothing_that_is_taken(home: Path) -> None:
    """Before, while and after the compiler writes the library."""
    rng = random.Random(0)
    compiled_cases.fake_home(home, before='echo half > "$out"; sleep 0.2')
    (process,) = started(1)
    while not runs(home):
        time.sleep(0.01)
    time.sleep(rng.random() / 4)
    process.send_signal(signal.SIGKILL)
    process.wait()
    compiled_cases.fake_home(home)
    made = make()
    assert made.path.read_bytes() == (home / "given.so").read_bytes()


@pytest.mark.parametrize("step", range(6))
def test_a_kill_between_any_two_steps(
    home: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """What keeps a library stops at its n-th call of the system, as a kill would."""

    class Killed(BaseException):
        pass

    calls = 0

    def counted(real: Any) -> Any:
        def call(*arguments: Any, **more: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > step:
                raise Killed
            return real(*arguments, **more)

        return call

    make().verified()  # of a library before
    shutil.copy(home / "given.so", home / "other.so")
    folder = store.Store(home / "cache/scaled_mm/epilogues")
    (before,) = folder.find_all("")
    key = before.key
    with monkeypatch.context() as changed:
        for name in ("replace", "unlink", "chmod"):
            changed.setattr(store.Path, name, counted(getattr(Path, name)))
        changed.setattr(store.json, "dump", counted(json.dump))
        (home / "cache/scaled_mm/epilogues/made.so").write_bytes(b"another library")
        with suppress(Killed):
            folder.keep(key, home / "cache/scaled_mm/epilogues/made.so", "")
    found = folder.find(key)
    if found:
        old = found.path.read_bytes() == (home / "given.so").read_bytes()
        assert found.verified == old


# --- the mode -------------------------------------------------------------------------------------


def test_modes() -> None:
    before = _library.jit_mode()
    with compiled.in_mode("require"):
        assert _library.jit_mode() == "require"
    assert _library.jit_mode() == before
    with pytest.raises(ValueError, match="SCALED_MM_JIT must be off, on, require, got maybe"):
        compiled.set_mode("maybe")


def called(ints: list[int], kernel: bytes) -> tuple[int, str]:
    """What the CUDA library gets."""
    error = ctypes.create_string_buffer(200)
    numbers = (ctypes.c_int64 * len(ints))(*ints)
    address = compiled._CALLBACK(
        numbers, len(ints), b"sm90", kernel, 0, 0, ctypes.addressof(error), 200
    )
    return address, error.value.decode()


def test_what_the_library_is_told() -> None:
    ints = gated.program.encoded(torch.bfloat16)
    with compiled.in_mode("on"), pytest.warns(UserWarning, match="interpreted.*one output"):
        assert called(ints, b"ping_64x64_2x1") == (0, "")
    with compiled.in_mode("require"):
        address, error = called(ints, b"ping_64x64_2x1")
        assert address == -1 and error.startswith("SCALED_MM_JIT=require: ping_64x64_2x1 writes")


def test_nothing_is_compiled_by_an_import(home: Path) -> None:
    code = "import scaled_mm, scaled_mm.epilogue, scaled_mm.compiled.launches"
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "SCALED_MM_JIT": "on"},
        check=True,
    )
    assert not runs(home) and not (home / "cache").exists()


def test_nothing_is_compiled_by_a_fake(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(per_token, "_built_in", None)
    with compiled.in_mode("require"), FakeTensorMode():
        on = {"device": "cuda"}
        a, b = (torch.empty(shape, dtype=torch.int8, **on) for shape in ((4, 16), (16, 8)))
        given = {
            x.name: torch.empty(
                (4, 1) if x.axis is Axis.COL else (8,),
                dtype=torch.float32 if x.is_float else torch.int32,
                **on,
            )
            for x in per_token.program.operands
        }
        assert per_token(a, b, **given).shape == (4, 8)
    assert not runs(home)


def test_a_mode_that_there_is_not() -> None:
    command = [sys.executable, "-c", "import scaled_mm"]
    env = {**os.environ, "SCALED_MM_JIT": "maybe"}
    ran = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True)
    assert "ValueError: SCALED_MM_JIT must be off, on, require, got maybe" in ran.stderr


# --- the compiler itself --------------------------------------------------------------------------


@pytest.mark.skipif(isinstance(toolchain.find(), str), reason=str(toolchain.find()))
def test_a_streaming_kernel_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = make()
    assert ctypes.CDLL(str(made.path)).scaled_mm_launch
