"""Epilogues compiled on demand: their source, their key and when they are (the folder that keeps
them: test_compiled_store.py); without a GPU."""

import ctypes
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from compiled_cases import at_home, gated, per_token, runs
from torch._subclasses import FakeTensorMode

from scaled_mm import _library, compiled
from scaled_mm import epilogue as ep
from scaled_mm._program import Axis
from scaled_mm.compiled import launches, toolchain
from scaled_mm.compiled.source import NotCompiled, lines, source

ROOT = Path(__file__).resolve().parent.parent
LINES = lines(toolchain.CSRC, "sm90")


def text_of(made: ep.Epilogue, kernel: str, light: bool = False) -> str:
    dtypes = made.program.dtypes(torch.bfloat16)
    return source(made.program, dtypes, LINES[kernel], light)


def test_names_of_the_user_reach_no_compiler() -> None:
    namespace: dict[str, Any] = {"ep": ep}
    exec("def evil(acc: ep.Acc, system: ep.Row):\n return ep.to_float(acc) * system", namespace)
    text = text_of(ep.epilogue(namespace["evil"]), "stream_8x64")
    assert "evil" not in text and "system" not in text


def test_what_a_kernel_does_not_take() -> None:
    with pytest.raises(NotCompiled, match="writes one output, the program has 2"):
        text_of(gated, "ping_64x64_2x1")
    with pytest.raises(NotCompiled, match="no registers"):
        text_of(per_token, "ping_128x192_2x1")
    assert text_of(per_token, "ping_128x192_2x1", light=True)
    with pytest.raises(NotCompiled, match="not compiled for sm90/other"):
        launches.prepared(per_token.program.encoded(torch.float16), "sm90", "other", True)


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


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return at_home(tmp_path, monkeypatch)


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
