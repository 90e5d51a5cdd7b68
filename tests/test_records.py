"""The figures that runs on a GPU leave in docs/reliability.md."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import soak_calls
import soak_cuda
import torch

SOAK = {
    "device": "A GPU",
    "torch": "2.11.0",
    "kernels": 21,
    "products": {
        "scaled_mm": {"calls": 15997, "elements": 10, "different": 2},
        "quantize_int8": {"calls": 3, "elements": 4, "different": 1},
        "digest": "5fe3",
        "seconds": 56,
    },
    "memory": {"calls": 7, "failures": 9, "wrong": 0, "seconds": 1},
    "devices": {"left out": "there is one GPU", "seconds": 0},
}


def test_parts_of_one_file(tmp_path: Path) -> None:
    head = {name: SOAK[name] for name in ("device", "torch", "kernels")}
    file = tmp_path / "soak.json"
    assert soak_cuda.of_before(None, head) == soak_cuda.of_before(file, head) == {}
    file.write_text(json.dumps(SOAK))
    assert soak_cuda.of_before(file, head) == SOAK
    assert soak_cuda.of_before(file, {**head, "kernels": 22}) == {}


@pytest.mark.parametrize("name", [*soak_calls.KINDS, soak_calls.LAST[0]])
def test_calls_of_the_soak_are_calls_of_today(name: str) -> None:
    """They go to ops whose signatures may change, and the soak itself runs on GPUs alone."""
    makers = {kind: make for kind, (_, make) in soak_calls.KINDS.items()} | dict([soak_calls.LAST])
    for seed in range(3):
        operands, op = makers[name](np.random.default_rng(seed))
        made = op(**operands)
        assert (made if isinstance(made, torch.Tensor) else made[0]).numel() > 0
