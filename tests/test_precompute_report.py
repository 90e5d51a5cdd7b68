"""`scaled-mm precompute`: its report, and the memory that it takes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from checkpoint_cases import INT8, quantization_config, state_of, tensors, write
from helpers import assert_bits, run_python

from scaled_mm import reference
from scaled_mm_cli.main import main


def test_the_report_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = quantization_config(True, False)
    symmetric = {**INT8, "dynamic": True, "strategy": "token", "symmetric": True}
    group = config["config_groups"]["group_0"]
    config["config_groups"]["b"] = {**group, "targets": ["up"], "input_activations": symmetric}
    write(tmp_path / "in", tensors(True, False), config)
    assert main(["precompute", f"{tmp_path}/in", "-o", f"{tmp_path}/out", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["terms"] == [
        {
            "layer": "down",
            "name": "azp_adj",
            "channels": 21,
            "zero_point": None,
            "rounded_from": None,
            "added": True,
        }
    ]
    assert report["symmetric"] == ["up"]
    size = (tmp_path / "out" / "model.safetensors").stat().st_size
    assert report["bytes"] == size == report["shards"][0]["bytes"]


def test_memory_does_not_grow_with_the_shards(tmp_path: Path) -> None:
    """Two shards of one weight each, 64 MB: the process grows by far less than one."""
    k, n = 8192, 8192
    weight = torch.randint(-128, 128, (n, k), dtype=torch.int8)
    state = {"a.weight": weight, "b.weight": weight.flip(0)}
    for layer in ("a", "b"):
        state[f"{layer}.weight_scale"] = torch.ones(n, 1)
    # In the order of the names: a.weight, a.weight_scale, b.weight, b.weight_scale, in turn.
    source = write(tmp_path / "in", state, quantization_config(True, False), shards=4)
    grown = run_python(
        "import resource, sys\n"
        "from scaled_mm.precompute import precompute\n"
        "used = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = used()\n"
        "precompute(*sys.argv[1:])\n"
        "print(used() - before)",
        str(source),
        str(tmp_path / "out"),
    )
    assert int(grown) < 24 * 1024, f"{grown} kB"
    out = state_of(tmp_path / "out")
    assert_bits(out["a.azp_adj"], reference.azp_adj(weight.t()))
