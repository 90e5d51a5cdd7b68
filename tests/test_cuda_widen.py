"""_widen on the GPU: the converters give every value in every lane, with the CPU's bits."""

from __future__ import annotations

import pytest
import torch
from cuda_support import (
    DEVICE,
    GPU,
    assert_outputs,
    assert_unchanged,
    on_device,
    streams_only,
)
from test_widen import GOOD, REFUSED, SIZES, WORDS, expected, kinds, random_words
from torch import Tensor

ops = torch.ops.scaled_mm
pytestmark = [*GPU, pytest.mark.usefixtures("poisoned")]


def assert_widened(words: Tensor, bits: int, signed: bool, dtype: torch.dtype) -> None:
    """The CPU's bits, on the device the words went to, which keeps them as they are."""
    options = {"bits": bits, "signed": signed, "dtype": dtype}
    there = on_device({"words": words})
    on_cpu = ops._widen(words, **options).to(DEVICE)
    got = ops._widen(there["words"], **options)
    assert_outputs("_widen", {"d": got}, {"d": on_cpu}, options)
    assert_unchanged(there, {"words": words}, options)


@kinds
@pytest.mark.parametrize("name", WORDS)
def test_every_value(name: str, bits: int, signed: bool, dtype: torch.dtype) -> None:
    assert_widened(WORDS[name], bits, signed, dtype)


@kinds
def test_sizes(bits: int, signed: bool, dtype: torch.dtype) -> None:
    """Around the ends of warps and blocks, and many blocks; also words that begin unaligned."""
    words = random_words(max(SIZES) + 3)
    for size in SIZES:
        assert_widened(words[:size], bits, signed, dtype)
        assert_widened(words[3 : size + 3], bits, signed, dtype)


@kinds
def test_many(bits: int, signed: bool, dtype: torch.dtype) -> None:
    assert_widened(random_words(5_000_011), bits, signed, dtype)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    value, rule = REFUSED[name]
    argument = name.strip()
    with pytest.raises(ValueError, match=rf"^{argument} must {rule}$"):
        ops._widen(**on_device({**GOOD, argument: value}))


@streams_only
@kinds
def test_captured_in_a_graph(bits: int, signed: bool, dtype: torch.dtype) -> None:
    """Without a warm-up; a replay follows what the words are then."""
    words = torch.zeros(1000, dtype=torch.int32, device=DEVICE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = ops._widen(words, bits=bits, signed=signed, dtype=dtype)
    later = random_words(1000)
    words.copy_(later)
    graph.replay()
    assert torch.equal(got.cpu(), expected(later, bits, signed, dtype))
