"""Tensor parallelism: a world of 4 processes on the CPU, one of 2 in the slow suite, one of 2 on
GPUs.

A world is started once and runs all cases (`parallel_world.py`); each test looks up what became of
one of them on every rank.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import parallel_world
import pytest
import torch
from checkpoint_cases import encoded, entry
from helpers import assert_bits
from parallel_rank import CASES
from safetensors.torch import save_file

from scaled_mm import _library
from scaled_mm.checkpoint.files import TensorFile
from scaled_mm.nn import ScaledLinear
from scaled_mm.parallel.shares import Cut, Part, Share, Side, check

WORLDS = {"gloo": (4,), "gloo of 2": (2,), "nccl": (2,)}
NO_GPUS = "fewer than 2 CUDA devices, or no CUDA library"


def two_gpus() -> bool:
    return _library.HAS_CUDA and torch.cuda.device_count() > 1


Became = dict[tuple[int, int], dict[str, str | None]]


def started(name: str, folder: Path) -> Became:
    """What became of each case on each rank of each world."""
    worlds, backend = WORLDS[name], name.partition(" ")[0]
    path = os.pathsep.join([str(Path(__file__).parent), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, parallel_world.__file__, str(folder), backend, *map(str, worlds)],
        capture_output=True,
        text=True,
        timeout=500,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
    )
    ranks = [(world, rank) for world in worlds for rank in range(world)]
    notes = {at: folder / "{}-{}.json".format(*at) for at in ranks}
    missing = [path.name for path in notes.values() if not path.exists()]
    assert not missing and done.returncode == 0, f"{missing}\n{done.stdout}{done.stderr}"
    return {at: json.loads(path.read_text()) for at, path in notes.items()}


@pytest.fixture(scope="module")
def became(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Became:
    return started(request.param, tmp_path_factory.mktemp(request.param))


def assert_well(became: Became, case: str) -> None:
    for (world, rank), cases in became.items():
        at = f"rank {rank} of {world}"
        failed = [name for name, trace in cases.items() if trace]
        assert case in cases, f"{at} did not come to it; before it failed: {failed}"
        assert cases[case] is None, f"{at}\n{cases[case]}"


@pytest.mark.parametrize(
    "became", ["gloo", pytest.param("gloo of 2", marks=pytest.mark.slow)], indirect=True
)
@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(became: Became, case: str) -> None:
    assert_well(became, case)


@pytest.mark.gpu
@pytest.mark.skipif(not two_gpus(), reason=NO_GPUS)
@pytest.mark.parametrize("became", ["nccl"], indirect=True)
@pytest.mark.parametrize("case", CASES)
def test_on_gpus(became: Became, case: str) -> None:
    assert_well(became, case)


@pytest.mark.parametrize("dtype", [torch.int8, torch.bfloat16, torch.int32, torch.bool])
def test_parts_of_a_stored_tensor(tmp_path: Path, dtype: torch.dtype) -> None:
    x = torch.randint(-100, 100, (5, 3, 4), generator=torch.Generator().manual_seed(0)).to(dtype)
    before = torch.arange(7, dtype=torch.int8)  # so that the data begins at odd addresses
    save_file({"a": before, "x": x, "scalar": x[0, 0, 0].clone()}, tmp_path / "x.safetensors")
    file = TensorFile(tmp_path / "x.safetensors")
    for axis, size in enumerate(x.shape):
        for begin in range(size + 1):
            for end in range(begin, size + 1):
                part = file.read_part("x", axis, begin, end)
                assert_bits(part, x.narrow(axis, begin, end - begin).contiguous(), axis, begin, end)


def test_a_part_of_a_dtype_that_torch_has_not(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(encoded({"x": entry(dtype="F4", shape=[4, 8])}))
    with pytest.raises(ValueError, match=r"x.safetensors: x: torch has no dtype for F4$"):
        TensorFile(path).read_part("x", 0, 0, 2)


def test_a_file_that_ends_early(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"x": torch.ones(4, 6)}, path)
    file = TensorFile(path)
    os.truncate(path, path.stat().st_size - 4)
    assert file.read_part("x", 0, 0, 3).sum() == 18
    for part in ((0, 3, 4), (1, 5, 6)):
        with pytest.raises(ValueError, match=r"x.safetensors: x: the file ended early"):
            file.read_part("x", *part)


def test_a_part_that_ends_within_a_word() -> None:
    """20 zero points of 4 bits in 3 words: the second of two ranks has the last one too."""
    words = Cut(0, 8)
    of = {rank: Share(Side.OUT, 20, 2, 10 * rank, 10 * rank + 10) for rank in (0, 1)}
    assert of[0].within(words, (3, 7)) == Part(0, 0, 2)
    assert of[1].within(words, (3, 7)) == Part(0, 1, 3)


def test_as_wide_as_an_int32_sum_takes() -> None:
    """Of all ranks together."""
    check(ScaledLinear, Share(Side.IN, 131071, 2, 0, 65536))
    with pytest.raises(ValueError, match="in_features must be at most 131071, got 131072"):
        check(ScaledLinear, Share(Side.IN, 131072, 2, 0, 65536))
