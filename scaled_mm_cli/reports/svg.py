"""The charts of the HTML report: values of layers along an axis of layers, as SVG text.

Colours are classes, which the page's style sheet gives for light and dark. What a colour says a
shape says too: hollow and filled, circle and diamond. The titles are what a browser shows beside
the pointer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from math import ceil, floor, isfinite, log10

WIDTH, HEIGHT = 960, 250  # of the drawing, without the labels of the layers
LEFT, RIGHT, TOP = 48, 12, 14
LETTER = 6.2  # the width of a letter of a label, about
TURNED = 4  # labels with more letters are turned


@dataclass
class Chart:
    """An axis of layers, an axis of values, and what is drawn between them. `labels`: where along
    the axis of layers a label stands, and the label. `low`, `high` and `unit` are of the values."""

    title: str
    count: int
    labels: Sequence[tuple[int, str]]
    low: float
    high: float
    log: bool = False
    unit: str = ""
    parts: list[str] = field(default_factory=list)
    noted: tuple[float, float] = (0, 0)
    """Where the last note ends, and its y."""

    def x(self, place: float) -> float:
        return LEFT + (place + 0.5) * (WIDTH - LEFT - RIGHT) / self.count

    def y(self, value: float) -> float:
        low, high = (log10(self.low), log10(self.high)) if self.log else (self.low, self.high)
        at = log10(value) if self.log and isfinite(value) else value
        return HEIGHT - (min(max(at, low), high) - low) / (high - low) * (HEIGHT - TOP)

    @property
    def radius(self) -> float:
        return max(1.6, min(4.0, 0.3 * (WIDTH - LEFT - RIGHT) / self.count))

    def circle(self, place: int, value: float, kind: str, title: str) -> None:
        at = f'cx="{self.x(place):.1f}" cy="{self.y(value):.1f}" r="{self.radius:.1f}"'
        self._add(f'<circle class="{kind}" {at}>', title, "</circle>")

    def diamond(self, place: int, value: float, kind: str, title: str) -> None:
        x, y, r = self.x(place), self.y(value), 2 * self.radius
        corners = f"{x:.1f},{y - r:.1f} {x + r:.1f},{y:.1f} {x:.1f},{y + r:.1f} {x - r:.1f},{y:.1f}"
        self._add(f'<polygon class="{kind}" points="{corners}">', title, "</polygon>")

    def bar(self, place: int, value: float, kind: str, title: str) -> None:
        width, top = 0.7 * (WIDTH - LEFT - RIGHT) / self.count, self.y(value)
        size = f'width="{width:.1f}" height="{HEIGHT - top:.1f}"'
        at = f'x="{self.x(place) - width / 2:.1f}" y="{top:.1f}"'
        self._add(f'<rect class="{kind}" {at} {size}>', title, "</rect>")

    def stem(self, place: int, begin: float, end: float, kind: str) -> None:
        x = f"{self.x(place):.1f}"
        ends = f'x1="{x}" x2="{x}" y1="{self.y(begin):.1f}" y2="{self.y(end):.1f}"'
        self.parts.append(f'<line class="{kind}" {ends}/>')

    def path(self, points: Sequence[tuple[int, float]], kind: str) -> None:
        corners = " ".join(f"{self.x(place):.1f},{self.y(value):.1f}" for place, value in points)
        self.parts.append(f'<polyline class="{kind}" points="{corners}"/>')

    def level(self, value: float, kind: str, label: str) -> None:
        """A line across, with its label above the right end."""
        y, end = self.y(value), WIDTH - RIGHT
        ends = f'x1="{LEFT}" x2="{end}" y1="{y:.1f}" y2="{y:.1f}"'
        self.parts.append(f'<line class="{kind}" {ends}/>')
        self.parts.append(f'<text class="{kind}" x="{end}" y="{y - 4:.1f}">{escape(label)}</text>')

    def note(self, place: int, value: float, text: str) -> None:
        """A layer's name below its value, and below the last note where it would touch that."""
        half = LETTER * len(text) / 2
        x = min(max(self.x(place), LEFT + half), WIDTH - RIGHT - half)
        y = self.y(value) + 15
        end, last = self.noted
        if x - half < end:
            y = max(y, last + 12)
        self.noted = (x + half, y)
        self.parts.append(f'<text class="note" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>')

    def _add(self, opening: str, title: str, closing: str) -> None:
        self.parts.append(f"{opening}<title>{escape(title)}</title>{closing}")

    def svg(self) -> str:
        longest = max((len(label) for _, label in self.labels), default=0)
        below = 20 if longest <= TURNED else LETTER * longest + 14
        head = f'<svg role="img" viewBox="0 0 {WIDTH} {HEIGHT + below:.0f}">'
        title = f"<title>{escape(self.title)}</title>"
        return "\n".join([head + title, *self._axes(longest), *self.parts, "</svg>"])

    def _axes(self, longest: int) -> Iterator[str]:
        for value in ticks(self.low, self.high, self.log):
            y = self.y(value)
            ends = f'x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
            yield f'<line class="grid" {ends}/>'
            yield f'<text class="tick" x="{LEFT - 6}" y="{y + 4:.1f}">{value:g}{self.unit}</text>'
        for place, label in self.labels:
            x = self.x(place)
            yield f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{HEIGHT}" y2="{HEIGHT + 4}"/>'
            if longest <= TURNED:
                at = f'class="label" x="{x:.1f}" y="{HEIGHT + 16}"'
            else:
                at = f'class="tick" transform="translate({x + 4:.1f} {HEIGHT + 8}) rotate(-90)"'
            yield f"<text {at}>{escape(label)}</text>"


def ticks(low: float, high: float, log: bool = False) -> list[float]:
    """Round values from low to high, some five of them; of a logarithmic axis 1, 2, 5, 10 ..."""
    if log:
        decades = range(floor(log10(low)), ceil(log10(high)) + 1)
        found = [m * 10.0**exponent for exponent in decades for m in (1, 2, 5)]
        if high / low > 1e3:
            found = found[::3]
    else:
        rough = (high - low) / 5
        step = 10.0 ** floor(log10(rough))
        step *= next(m for m in (1, 2, 5, 10) if m * step >= rough)
        found = [i * step for i in range(ceil(low / step), floor(high / step) + 1)]
    return [value for value in found if low <= value <= high]
