"""Fixtures of all tests: the instruction set that the kernels use, and poisoned outputs. At the end
of a run on a GPU, what was compared there."""

import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

# One BLAS thread, set before numpy is loaded: the reference's products are small, and OpenBLAS's
# threads spin while they wait for each other.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Two OpenMP threads whatever the machine has, so that work is shared everywhere, and shared in the
# same way. They sleep while they wait: several processes run tests at once.
os.environ.setdefault("OMP_NUM_THREADS", "2")
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Kernels are chosen by the tables' own numbers, not by what `scaled-mm tune` measured here.
os.environ["SCALED_MM_TUNING"] = "off"

import cuda_support
import pytest
import torch
from helpers import ISAS, Cli
from hypothesis import HealthCheck, settings

from scaled_mm import _library

settings.register_profile(
    "scaled_mm",
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],  # isa holds for all examples
)
# Some of the examples are enough for `make test`; the slow suite takes them all.
settings.register_profile("some", settings.get_profile("scaled_mm"), max_examples=50)


@pytest.hookimpl(trylast=True)  # after pytest's own, which makes the factory of folders
def pytest_configure(config: pytest.Config) -> None:
    keep_inside(config._tmp_path_factory.getbasetemp())  # type: ignore[attr-defined]
    fast = "not slow" in config.getoption("markexpr")
    settings.load_profile("some" if fast else "scaled_mm")


def keep_inside(folder: Path) -> None:
    """What tests, torch and their processes make beside `tmp_path` lies in the session's folder
    too. pytest removes it at the end, or, when the session was killed, in one of some days later.

    torch.compile's folder is none that sessions share, but workers of one do: it does not ask
    whether the ops still have the schemas, or the machine the instructions, that something was
    compiled for.
    """
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(scratch / "inductor"))
    os.environ.setdefault("HYPOTHESIS_STORAGE_DIRECTORY", str(scratch / "hypothesis"))


@pytest.fixture(params=ISAS)
def isa(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Each instruction set that this machine runs, forced in turn."""
    monkeypatch.setenv("SCALED_MM_CPU_ISA", request.param)  # for processes that the test starts
    with _library.forced_cpu_isa(request.param):
        yield request.param


@pytest.fixture
def poisoned() -> Iterator[None]:
    """Memory that torch.empty hands out holds NaN, or the largest integer."""
    assert torch.utils.deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture
def threads() -> Iterator[None]:
    """The test may call torch.set_num_threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def dynamo() -> Iterator[None]:
    """Nothing is compiled before the test, nor after it."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def umask() -> Iterator[None]:
    """The test may call os.umask."""
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """What a command line prints that ends with `code`; its words are one string, or more behind
    it. Of a refusal (2): the one line that it is."""

    def run(line: str, *more: object, code: int = 0) -> str:
        from scaled_mm_cli.main import main

        assert main([*line.split(), *map(str, more)]) == code
        out, err = capsys.readouterr()
        if code != 2:
            return out
        assert out == "" and err.count("\n") == 1
        return err

    return run


@pytest.fixture
def unregistered() -> Iterator[None]:
    """The import registers in transformers, though a test imported it before; it is undone."""
    name = "scaled_mm.integrations.transformers"
    sys.modules.pop(name, None)
    yield
    if module := sys.modules.pop(name, None):
        module.unregister()


@pytest.fixture
def ours() -> Iterator[ModuleType]:
    """The module, registered in transformers for the time of a test."""
    import scaled_mm.integrations.transformers as module

    module.register()
    yield module
    module.unregister()


@pytest.fixture(autouse=True)
def compared(request: pytest.FixtureRequest) -> Iterator[None]:
    """What the test compared on a GPU goes into its report."""
    cuda_support.COUNTS.clear()
    yield
    if cuda_support.COUNTS:
        request.node.user_properties.append(("compared", dict(cuda_support.COUNTS)))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Cases, elements and differences of all tests, by row of the tuning table."""
    total: dict[str, list[int]] = {}
    for report in (r for reports in terminalreporter.stats.values() for r in reports):
        if getattr(report, "when", None) != "teardown":
            continue
        for what, counts in dict(report.user_properties).get("compared", {}).items():
            total[what] = [x + y for x, y in zip(total.get(what, [0] * 3), counts, strict=True)]
    if not total:
        return
    terminalreporter.section(f"compared on {cuda_support.DEVICE}")
    total["all"] = [sum(column) for column in zip(*total.values(), strict=True)]
    for what, (cases, elements, different) in total.items():
        line = f"{what}: {cases:,} cases, {elements:,} elements, {different:,} different"
        terminalreporter.write_line(line)
