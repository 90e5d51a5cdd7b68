"""Products of several experts on the GPU: the bits of `scaled_mm` for each, on every kernel, and in
graphs that are replayed with other routings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from cuda_support import DEVICE, GPU, forced, kernels, on_device, streams_only
from cuda_support import assert_outputs as assert_all
from test_grouped_mm import cases, grouped_mm, one_by_one, packed, routing

pytestmark = GPU
ROWS = ["", *kernels("grouped")]


@pytest.mark.parametrize("row", ROWS)
def test_the_bits_of_each_expert(row: str) -> None:
    for i, operands in enumerate(cases(150)):
        expected = {name: one_by_one(operands).to(DEVICE) for name in ("plain", "packed")}
        there = on_device(operands)
        with forced(row):
            got = {"plain": grouped_mm(**there), "packed": grouped_mm(**packed(there))}
        assert_all(row or "chosen", got, expected, i)


@streams_only
@pytest.mark.parametrize("row", ROWS)
def test_graphs_are_replayed_with_other_routings(row: str) -> None:
    rng = np.random.default_rng(0)
    for i, operands in enumerate(cases(30)):
        there = packed(on_device(operands))
        graph = torch.cuda.CUDAGraph()
        with forced(row):
            grouped_mm(**there)  # loads the kernel
            with torch.cuda.graph(graph):
                d = grouped_mm(**there)
        for _ in range(5):
            m, experts = len(d), len(operands["offsets"])
            offsets = torch.tensor(routing(rng, m, experts), dtype=torch.int32)
            there["offsets"].copy_(offsets)
            graph.replay()
            expected = one_by_one({**operands, "offsets": offsets}).to(DEVICE)
            assert_all(row or "chosen", {"replayed": d}, {"replayed": expected}, i)
