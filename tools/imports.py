"""What imports what, read from the sources.

    python tools/imports.py docs/architecture.md    write the drawing there, between its two marks

The drawing has the modules and packages right below `scaled_mm`; an arrow that follows from others
is left out. `tests/test_imports.py` checks that there are no circles, and the drawing.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BEGIN, END = "<!-- imports.py: begin -->", "<!-- imports.py: end -->"
Graph = dict[str, set[str]]


def modules() -> dict[str, Path]:
    files = [x for top in ("scaled_mm", "scaled_mm_cli") for x in (ROOT / top).rglob("*.py")]
    names = [".".join(x.relative_to(ROOT).with_suffix("").parts) for x in files]
    return dict(zip((x.removesuffix(".__init__") for x in names), files, strict=True))


def imported(name: str, known: Mapping[str, Path]) -> Iterator[str]:
    """Within functions too, but not for types alone."""
    tree = ast.parse(known[name].read_text())
    package = name.split(".") if known[name].name == "__init__.py" else name.split(".")[:-1]
    typing = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in typing:
            continue
        if isinstance(node, ast.Import):
            yield from (x.name for x in node.names if x.name in known)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) + 1 - node.level] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            named = (f"{base}.{x.name}" for x in node.names)
            yield from (x for x in (y if y in known else base for y in named) if x in known)


def graph() -> Graph:
    known = modules()
    return {name: {*imported(name, known)} - {name} for name in known}


def unit(name: str) -> str:
    return ".".join(name.split(".")[:2])


def units(whole: Graph) -> Graph:
    """The same between the modules and packages right below `scaled_mm`."""
    made: Graph = {}
    for name, others in whole.items():
        made.setdefault(unit(name), set()).update(unit(x) for x in others if unit(x) != unit(name))
    return made


def drawing(whole: Graph) -> str:
    """As Mermaid; raises graphlib.CycleError where there is a circle."""
    below: Graph = {}
    lines = ["```mermaid", "flowchart TD"]
    order = list(TopologicalSorter({x: sorted(whole[x]) for x in sorted(whole)}).static_order())
    for name in order:
        direct = whole[name]
        below[name] = direct.union(*(below[x] for x in direct))
        near = sorted(x for x in direct if not any(x in below[y] for y in direct))
        lines += [f"  {name} --> {x}" for x in near]
    return "\n".join([*lines[:2], *sorted(lines[2:]), "```"])


def main(page: Path) -> None:
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{page} must hold {BEGIN} and {END}")
    page.write_text(f"{before}{begin}\n{drawing(units(graph()))}\n{end}{after}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
