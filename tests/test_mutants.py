"""The list of mutants fits the sources: `make mutate` takes hours and must not find it stale. And
catalogue.md names tests and mutants that exist."""

from __future__ import annotations

import re
from pathlib import Path

import mutants
import mutate
import mutate_build
import mutate_random
import mutate_record
import pytest
from mutant import Mutant
from mutants import MUTANTS, has_test, stale
from mutate_report import GOOD, Report, Verdict

ROOT = Path(__file__).resolve().parent.parent


def test_every_mutant_has_its_place_and_its_tests() -> None:
    assert stale(ROOT) == []


def test_mutants_are_told_apart() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
    assert all(mutant.old != mutant.new for mutant in MUTANTS)


TABLES = (
    "model.cpp",
    "mma_sync/model.h",
    "mma_sync/kinds.h",
    ".table",
)  # that the CPU library has as well
ON_THE_CPU = ("test_widen", "test_device_stores")  # tests of device code


def test_who_needs_a_gpu() -> None:
    """What is of the CUDA library alone; what both share is tested where it can be noticed,
    constants where they are read, stores where they are played."""
    for mutant in MUTANTS:
        cuda = mutant.path.startswith("csrc/cuda/") and not mutant.path.endswith(TABLES)
        assert mutant.gpu or not cuda or mutant.tests in ON_THE_CPU, mutant.name
        tests = mutant.tests.split()
        assert tests, mutant.name
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


def test_a_bug_that_is_no_python() -> None:
    """Every test would fail with it."""
    assert mutants.unparsed("if a:\n    pass\n") == ""
    assert "indent" in mutants.unparsed("a = 1\n    b = 2\n")


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


# --- the report of a run --------------------------------------------------------------------------


def test_a_run_goes_on_where_it_was(tmp_path: Path) -> None:
    first, second, third = MUTANTS[:3]
    report = Report(tmp_path / "build/mutants.json")
    report.add(first, Verdict("killed", "FAILED here", 7))
    report.add(second, Verdict("SURVIVED"))
    again = Report(tmp_path / "build/mutants.json")
    known = again.known(first)
    assert known is not None and (known.word, known.seconds) == ("killed", 7)
    assert again.known(second) is None  # a survivor is judged again
    assert again.known(third) is None


def test_a_clone_begins_with_the_kept_verdicts(tmp_path: Path) -> None:
    here, kept = tmp_path / "build/mutants.json", tmp_path / "kept.json"
    Report(kept).add(MUTANTS[0], Verdict("killed"))
    report = Report(here, kept)
    assert report.known(MUTANTS[0]) is not None and not here.exists()
    report.add(MUTANTS[1], Verdict("SURVIVED"))
    assert Report(here, kept).verdicts.keys() == {m.name for m in MUTANTS[:2]}
    assert Report(kept).verdicts.keys() == {MUTANTS[0].name}


def test_a_verdict_holds_for_the_same_mutant_alone(tmp_path: Path) -> None:
    report = Report(tmp_path / "mutants.json")
    report.add(MUTANTS[0], Verdict("killed"))
    other = Mutant(MUTANTS[0].name, MUTANTS[0].path, MUTANTS[0].old, "else", MUTANTS[0].tests)
    assert report.known(other) is None


@pytest.mark.parametrize(
    ("code", "reason", "word"),
    [(0, "", "SURVIVED"), (0, "the same", "equivalent"), (1, "", "killed"), (1, "no", "NOTICED")],
)
def test_what_a_run_says(
    code: int, reason: str, word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.py").write_text("x = 1\n")
    seen = []

    def run_tests(job: mutate.Job, tests: str) -> mutate.Outcome:
        seen.append((job.copy / "a.py").read_text())
        return mutate.Outcome(code, "FAILED tests/test_a.py::test_x - why\n")

    monkeypatch.setattr(mutate, "run_tests", run_tests)
    job = mutate.Job(tmp_path, mutate.Plan(gpu=False, isas=["portable"]))
    verdict = mutate.judge(job, Mutant("m", "a.py", "1", "2", "test_a", reason=reason))
    assert (verdict.word, seen) == (word, ["x = 2\n"])
    assert (tmp_path / "a.py").read_text() == "x = 1\n"
    assert word not in GOOD or verdict.detail


def test_what_is_not_tried(tmp_path: Path) -> None:
    plan = mutate.Plan(gpu=False, isas=["portable"], failing={"test_a": "why"})
    job = mutate.Job(tmp_path, plan)
    verdict = mutate.judge(job, Mutant("m", "a.py", "1", "2", "test_b test_a"))
    assert verdict == Verdict("UNTRIED", "test_a fails without a mutant")
    verdict = mutate.judge(job, Mutant("m", "a.py", "1", "2", "test_b", isa="avx2"))
    assert verdict == Verdict("skipped", "this machine has no avx2")


# --- the copies, and how a bug is compiled --------------------------------------------------------


@pytest.fixture
def recipe(tmp_path: Path) -> mutate_build.Recipe:
    """Two objects that are copies of their sources, and a library of both."""
    base, compiler = tmp_path / "tree", tmp_path / "compiler"
    compiler.write_text(
        '[ "$1" = -shared ] && cat "$2" "$3" > "$5" || { [ -s "$1" ] && cp "$1" "$3"; }'
    )
    for name, text in {"csrc/a": "a", "csrc/b": "b", "build/a.o": "a", "build/b.o": "b"}.items():
        mutate_build.write(base / name, text.encode())
    mutate_build.write(base / "scaled_mm/l.so", b"ab")
    made = {name: f"{base}/build/{name}.o" for name in "ab"}
    objects = [
        mutate_build.Object(
            output=output,
            command=f"sh {compiler} {base}/csrc/{name} -o {output}",
            directory=str(base),
            reads=frozenset({f"{base}/csrc/{name}"}),
        )
        for name, output in made.items()
    ]
    link = f"sh {compiler} -shared {made['a']} {made['b']} -o build/lib.x/scaled_mm/l.so"
    return mutate_build.Recipe(base, objects, [link])


def test_a_bug_is_compiled_in_its_copy_alone(tmp_path: Path, recipe: mutate_build.Recipe) -> None:
    copy = tmp_path / "job0"
    mutate_build.copy_for_a_job(recipe.base, copy)
    library = copy / "scaled_mm/l.so"
    for path, bug, expected in (("csrc/a", "x", b"xb"), ("csrc/b", "y", b"ay")):
        (copy / path).write_text(bug)
        assert recipe.compile(path, copy, 2) == ""
        assert library.read_bytes() == expected  # the other object is that without a bug
    recipe.restore(copy)
    assert library.read_bytes() == b"ab"
    assert (recipe.base / "build/a.o").read_text() == "a"
    (copy / "csrc/a").write_text("")
    assert "exit code" in recipe.compile("csrc/a", copy, 1)


def test_what_is_left_out_of_a_copy() -> None:
    isa = (ROOT / "csrc/cpu/isa.cpp").read_bytes()
    path = Path("csrc/cpu/isa.cpp")
    assert mutate_build.trimmed(path, isa, [*mutate_build.ISAS, "portable"], None) == isa
    without = mutate_build.trimmed(path, isa, ["portable"], None)
    assert b"&portable_isa" in without and b"&avx2_isa" not in without
    table = b"// rows\nKERNEL(a, Kind, 1)\nKERNEL(b, Kind, 2)\n// end\n"
    path = Path("csrc/cuda/sm90/int8.table")
    assert mutate_build.trimmed(path, table, [], None) == table
    assert mutate_build.trimmed(path, table, [], ["b"]) == b"// rows\nKERNEL(b, Kind, 2)\n// end\n"


def test_the_figures_in_a_document() -> None:
    python, compiled, cuda = (
        next(m for m in MUTANTS if mutate_record.language(m) == kind)
        for kind in ("Python", "C++", "CUDA")
    )
    words = {python.name: "killed", compiled.name: "SURVIVED", cuda.name: "UNTRIED"}
    figures = mutate_record.table([python, compiled, cuda], words)
    rows = [line.split(" | ") for line in figures.splitlines() if line.startswith("| ")][1:]
    assert [[int(x.strip("| ")) for x in row[1:]] for row in rows] == [
        [1, 1, 0, 0, 0],
        [1, 0, 0, 1, 0],
        [1, 0, 0, 0, 1],
        [3, 1, 0, 1, 1],
    ]
    text = f"before\n{mutate_record.BEGIN}\nold\n{mutate_record.END}\nafter\n"
    written = mutate_record.record(text, figures)
    assert written == text.replace("old", figures)
    assert mutate_record.record(written, "old") == text
    with pytest.raises(SystemExit, match="must hold"):
        mutate_record.record("no marks", figures)


def test_verdicts_of_several_machines(tmp_path: Path) -> None:
    first, second, third = MUTANTS[:3]
    reports = [Report(tmp_path / name) for name in ("here.json", "there.json")]
    for report, words in zip(reports, (["UNTRIED", "killed"], ["killed", "SURVIVED"]), strict=True):
        for mutant, word in zip((first, second), words, strict=True):
            report.add(mutant, Verdict(word))
        report.add(third, Verdict("killed"))
    reports[0].verdicts[third.name].key = "of other sources"
    reports[0].write()
    paths = [report.path for report in reports]
    whole = mutate_record.together(paths, tmp_path / "kept.json")
    assert whole.verdicts.keys() == {first.name, second.name, third.name}
    assert all(whole.known(mutant) for mutant in (first, second, third))
    assert "Verdicts of earlier sources: 0." in mutate_record.figures_of(whole)
    whole = mutate_record.together(paths[:1], tmp_path / "kept.json")
    assert whole.verdicts[third.name].word == "killed" and not whole.known(third)
    assert "Verdicts of earlier sources: 1." in mutate_record.figures_of(whole)


# --- random bugs ----------------------------------------------------------------------------------

SOURCE = b"""
def f(x: int = 7, y: bool = True) -> "list[3]":
    if not (x < y and x):
        raise ValueError(f"{x + 2}")
    g(x //
      2)
"""


def test_random_bugs() -> None:
    """Of everything but annotations and messages; each parses, and its place is found again."""
    edits = {(SOURCE[a:b].strip(), text.strip()) for a, b, text in mutate_random.edits(SOURCE)}
    assert edits == {
        (b"7", "8"),
        (b"True", "False"),
        (b"not (x < y and x)", "False"),
        (b"not", ""),
        (b"<", "<="),
        (b"and", "or"),
        (b"g(x //\n      2)", "pass"),
        (b"//", "*"),
        (b"2", "3"),
    }
    made = mutate_random.possible()
    assert len(made) > 5000 and all(mutant.tests for mutant in made)
    for mutant in made[::100]:
        source = (ROOT / mutant.path).read_text()
        assert source.count(mutant.old) == 1, mutant.name
        assert not mutants.unparsed(source.replace(mutant.old, mutant.new)), mutant.name


# --- catalogue.md ---------------------------------------------------------------------------------

ROW = re.compile(r"^\| (?P<bug>[^|]+) \| (?P<tests>`test_[^|]+`) \| (?P<planted>`[^|]+`) \|$", re.M)


def test_the_catalogue_names_what_exists() -> None:
    text = (ROOT / "tests/catalogue.md").read_text()
    rows = list(ROW.finditer(text))
    heads = text.count("| Bug | Test | Planted |")
    assert len(rows) == sum(line.startswith("| ") for line in text.splitlines()) - heads > 60
    by_name = {mutant.name: mutant for mutant in MUTANTS}
    for row in rows:
        tests = re.findall(r"`([\w:]+)`", row["tests"])
        assert all(has_test(ROOT, test) and "::" in test for test in tests), row["bug"]
        files = {test.partition("::")[0] for test in tests}
        for name in re.findall(r"`([\w-]+)`", row["planted"]):
            tried = {test.partition("::")[0] for test in by_name[name].tests.split()}
            assert files & tried, f"{name} is not tried by {files}"
