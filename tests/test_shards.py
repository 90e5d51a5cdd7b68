"""Shards of a checkpoint that is written: cut by size, and as safetensors reads them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from torch import Tensor

from scaled_mm.checkpoint.shards import NewShard, Planned, split


def test_shards_are_cut_by_size() -> None:
    def names(most: int) -> list[list[str]]:
        sizes = {"a": 10, "b": 10, "c": 25, "d": 0, "e": 5}
        planned = [Planned(name, "U8", (size,)) for name, size in sizes.items()]
        return [[each.name for each in part] for part in split(planned, most)]

    assert names(100) == [["a", "b", "c", "d", "e"]]
    assert names(20) == [["a", "b"], ["c"], ["d", "e"]]
    assert names(1) == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_a_shard_is_what_the_package_reads(tmp_path: Path) -> None:
    """Any dtype, strides and size; every tensor aligned to its elements."""
    tensors = {
        "bytes": torch.arange(5, dtype=torch.uint8),
        "wide": torch.randn(3, 2, dtype=torch.float64),
        "turned": torch.randn(4, 3).t(),
        "half": torch.randn(7).half(),
        "one": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "flags": torch.tensor([True, False]),
    }
    planned = [Planned.like(name, x) for name, x in tensors.items()]
    shard = NewShard("s.safetensors", planned, {"format": "pt"})
    shard.write(tmp_path / shard.name, reversed(tensors.items()))
    assert (tmp_path / shard.name).stat().st_size == shard.size and len(shard.header) % 8 == 0
    with safe_open(tmp_path / shard.name, framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(tensors)
        for name, x in tensors.items():
            assert torch.equal(file.get_tensor(name), x), name
    for name, entry in shard.entries.items():
        assert entry.begin % tensors[name].itemsize == 0, name


def test_data_is_aligned() -> None:
    for length in range(1, 9):
        assert len(NewShard("s", [Planned("x" * length, "U8", (1,))], {}).header) % 8 == 0


@pytest.mark.parametrize(
    ("made", "said"),
    [
        ({"a": torch.zeros(3)}, "a must be F32"),
        ({"a": torch.zeros(2).half()}, "a must be F32"),
        ({}, "a was not made"),
    ],
)
def test_a_shard_is_written_as_planned(made: dict[str, Tensor], said: str, tmp_path: Path) -> None:
    shard = NewShard("s.safetensors", [Planned("a", "F32", (2,))], {})
    with pytest.raises(ValueError, match=said):
        shard.write(tmp_path / shard.name, made.items())
    assert not list(tmp_path.iterdir())
    with pytest.raises(ValueError, match="two tensors would have the name a"):
        NewShard("s", [Planned("a", "F32", (2,))] * 2, {})
