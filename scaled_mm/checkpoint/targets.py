"""Which modules a `quantization_config` means: by name, by pattern, by class.

Patterns come from a file that nobody vouches for, and Python's matcher may run for ever on a short
one ("(a?){60}a{60}"). RE2 matches in time linear in the name, by construction; what it cannot do
that way (lookaround, references to groups) is refused.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .fields import Fields

PATTERN = "re:"
_MAX_MEMORY = 1 << 18
"""Bytes of a compiled list of patterns, about 20,000 characters and classes. This bounds the time
of a match too: some 20 ms for the longest name and the worst list that was found."""


@dataclass(frozen=True)
class Targets:
    """The entries of `targets` or `ignore`.

    Attributes:
        entries: each a module's name, "re:" and a regular expression that matches from the start of
            the name, or the name of a class.
    """

    entries: tuple[str, ...]

    def rank(self, name: str, classes: Iterable[str]) -> int | None:
        """How closely a module is meant: 0 by name, 1 by pattern, 2 by class, None not at all."""
        if name in self._plain:
            return 0
        if self._pattern is not None and self._pattern.match(name):
            return 1
        return 2 if any(each in self._plain for each in classes) else None

    def check(self, at: str, fields: Fields) -> None:
        """Refuses a pattern that is none, by name.

        Raises:
            ValueError: also where the patterns together are too large.
        """
        patterns = [entry for entry in self.entries if _is_pattern(entry)]
        if not patterns:
            return
        import re2  # here: few checkpoints have patterns

        for entry in patterns:
            try:
                re2.compile(entry.removeprefix(PATTERN), _options())
            except re2.error as error:
                reason = error.args[0]
                said = reason.decode() if isinstance(reason, bytes) else str(reason)
                fields.refuse(f"{at}: {entry[:80]!a} is no regular expression of RE2: {said[:80]}")
        try:
            _ = self._pattern
        except re2.error:
            fields.refuse(f"{at}: the {len(patterns)} patterns are too large together")

    @cached_property
    def _plain(self) -> frozenset[str]:
        return frozenset(entry for entry in self.entries if not _is_pattern(entry))

    @cached_property
    def _pattern(self) -> Any:
        """All patterns in one; None where there is none."""
        patterns = [entry.removeprefix(PATTERN) for entry in self.entries if _is_pattern(entry)]
        if not patterns:
            return None
        import re2

        return re2.compile("|".join(f"(?:{each})" for each in patterns), _options())


def _is_pattern(entry: str) -> bool:
    return entry.startswith(PATTERN)


def _options() -> Any:
    import re2

    options = re2.Options()
    options.max_mem = _MAX_MEMORY
    options.log_errors = False
    options.never_capture = True
    return options
