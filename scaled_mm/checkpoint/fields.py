"""JSON from somebody who may mean harm: every field is read by its type, or refused by its name."""

from __future__ import annotations

import json
import math
from collections import Counter
from pathlib import Path
from typing import Any, NoReturn

from .paths import regular_file

MAX_JSON = 100_000_000
"""Bytes of a header or an index; the safetensors format has this limit for headers."""
MAX_CONFIG = 16_000_000
"""Bytes of any other file; a config with 20,000 labels takes two million."""
MAX_ITEMS = 2_000_000
"""Members of all objects and arrays together: they take up to 300 bytes of memory each."""
MAX_DEPTH = 64
MAX_INTEGER = 2**62
"""Of sizes: sums of two stay int64."""


def shown(value: Any) -> str:
    """A value from the file as a refusal shows it: short, and without control characters."""
    text = ascii(value)
    return (text[1:-1] if isinstance(value, str) else text)[:80]


def printable(text: str) -> str:
    """Text that may quote a file, with escapes for what a terminal would act on."""
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


class Fields:
    """A reader of fields; `where` says in a refusal in which file and key they stood."""

    def __init__(self, where: str) -> None:
        self.where = where

    def refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{self.where}: {reason}")

    def understood(self, at: str, fields: dict[str, Any], known: set[str]) -> None:
        """Keys that nobody knows must say nothing: null, false or empty."""
        for key, value in fields.items():
            if key not in known and value not in (None, False, "", [], {}):
                self.refuse(f"{at and at + '.'}{shown(key)} is not understood, got {shown(value)}")

    def object(self, at: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.refuse(f"{at} must be an object, got {shown(value)}")
        return value

    def text(self, at: str, value: Any) -> str:
        if not isinstance(value, str):
            self.refuse(f"{at} must be a string, got {shown(value)}")
        return value

    def strings(self, at: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.refuse(f"{at} must be a list of strings, got {shown(value)}")
        return tuple(value)

    def integer(self, at: str, value: Any, least: int, most: int = MAX_INTEGER) -> int:
        if type(value) is not int or not least <= value <= most:
            self.refuse(f"{at} must be an integer in {least}..{most}, got {shown(value)}")
        return value

    def integers(self, at: str, value: Any, least: int) -> tuple[int, ...]:
        if not isinstance(value, list):
            self.refuse(f"{at} must be a list of integers, got {shown(value)}")
        return tuple(self.integer(f"{at}[{i}]", each, least) for i, each in enumerate(value))

    def number(self, at: str, value: Any, least: float, most: float) -> float:
        """A number within the limits, which nan is not; true and false are none."""
        if type(value) not in (int, float) or not least <= value <= most:
            self.refuse(f"{at} must be a number in {least:g}..{most:g}, got {shown(value)}")
        return float(value)

    def flag(self, at: str, value: Any) -> bool | None:
        """True, false, or None where the key is not there."""
        if value is not None and not isinstance(value, bool):
            self.refuse(f"{at} must be true or false, got {shown(value)}")
        return value


def read_json(path: Path, most: int = MAX_CONFIG) -> dict[str, Any]:
    """A JSON object from a file of at most so many bytes, by `parse_json`."""
    regular_file(path)
    with path.open("rb") as file:
        text = file.read(most + 1)
    if len(text) > most:
        raise ValueError(f"{path}: must be at most {most:,} bytes")
    return parse_json(text, path)


def parse_json(text: bytes, path: Path) -> dict[str, Any]:
    """A JSON object, which can be written again as it is.

    Raises:
        ValueError: it is none; a name stands twice; a number is not finite; it has more than
            `MAX_ITEMS` members or `MAX_DEPTH` levels; a string is not Unicode.
    """
    # Counted before anything is made of them; commas within strings count too.
    if sum(map(text.count, (b",", b"[", b"{"))) > MAX_ITEMS:
        raise ValueError(f"{path}: must have at most {MAX_ITEMS:,} members")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        made = dict(pairs)
        if len(made) < len(pairs):
            counts = Counter(name for name, _ in pairs)
            twice = next(name for name, count in counts.items() if count > 1)
            raise ValueError(f"the name {shown(twice)!r} stands twice")
        return made

    def number(digits: str) -> float:
        if not math.isfinite(value := float(digits)):
            raise ValueError(f"{digits[:80]} is too large a number")
        return value

    def constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is not JSON")

    try:
        made = json.loads(
            text.decode(), object_pairs_hook=unique, parse_float=number, parse_constant=constant
        )
    except RecursionError:
        raise ValueError(f"{path}: nested too deep") from None
    except ValueError as error:  # JSON's and Unicode's are ValueErrors too
        raise ValueError(f"{path}: {error}") from None
    if not isinstance(made, dict):
        raise ValueError(f"{path}: must hold a JSON object, got {type(made).__name__}")
    _check_tree(made, path)
    return made


def _check_tree(tree: Any, path: Path) -> None:
    level = [tree]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.keys()
                below += value.values()
            elif isinstance(value, list):
                below += value
            elif isinstance(value, str) and not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:  # half of a surrogate pair
                    raise ValueError(f"{path}: {shown(value)!r} is not Unicode") from None
        if not below:
            return
        level = below
    raise ValueError(f"{path}: nested too deep")
