"""Tests write inside their session's own temporary folder, and nothing of that stays."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from helpers import run_python

HERE = Path(__file__).resolve().parent
ASK = "import tempfile; print(tempfile.gettempdir())"


def test_temporary_folders(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Those of this process, of the processes that it starts, and of what torch compiles."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # the session's; the worker's lies in it
    made = [tempfile.gettempdir(), os.environ["TMPDIR"], run_python(ASK).strip()]
    made += [os.environ["TORCHINDUCTOR_CACHE_DIR"], os.environ["HYPOTHESIS_STORAGE_DIRECTORY"]]
    for path in map(Path, made):
        assert path.is_relative_to(folder), path


def session(folder: Path, *options: str) -> subprocess.Popen[str]:
    """pytest with a temporary folder of its own: a test that compiles a model, a group of ranks."""
    told = ("PYTEST_", "TORCHINDUCTOR_", "HYPOTHESIS_")
    env = {name: x for name, x in os.environ.items() if not name.startswith(told)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    return subprocess.Popen(
        command,
        cwd=HERE.parent,
        env={**env, "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def left_in(folder: Path) -> list[str]:
    """Files, but for pytest's links to its last session."""
    found = (path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink())
    return [str(x.relative_to(folder)) for x in found if not x.name.endswith("current")]


WHAT = (
    "tests/test_torch.py",
    "tests/test_parallel.py",
    "-k",
    "norm or on_the_cpu",
    "-m",
    "not slow",
)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["", "xdist"])
def test_a_session_leaves_nothing(tmp_path: Path, workers: tuple[str, ...]) -> None:
    done = session(tmp_path, *workers, "-x", *WHAT)
    said, _ = done.communicate()
    assert done.returncode == 0, said[-5000:]
    assert left_in(tmp_path) == []


@pytest.mark.slow
def test_a_killed_session(tmp_path: Path) -> None:
    """All that it leaves lies in pytest's own folder, which a later session removes."""
    running = session(tmp_path, "-n", "1", *WHAT)
    end = time.monotonic() + 100
    while not list(tmp_path.rglob("inductor")) and running.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    os.killpg(running.pid, signal.SIGKILL)
    running.communicate()
    assert [x.name.partition("-of-")[0] for x in tmp_path.iterdir()] == ["pytest"]
