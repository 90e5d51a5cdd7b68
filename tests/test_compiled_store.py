"""The folder that keeps compiled epilogues: what is taken from it, and what may go wrong."""

import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import compiled_cases
import pytest
import torch
from compiled_cases import at_home, gated, make, runs

from scaled_mm.compiled import launches, store, toolchain
from scaled_mm.compiled.source import NotCompiled

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_home(tmp_path, monkeypatch)


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


def record(path: Path) -> Path:
    return path.with_suffix(".json")


def another_format(path: Path) -> None:
    record(path).write_text(json.dumps({**json.loads(record(path).read_text()), "format": 2}))


DAMAGES: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"x"),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "no record": lambda path: record(path).unlink(),
    "broken record": lambda path: record(path).write_text("{"),
    "a list": lambda path: record(path).write_text("[]"),
    "another format": another_format,
    "anyone's": lambda path: path.chmod(0o666),
    "anyone's record": lambda path: record(path).chmod(0o622),
    "a link": lambda path: path.symlink_to(path.rename(path.with_suffix(".elsewhere"))),
}


@pytest.mark.parametrize("how", DAMAGES)
def test_what_is_broken_or_foreign_is_compiled_anew(home: Path, how: str) -> None:
    first = make()
    first.verified()
    DAMAGES[how](first.path)
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


def full(*_: Any, **__: Any) -> None:
    raise OSError(28, "No space left on device")


def test_a_cache_that_is_not_to_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Path, "mkdir", full)
    assert make().folder and runs(home) == 1


def test_a_full_disk(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.tempfile, "mkdtemp", full)
    with pytest.raises(NotCompiled, match="No space left"):
        make()


def test_a_record_that_cannot_be_written(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
import compiled_cases
print(compiled_cases.make().path)
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


@pytest.mark.skipif(isinstance(toolchain.find(), str), reason=str(toolchain.find()))
def test_a_streaming_kernel_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = make()
    assert ctypes.CDLL(str(made.path)).scaled_mm_launch
