"""Products of several experts on the GPU: the bits of `scaled_mm` for each, on every kernel, and in
graphs that are replayed with other routings."""

import numpy as np
import pytest
import torch
from cuda_support import DEVICE, GPU, forced, kernels, on_device, streams_only
from cuda_support import assert_outputs as assert_all
from grouped_cases import cases, large_cases, one_by_one, packed, routing
from quantize_cases import IN_DTYPES

from scaled_mm import grouped_mm, moe_combine, moe_sort

pytestmark = GPU
ROWS = ["", *kernels("grouped")]


@pytest.mark.parametrize("row", ROWS)
def test_the_bits_of_each_expert(row: str) -> None:
    for i, operands in enumerate([*cases(150), *large_cases(8)]):
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


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tokens_are_sorted_by_their_experts(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    for tokens, k, experts in ((0, 2, 4), (1, 1, 1), (1, 8, 256), (700, 2, 8), (3000, 8, 130)):
        index = torch.from_numpy(rng.integers(-1, experts + 2, (tokens, k))).to(dtype)
        expected = moe_sort(index, experts)._asdict()
        there = {name: x.to(DEVICE) for name, x in expected.items()}
        for given in (index, index.t().contiguous().t()):
            got = moe_sort(given.to(DEVICE), experts)._asdict()
            assert_all("moe_sort", got, there, tokens, k, experts)


@pytest.mark.parametrize("dtype", IN_DTYPES)
def test_what_experts_make_of_a_token_is_added_up(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    for tokens, k, n in ((0, 2, 8), (1, 1, 1), (1, 8, 2048), (33, 2, 130), (500, 8, 1001)):
        y = torch.from_numpy(rng.standard_normal((tokens * k, n), dtype=np.float32)).to(dtype)
        weights = torch.from_numpy(rng.random((tokens, k), dtype=np.float32))
        places = torch.from_numpy(rng.permutation(tokens * k).astype(np.int32)).view(tokens, k)
        more = torch.from_numpy(rng.standard_normal((tokens, n), dtype=np.float32))
        for options in ({}, {"residual": more.to(dtype), "out_dtype": torch.float32}):
            expected = {"d": moe_combine(y, weights, places, **options).to(DEVICE)}
            there = on_device({"y": y, "weights": weights, "places": places, **options})
            got = {"d": moe_combine(**there)}
            assert_all("moe_combine", got, expected, tokens, k, n)
