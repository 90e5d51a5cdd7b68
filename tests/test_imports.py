"""What imports what: no circles, nothing upward, and the drawing in docs/architecture.md."""

from graphlib import TopologicalSorter
from pathlib import Path

import imports

ROOT = Path(__file__).resolve().parent.parent


def test_no_module_imports_itself_by_others() -> None:
    whole = imports.graph()
    assert len(whole) > 100
    list(TopologicalSorter(whole).static_order())  # CycleError names a circle


def test_the_drawing_is_of_today() -> None:
    """Drawn in the order of a sort, which a circle of packages has not."""
    page = (ROOT / "docs/architecture.md").read_text()
    drawn = page.partition(imports.BEGIN)[2].partition(imports.END)[0].strip()
    assert drawn == imports.drawing(imports.units(imports.graph())), (
        "python tools/imports.py docs/architecture.md"
    )


def test_the_command_line_is_above_the_library() -> None:
    """And what prints a help text does without the library."""
    quick = {"main", "options", "terminal", "words"}
    for name, others in imports.units(imports.graph()).items():
        package, _, part = name.partition(".")
        if name != "scaled_mm.__main__" and (package == "scaled_mm" or part in quick):
            assert all(x.partition(".")[0] == package for x in others), name
