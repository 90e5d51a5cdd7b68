"""What the documents name must exist: tests, public names, files, pages, places in them."""

import importlib
import re
from pathlib import Path
from types import ModuleType

import benchmarks
import pytest

import scaled_mm
from scaled_mm.bench.table import totals

TESTS = Path(__file__).parent
ROOT = TESTS.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("page", [DOCS / "reliability.md", TESTS / "catalogue.md"], ids=name_of)
def test_the_tests_that_a_page_names_exist(page: Path) -> None:
    text, _, _ = page.read_text().partition("\n## How the tests are tested")
    rows = [line for line in text.splitlines() if re.match(r"\| (?!.*\| Test \|)", line)]
    assert len(rows) > 20
    for row in rows:
        named = re.findall(r"`(test_\w+)::(test_\w+)`", row)
        assert named, row
        for file, test in named:
            assert f"\ndef {test}(" in (TESTS / f"{file}.py").read_text(), f"{file}::{test}"


PUBLIC = (
    *("scaled_mm", "scaled_mm.nn", "scaled_mm.compat", "scaled_mm.layouts", "scaled_mm.awq"),
    *("scaled_mm.checkpoint", "scaled_mm.explain", "scaled_mm.parallel", "scaled_mm.precompute"),
    *("scaled_mm.reference", "scaled_mm.validate", "scaled_mm.integrations.transformers"),
)
API = "\n".join(page.read_text() for page in sorted((DOCS / "api").glob("*.md")))


def documented() -> set[str]:
    """What has a directive of its own in docs/api, or is a member of a module that has one."""
    names = set(
        re.findall(r"(?:auto|py:)(?:class|data|function):: (?:\w+\.)*(\w+)$", API, re.MULTILINE)
    )
    for module, members in re.findall(r"automodule:: (\S+)\n   :members:(.*)$", API, re.MULTILINE):
        found = importlib.import_module(module)
        names.update(members.replace(",", " ").split() or getattr(found, "__all__", ()))
    return names


@pytest.mark.usefixtures("unregistered")
@pytest.mark.parametrize("module", PUBLIC)
def test_public_names_have_a_page(module: str) -> None:
    found = importlib.import_module(module)
    names = {name for name in found.__all__ if not isinstance(getattr(found, name), ModuleType)}
    assert names
    assert not names - documented()


@pytest.mark.usefixtures("unregistered")
def test_public_names_are_few() -> None:
    """At most 80, and no module beside these offers any, but for the words of epilogues."""
    package = Path(scaled_mm.__file__).parent
    offering = [
        path.relative_to(package.parent).with_suffix("")
        for path in sorted(package.rglob("*.py"))
        if "\n__all__ =" in path.read_text()
    ]
    modules = {".".join(path.parts).removesuffix(".__init__") for path in offering}
    apart = {f"scaled_mm.{name}" for name in ("integrations.peft", "integrations.vllm", "epilogue")}
    assert modules - apart == {*PUBLIC}
    names = {name for module in PUBLIC for name in importlib.import_module(module).__all__}
    assert len(names) <= 80


def anchors(page: Path) -> set[str]:
    """The headings of a page, as a link names them."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, heading = target.partition("#")
        there = (page.parent / path) if path else page
        assert there.exists(), target
        assert not heading or heading in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_files_that_are_named_exist(page: Path) -> None:
    """`docs/x.md`, `tests/y.py`, `csrc/z.h` and the like: paths from the project's root."""
    named = r"`((?:docs|tests|tools|csrc|scaled_mm|scaled_mm_cli)/[a-z\d_./]+\.\w+)`"
    for path in re.findall(named, page.read_text()):
        elsewhere = path == "scaled_mm/tuning.json"  # in ~/.cache
        added_by_the_reader = page.stem == "adding" and Path(path).stem == "x"
        assert elsewhere or added_by_the_reader or (ROOT / path).exists(), path


def test_every_page_is_in_the_index() -> None:
    index = (DOCS / "index.md").read_text()
    listed = {line for line in index.splitlines() if re.fullmatch(r"[\w/*]+", line)}
    for page in PAGES[1:]:
        name = page.relative_to(DOCS).with_suffix("").as_posix()
        assert name == "index" or name in listed or f"{name.rpartition('/')[0]}/*" in listed, name


TABLES = [
    file.with_name(f"{file.name.partition('.')[0]}.md")
    for file in benchmarks.FOLDER.glob("*.json.gz")
]
DEVICES = [page.stem for page in TABLES]


@pytest.mark.parametrize("device", DEVICES)
def test_a_benchmark_page_is_made_of_its_data(device: str) -> None:
    page = (benchmarks.FOLDER / f"{device}.md").read_text()
    assert page == benchmarks.page(benchmarks.read(device)), "python tools/benchmarks.py"
    assert (benchmarks.FOLDER / f"{device}.json.gz").stat().st_size < 200_000


def test_figures_of_the_readme_are_those_of_the_data() -> None:
    readme = " ".join((ROOT / "README.md").read_text().split())
    result = benchmarks.read("h200")["entries"]["int8"]["result"]
    over_all, each = totals(result)[:2]
    said = r"Over (\d+) cells the best .* takes ([\d.]+) times as long .* bf16 ([\d.]+) times"
    ((cells, best, bf16),) = re.findall(said, readme)
    assert f"geomean {best}x over {cells} cells" in over_all
    assert f"bf16 mm {bf16}x" in each


def prose(page: Path) -> list[str]:
    """Lines that can be wrapped: no code, tables, formulas or long links."""
    text = re.sub(
        r"^```.*?^```$|^\$\$.*?\$\$$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL
    )
    return [x for x in text.splitlines() if not re.match(r"\||#|    |!\[|<", x)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_lines_are_at_most_100_columns(page: Path) -> None:
    assert page in TABLES or not [x for x in prose(page) if len(x) > 100]


def test_documents_are_short() -> None:
    words = {page: len(page.read_text().split()) for page in PAGES if page.parent.name != "api"}
    assert not {name_of(page): n for page, n in words.items() if n > 3000}
    pages = [page for page in words if page not in (PAGES[0], *TABLES)]
    assert sum(words[page] for page in pages) <= 30_000
    assert len((ROOT / "README.md").read_text().splitlines()) <= 160
