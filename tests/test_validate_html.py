"""`scaled-mm validate --html`: the page read as data. How it looks, a browser must show."""

import dataclasses
import functools
import math
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from blocks import PreNorm, inputs, seeded
from helpers import Cli
from test_validate import CONFIGS, validated

from scaled_mm import QuantConfig, quantize_model
from scaled_mm.validate import Thresholds, ValidationReport
from scaled_mm_cli.reports.html import COLUMNS, page

VOID = {"meta", "circle", "line", "polyline", "polygon", "rect"}
"""Elements without a content, or that close themselves."""


class Page(HTMLParser):
    """The elements of a page, which must be nested as they should."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[tuple[str, ...], str]] = []
        self.rows: list[list[dict[str, str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag == "data" and "tbody" in self.open:
            self.rows[-1].append(dict(attrs))
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in VOID
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((tuple(self.open), data))

    def inside(self, *tags: str) -> list[str]:
        """The texts whose innermost elements are these."""
        return [text for path, text in self.texts if path[-len(tags) :] == tags]


@functools.cache
def seven() -> ValidationReport:
    return validated(CONFIGS["static-folded"])


def many(count: int, **changes: Any) -> ValidationReport:
    """A report of so many layers, seven to a block."""
    report = seven()
    layers = [
        dataclasses.replace(
            report.layers[place % 7],
            name=f"model.layers.{place // 7}.part.{report.layers[place % 7].name}_proj",
            **changes,
        )
        for place in range(count)
    ]
    return dataclasses.replace(report, layers=tuple(layers))


def with_layer(report: ValidationReport, place: int, **changes: Any) -> ValidationReport:
    layers = list(report.layers)
    layers[place] = dataclasses.replace(layers[place], **changes)
    return dataclasses.replace(report, layers=tuple(layers))


@pytest.mark.parametrize("count", [1, 7, 28, 224])
def test_its_numbers_are_the_reports(count: int) -> None:
    report = many(count)
    found = Page(page(report))
    assert found.inside("header", "p") == ["PASS"]
    rows = [row for row in found.rows if row]
    layers = sorted(report.layers, key=lambda layer: layer.sqnr_db)
    assert found.inside("tbody", "tr", "th", "code") == [layer.name for layer in layers]
    for row, layer in zip(rows, layers, strict=True):
        values = [float(str(cell["value"])) for cell in row]
        assert values[: len(COLUMNS)] == [getattr(layer, column.field) for column in COLUMNS]
        assert tuple(values[len(COLUMNS) :]) == layer.outlier_channels


def test_it_needs_nothing_else() -> None:
    """No script, no other file, no address; a policy that would refuse them; light and dark."""
    text = page(many(7))
    found = Page(text)
    tags = {tag for tag, _ in found.seen}
    assert tags.isdisjoint({"script", "link", "img", "iframe", "object", "embed", "image", "use"})
    names = {name for _, attributes in found.seen for name in attributes}
    assert names.isdisjoint({"src", "href", "xlink:href", "srcset", "action", "style"})
    assert not any(name.startswith("on") for name in names)
    assert not re.search(r"https?:|url\(|@import|javascript:", text)
    policy = next(a["content"] for t, a in found.seen if t == "meta" and "http-equiv" in a)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "prefers-color-scheme: dark" in text
    used = {a["class"] for t, a in found.seen if "class" in a and t in VOID}
    (style,) = found.inside("style")
    assert all(f".{kind} " in style for kind in used)


HOSTILE = [
    "</code></title></svg><script>alert(1)</script>",
    '"\' onload=alert(1) x="',
    "&lt;b&gt; <!-- ",
    "\x1b[31m\x07\x9b\u202e\x00\udcff",
    "]]> {} %s $x$",
    "a" * 300,
]


@pytest.mark.parametrize("name", HOSTILE, ids=lambda x: ascii(x)[:20])
@pytest.mark.parametrize("count", [7, 70])
def test_hostile_names(name: str, count: int) -> None:
    report = with_layer(many(count), 1, name=name, scheme=name, sqnr_db=1.0, off_r1=2)
    found = Page(page(report))
    shown = re.sub("[^ -~]", lambda x: x[0].encode("unicode_escape").decode(), name)
    assert found.inside("tbody", "tr", "th", "code")[0] == shown
    assert found.inside("ul", "li")[0].startswith(f"{shown}: ")
    plain = Page(page(many(count)))
    assert {tag for tag, _ in found.seen} - {"polygon"} == {tag for tag, _ in plain.seen}
    text = page(report)
    assert all(each.isprintable() or each == "\n" for each in text)
    text.encode()


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 0.0])
def test_what_is_no_number(value: float) -> None:
    fields = ("sqnr_db", "peak_before", "peak_after", "worst_of_bound", "outlier_energy")
    report = with_layer(many(7), 2, **dict.fromkeys(fields, value))
    found = Page(page(report))
    row = found.rows[1 + report.by_noise().index(report.layers[2])]
    assert all(float(str(row[i]["value"])) == value for i in (0, 8) if not math.isnan(value))
    assert "nan" not in " ".join(f"{a}" for t, a in found.seen if t in VOID - {"meta"}), (
        "a coordinate"
    )
    everything = many(7, **dict.fromkeys(fields, value))
    Page(page(everything))
    Page(page(dataclasses.replace(everything, thresholds=Thresholds(sqnr_db=value))))


def mine() -> Any:
    model = seeded(PreNorm)
    return model, quantize_model(model, QuantConfig("static"), inputs()), inputs()


def test_command(tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "x.html"
    assert "PASS" in cli("validate test_validate_html:mine --html", path)
    found = Page(path.read_text(encoding="utf-8"))
    assert sorted(found.inside("code")) == sorted(["q", "k", "v", "o", "gate", "up", "down"])
    about = dict(zip(found.inside("dl", "dt"), found.inside("dl", "dd"), strict=True))
    assert about["Model"] == "test_validate_html:mine" and about["Scheme"] == "static tensor sym"
    assert about["Command"].startswith("scaled-mm validate test_validate_html:mine --scheme ")
    assert about["Version"].startswith("scaled_mm ")
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", about["Date"])
    for wrong in ("x.htm", "no/such/folder/x.html"):
        said = f"scaled-mm: --html must be a .html in a folder that exists, got {wrong}\n"
        assert cli("validate test_validate_html:mine --html", wrong, code=2) == said
