"""`grouped_mixed_mm` on the GPU: within `mixed_mm`'s bound for each expert on every kernel, the
same bits again, in graphs that are replayed with other routings, and without a wait."""

import functools
from typing import NamedTuple

import numpy as np
import pytest
import torch
from cuda_support import DEVICE, GPU, assert_outputs, forced, kernels, streams_only
from grouped_cases import routing
from grouped_mixed_cases import Operands, bound, operands_of, packed, to
from mixed_cases import KINDS
from test_awq import assert_bounded
from test_cuda_experts import both, inputs, moved
from torch import Tensor

import scaled_mm
from scaled_mm import grouped_mixed_mm

pytestmark = GPU
ROWS = ["", *kernels("grouped_lowbit")]


class Case(NamedTuple):
    """Operands on the device, what is exact and how far from it one may be."""

    there: Operands
    exact: Tensor
    error: Tensor

    @property
    def rows(self) -> int:
        """Of D."""
        return len(self.exact)


@functools.cache
def cases() -> list[Case]:
    """The first ones' groups are such that the weight lies in words, if they are not of 32."""
    made = [operands_of(seed, 20, (1, 10, 32)) for seed in range(18)]
    made += [operands_of(seed, 150, (32, 64, 128)) for seed in range(18, 60)]
    return [Case(packed(to(DEVICE, operands)), *bound(operands)) for operands in made]


@pytest.mark.parametrize("row", ROWS)
def test_within_the_bound_of_each_expert(row: str) -> None:
    for i, (there, exact, error) in enumerate(cases()):
        with forced(row):
            got, again = grouped_mixed_mm(**there), grouped_mixed_mm(**there)
        assert_bounded(got.cpu(), exact, error, row, i)
        assert_outputs(row or "chosen", {"again": again}, {"again": got}, i)


@pytest.mark.parametrize(("bits", "zero"), KINDS)
def test_sizes_of_nothing(bits: int, zero: str) -> None:
    """K = 0, experts without rows, and rows without experts."""
    stored = torch.uint8 if zero == "integer" else torch.int8
    for experts, rows, n, k in ((3, 5, 16, 0), (2, 0, 8, 32), (1, 7, 8, 64), (4, 9, 6, 32)):
        q = torch.ones(experts, k, n, dtype=stored, device=DEVICE)
        scales = torch.ones(experts, 1, n, device=DEVICE).half()
        zeros = None if zero == "none" else torch.zeros_like(scales)
        zeros = zeros.to(stored) if zeros is not None and zero == "integer" else zeros
        w = scaled_mm.pack_weight(q, scales, zeros=zeros, bits=bits)
        x, bias = torch.ones(rows, k, device=DEVICE).half(), torch.full((experts, n), 3.0)
        offsets = torch.zeros(experts, dtype=torch.int32, device=DEVICE)
        got = grouped_mixed_mm(x, w, offsets, bias=bias.to(DEVICE))
        assert torch.equal(got, torch.zeros_like(got))
        offsets[-1] = rows
        got = grouped_mixed_mm(x, w, offsets, bias=bias.to(DEVICE))
        assert torch.equal(got, torch.full_like(got, 3.0 + k))


@streams_only
@pytest.mark.parametrize("row", ROWS)
def test_graphs_are_replayed_with_other_routings(row: str) -> None:
    rng = np.random.default_rng(0)
    for i, case in enumerate(cases()[18:30]):
        there = {**case.there, "offsets": case.there["offsets"].clone()}
        graph = torch.cuda.CUDAGraph()
        with forced(row):
            grouped_mixed_mm(**there)  # loads the kernel
            with torch.cuda.graph(graph):
                d = grouped_mixed_mm(**there)
            for _ in range(3):
                offsets = routing(rng, case.rows, len(there["offsets"]))
                there["offsets"].copy_(torch.tensor(offsets, dtype=torch.int32))
                graph.replay()
                expected = grouped_mixed_mm(**there)
                assert_outputs(row or "chosen", {"replayed": d}, {"replayed": expected}, i)


@streams_only
def test_nothing_waits_for_the_device() -> None:
    for case in cases()[:30]:
        grouped_mixed_mm(**case.there)
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            grouped_mixed_mm(**case.there)
        finally:
            torch.cuda.set_sync_debug_mode("default")


@streams_only
@pytest.mark.parametrize("row", ROWS)
def test_what_names_nothing_is_not_read(row: str) -> None:
    """Offsets that fall or lie beyond, rows that x has not: the outputs have no meaning, but no
    access is wrong."""
    for seed, case in enumerate(cases()[18:40]):
        if not case.rows:
            continue
        rng = np.random.default_rng(seed)
        experts = len(case.there["offsets"])

        def wild(count: int, rng: np.random.Generator = rng) -> Tensor:
            numbers = rng.integers(-(2**31), 2**31, count, dtype=np.int64).astype(np.int32)
            return torch.from_numpy(numbers).to(DEVICE)

        there = {**case.there, "offsets": wild(experts), "rows": wild(case.rows)}
        with forced(row):
            grouped_mixed_mm(**there)
        torch.cuda.synchronize()


@torch.inference_mode()
@pytest.mark.parametrize("scheme", ["W8A16", "w4a16-channel", "w4a16-g16-asymmetric"])
def test_layers_of_experts(scheme: str) -> None:
    here, there = both("Qwen3MoeForCausalLM", scheme)
    there(*moved(inputs(3)))  # loads the kernels
    for tokens in (0, 1, 2, 33, 300):
        given = inputs(tokens)
        got = there(*moved(given))
        expected = here(*given).float()
        assert got.shape == expected.shape
        if tokens:
            assert (got.cpu().float() - expected).abs().max() <= 0.02 * expected.abs().max(), tokens
