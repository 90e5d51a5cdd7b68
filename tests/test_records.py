"""The soak's calls, which run on GPUs alone, are calls of today."""

import numpy as np
import pytest
import soak_calls
import torch


@pytest.mark.parametrize("name", [*soak_calls.KINDS, soak_calls.LAST[0]])
def test_calls_of_the_soak_are_calls_of_today(name: str) -> None:
    """They go to ops whose signatures may change, and the soak itself runs on GPUs alone."""
    makers = {kind: make for kind, (_, make) in soak_calls.KINDS.items()} | dict([soak_calls.LAST])
    for seed in range(3):
        operands, op = makers[name](np.random.default_rng(seed))
        made = op(**operands)
        assert (made if isinstance(made, torch.Tensor) else made[0]).numel() > 0
