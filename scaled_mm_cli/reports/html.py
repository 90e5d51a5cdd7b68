"""Validation's report as one HTML file: no script, nothing fetched.

Every number of the tables stands whole in the `value` of its <data>; the text beside is rounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from html import escape
from importlib.resources import files
from math import isfinite, isnan
from pathlib import Path

from scaled_mm._version import VERSION
from scaled_mm.checkpoint.writing import new_file
from scaled_mm.validate.report import LayerReport, ValidationReport

from ..terminal import printable
from .show import labelled, middle_cut, noisiest, within
from .svg import Chart

FEW = 4  # outlier channels that are listed at once
LABEL = 24  # letters of a layer's name below a chart


@dataclass(frozen=True)
class Column:
    """A column of the table of layers: a field, its heading and what that means."""

    field: str
    heading: str
    meaning: str
    form: str
    """For `format`."""


COLUMNS = (
    Column("sqnr_db", "SQNR, dB", "Signal to quantisation noise of the layer alone.", ".1f"),
    Column("max_error_relative", "max error", "Of the largest output.", ".3f"),
    Column("saturated", "saturated", "Part of the inputs beyond the grid, clamped.", ".3%"),
    Column("grid", "grid used", "Part of the 256 values (4 bits: 16) that occurred.", ".0%"),
    Column("azp_mean", "mean azp", "Mean zero point of the activations.", ".1f"),
    Column("azp_used", "azp not 0", "Part of the tokens whose zero point is not 0.", ".0%"),
    Column("checked", "checked", "Outputs recomputed by scaled_mm.reference.", ","),
    Column("off_r1", "off R1", "How many of these differ from R1 in any bit.", ","),
    Column(
        "worst_of_bound",
        "of R0 bound",
        "Largest distance from the exact result, of the bound.",
        ".2f",
    ),
    Column("beyond", "beyond", "How many are beyond the bound.", ","),
    Column("peak_before", "peak before", "Widest input channel over the median one.", ".1f"),
    Column("peak_after", "peak after", "The same after smoothing.", ".1f"),
    Column("outlier_energy", "energy", "Part of the input's energy in outlier channels.", ".0%"),
)
TERMS = {
    "SQNR": "Signal to quantisation noise ratio: 10 log10 of the energy of the float output over "
    "that of the difference. Each 6 dB more halve the error. A layer's own SQNR compares it with "
    "the float layer on the same inputs, so that noise of the layers before it does not count.",
    "R0, R1": "R0 is the exact result of the formula, rounded once. R1 is the result of the "
    "operations in their promised order. A kernel is right when it has the bits of R1; how far "
    "these may be from the exact result is a published bound.",
    "Grid": "The 256 int8 values that an input can take. A static scale that is too wide uses few "
    "of them; one that is too narrow clamps what lies beyond, which then is saturated.",
    "azp": "Activation zero point: the int8 value that stands for 0.",
    "Perplexity": "exp of the mean of -log p over the counted tokens of a text, each predicted "
    "from those before it in its window. A window's first token does not count.",
    "KL": "Mean over these tokens of the divergence of the quantised model's prediction from the "
    "float one's, sum of p_float (log p_float - log p_quantised), in nats.",
    "Outlier channel": "An input channel (of the float model) whose range is many times the "
    "median channel's. Outliers stretch the grid for all others. Smoothing moves their range into "
    "the weight.",
}


def write_html(
    report: ValidationReport, path: str | Path, *, model: str = "", command: str = ""
) -> None:
    """Writes the report as one HTML file, whole or not at all; its head has the model and the
    command."""
    text = page(report, model, command).encode()
    with new_file(Path(path)) as file:
        file.write(text)


def page(report: ValidationReport, model: str = "", command: str = "") -> str:
    """The report as HTML."""
    verdict = "PASS" if report.ok else "FAIL"
    style = files(__package__).joinpath("report.css").read_text(encoding="utf-8")
    parts = (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta http-equiv="Content-Security-Policy" '
        "content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>{verdict}: {len(report.layers)} quantised layers</title>",
        f"<style>\n{style}</style>\n</head>\n<body>\n<main>",
        *summary(report, verdict, model, command),
        *text_table(report),
        *charts(report),
        *layer_table(report),
        "<h2>What the words mean</h2>\n<dl>",
        *(f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in TERMS.items()),
        "</dl>\n</main>\n</body>\n</html>\n",
    )
    return "\n".join(parts)


def name_of(layer: LayerReport) -> str:
    return escape(printable(layer.name))


def number(value: float, form: str) -> str:
    """A number, rounded for the eye and whole for a program."""
    if isfinite(value):
        text = format(value, form)
    else:
        text = "NaN" if isnan(value) else "∞" if value > 0 else "−∞"
    return f'<data value="{value!r}">{text}</data>'


def summary(report: ValidationReport, verdict: str, model: str, command: str) -> Iterator[str]:
    """The verdict, what it rests on, and every failure."""
    outputs, limits, layers = report.outputs, report.thresholds, report.layers
    off, checked = sum(x.off_r1 for x in layers), sum(x.checked for x in layers)
    worst = report.by_noise()[0].sqnr_db
    schemes = dict.fromkeys(layer.scheme for layer in layers)
    tiles = (
        ("Mean cosine", number(outputs.cosine_mean, ".5f"), f"must be ≥ {limits.cosine_mean:g}"),
        ("Least cosine", number(outputs.cosine_min, ".5f"), f"of {outputs.rows:,} rows"),
        ("SQNR of the output", number(outputs.sqnr_db, ".1f") + " dB", "end to end"),
        ("Noisiest layer", number(worst, ".1f") + " dB", f"must be ≥ {limits.sqnr_db:g} dB"),
        ("Same argmax", number(outputs.same_argmax, ".1%"), "rows with the same largest element"),
        ("Off R1", number(off, ","), f"of {checked:,} outputs; must be 0"),
    )
    yield f'<header><h1>Validation</h1><p class="verdict {verdict.lower()}">{verdict}</p></header>'
    about = (
        ("Model", model),
        ("Scheme", "; ".join(schemes)),
        ("Command", command),
        ("Version", f"scaled_mm {VERSION}"),
        ("Date", date.today().isoformat()),
    )
    yield '<dl class="about">'
    for term, text in about:
        if text:
            yield f"<dt>{term}</dt><dd>{escape(printable(text))}</dd>"
    yield "</dl>"
    yield (
        f"<p>{len(layers)} quantised layers against the float model, on {report.batches} batches; "
        f"bits compared for one token in {report.stride}.</p>"
    )
    yield '<ul class="tiles">'
    for title, value, note in tiles:
        yield f"<li><h3>{title}</h3><p>{value}</p><small>{escape(note)}</small></li>"
    yield "</ul>"
    if failures := report.failures():
        yield '<h2>What failed</h2>\n<ul class="failures">'
        yield from (f"<li>{escape(printable(line))}</li>" for line in failures)
        yield "</ul>\n<h2>What to try</h2>\n<ul>"
        yield from (f"<li>{escape(printable(line))}</li>" for line in report.advice())
        yield "</ul>"


def text_table(report: ValidationReport) -> Iterator[str]:
    """Perplexity and KL divergence, a row for each model."""
    if (text := report.text) is None:
        return
    yield "<h2>Perplexity</h2>"
    yield (
        f"<p>{number(text.tokens, ',')} tokens counted, in {number(text.windows, ',')} windows of "
        f"{number(text.length, ',')} tokens, stride {number(text.stride, ',')}.</p>"
    )
    yield '<div class="scroll">\n<table><thead><tr><th>model</th><th>perplexity</th>'
    yield "<th>KL, nats a token</th></tr></thead>\n<tbody>"
    cells = f"<td>{number(text.float_perplexity, '.4f')}</td><td></td>"
    yield f'<tr><th scope="row">float</th>{cells}</tr>'
    for each in text.models:
        cells = f"<td>{number(each.perplexity, '.4f')}</td><td>{number(each.kl, '.6f')}</td>"
        yield f'<tr><th scope="row"><code>{escape(printable(each.name))}</code></th>{cells}</tr>'
    yield "</tbody>\n</table>\n</div>"


# --- charts ---------------------------------------------------------------------------------------


def figure(heading: str, caption: str, chart: Chart) -> str:
    return (
        f"<figure>\n<h2>{heading}</h2>\n<figcaption>{caption}</figcaption>\n"
        f'<div class="scroll">{chart.svg()}</div>\n</figure>'
    )


def charts(report: ValidationReport) -> Iterator[str]:
    _, names = within([printable(layer.name) for layer in report.layers])
    labels = [(place, middle_cut(x, LABEL)) for place, x in labelled(names)]
    yield noise_chart(report, names, labels)
    yield range_chart(report, names, labels)
    yield outlier_chart(report, names, labels)


def noise_chart(report: ValidationReport, names: list[str], labels: list[tuple[int, str]]) -> str:
    limit = report.thresholds.sqnr_db
    values = [layer.sqnr_db for layer in report.layers]
    there = [x for x in (*values, limit) if isfinite(x)] or [0.0]
    chart = Chart("SQNR per layer", len(values), labels, min(0.0, *there), max(there) * 1.05 + 1)
    drawn = [chart.low if isnan(value) else value for value in values]
    chart.path(list(enumerate(drawn)), "thread")
    if isfinite(limit):
        chart.level(limit, "limit", f"threshold {limit:g} dB")
    for place, value in enumerate(values):
        title = f"{names[place]}: {value:.1f} dB"
        mark, kind = (chart.circle, "point") if value >= limit else (chart.diamond, "bad")
        mark(place, drawn[place], kind, title)
    if len(labels) < len(names):
        for place in sorted(noisiest(report)):
            chart.note(place, drawn[place], names[place])
    caption = "The noise of each layer alone: higher is better. Diamonds are below the threshold."
    return figure("SQNR per layer, dB", caption, chart)


def range_chart(report: ValidationReport, names: list[str], labels: list[tuple[int, str]]) -> str:
    pairs = [(layer.peak_before, layer.peak_after) for layer in report.layers]
    there = [x for pair in pairs for x in pair if isfinite(x) and x > 0]
    low, high = min([1.0, *there]), 1.2 * max([2.0, *there])
    chart = Chart("Ranges before and after smoothing", len(pairs), labels, low, high, True, "×")
    smoothed = any(before != after for before, after in pairs)
    for place, (before, after) in enumerate(pairs):
        if not (before > 0 and after > 0):
            continue
        title = f"{names[place]}: {before:.1f}"  # infinite: where the median channel is 0
        if smoothed:
            title = f"{title} before, {after:.1f} after"
            chart.stem(place, before, after, "stem")
            chart.circle(place, before, "before", title)
        chart.circle(place, after, "after", title)
    caption = "The widest input channel over the median one. At 1 all are alike; lower is easier."
    if not smoothed:
        return figure("Ranges of the inputs", f"{caption} Nothing was smoothed.", chart)
    keys = [
        f'<svg viewBox="0 0 10 10"><circle class="{kind}" cx="5" cy="5" r="3.5"/></svg> {text}'
        for kind, text in (("before", "before smoothing"), ("after", "after"))
    ]
    caption += f' <span class="key">{" ".join(keys)}</span>'
    return figure("Ranges before and after", caption, chart)


def outlier_chart(report: ValidationReport, names: list[str], labels: list[tuple[int, str]]) -> str:
    if not any(layer.outlier_channels for layer in report.layers):
        return "<h2>Outlier channels</h2>\n<p>No layer has any.</p>"
    chart = Chart("Outlier channels", len(names), labels, 0, 100, unit=" %")
    for place, layer in enumerate(report.layers):
        count, energy = len(layer.outlier_channels), 100 * layer.outlier_energy
        if count and isfinite(energy):
            channels = "1 channel" if count == 1 else f"{count} channels"
            chart.bar(place, energy, "bar", f"{names[place]}: {energy:.0f} % in {channels}")
    caption = "The part of a layer's input energy that lies in its outlier channels."
    return figure("Outlier channels", caption, chart)


# --- the table ------------------------------------------------------------------------------------


def layer_table(report: ValidationReport) -> Iterator[str]:
    failing = {line.rpartition(": ")[0] for line in report.failures()}
    yield '<h2>Layers, the noisiest first</h2>\n<div class="scroll">\n<table>'
    yield '<thead><tr><th>layer</th><th class="text">scheme</th>'
    for column in COLUMNS:
        yield f'<th title="{escape(column.meaning)}">{escape(column.heading)}</th>'
    yield '<th class="text">outlier channels</th></tr></thead>\n<tbody>'
    for layer in report.by_noise():
        bad = ' class="failing"' if layer.name in failing else ""
        mark = "✗ " if bad else ""
        yield f'<tr{bad}><th scope="row">{mark}<code>{name_of(layer)}</code></th>'
        yield f'<td class="text">{escape(printable(layer.scheme))}</td>'
        for column in COLUMNS:
            yield f"<td>{number(getattr(layer, column.field), column.form)}</td>"
        yield f'<td class="text">{channels_of(layer)}</td></tr>'
    yield "</tbody>\n</table>\n</div>"


def channels_of(layer: LayerReport) -> str:
    """All outlier channels; behind a fold where they are many."""
    texts = [f'<data value="{channel}">{channel}</data>' for channel in layer.outlier_channels]
    if len(texts) <= FEW:
        return ", ".join(texts)
    return f"<details><summary>{len(texts)} channels</summary>{', '.join(texts)}</details>"
