"""The list of mutants fits the sources: `make mutate` takes hours and must not find it stale."""

from __future__ import annotations

from pathlib import Path

import mutate
import pytest
from mutants import MUTANTS, stale

ROOT = Path(__file__).resolve().parent.parent


def test_every_mutant_has_its_place_and_its_tests() -> None:
    assert stale(ROOT) == []


def test_mutants_are_told_apart() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


def test_who_needs_a_gpu() -> None:
    """What is of the CUDA library alone; what both share is tested where it can be noticed."""
    for mutant in MUTANTS:
        cuda = mutant.path.startswith("csrc/cuda/") and not mutant.path.endswith("model.cpp")
        assert mutant.gpu or not cuda, mutant.name
        tests = mutant.tests.split()
        assert all(test.startswith("test_cuda_") for test in tests) == mutant.gpu, mutant.name


def test_what_must_not_compile() -> None:
    assert mutate.judge_build("").word == "SURVIVED"
    assert mutate.judge_build("a.h:1:2: error: expected ';'").word == "BROKEN"
    verdict = mutate.judge_build("a.h:1: error: static assertion failed: X must be Y\nmore")
    assert (verdict.word, verdict.detail) == ("killed", "static_assert: X must be Y")
    assert all(mutant.compiled for mutant in MUTANTS if mutant.breaks_build)


def test_a_sample_is_of_the_commit() -> None:
    first, again, other = (mutate.sample(8, seed) for seed in ("abc", "abc", "abd"))
    assert first == again
    assert first != other
    assert len(first) == 8
    assert sum(mutant.compiled for mutant in first) == mutate.COMPILED_IN_A_SAMPLE
    assert not any(mutant.gpu for mutant in first)


def test_staleness_names_file_and_text(tmp_path: Path) -> None:
    lines = stale(tmp_path)
    assert len(lines) >= 2 * len(MUTANTS)
    assert f"{MUTANTS[0].name}: there is no file {MUTANTS[0].path}" in lines
    (tmp_path / MUTANTS[0].path).parent.mkdir(parents=True)
    (tmp_path / MUTANTS[0].path).write_text("nothing of the kind")
    expected = f"{MUTANTS[0].name}: {MUTANTS[0].path} holds 0 times {MUTANTS[0].old!r}"
    assert expected in stale(tmp_path)


@pytest.mark.parametrize("words", [["no-such-mutant"], ["--sample", "0"]])
def test_nothing_to_do_is_an_error(words: list[str]) -> None:
    with pytest.raises(SystemExit):
        mutate.main(words)
