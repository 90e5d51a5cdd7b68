"""How `quantization_config` is read: what is not understood is refused by name."""

from __future__ import annotations

from typing import Any, NoReturn


def shown(value: Any) -> str:
    """A value from the file as a refusal shows it: short, and without control characters."""
    text = ascii(value)
    return (text[1:-1] if isinstance(value, str) else text)[:80]


class Fields:
    """A reader of settings; `where` says in a refusal in which file and key they stood."""

    def __init__(self, where: str) -> None:
        self.where = where

    def refuse(self, reason: str) -> NoReturn:
        raise ValueError(f"{self.where}: {reason}")

    def understood(self, at: str, fields: dict[str, Any], known: set[str]) -> None:
        """Keys that nobody knows must say nothing: null, false or empty."""
        for key, value in fields.items():
            if key not in known and value not in (None, False, "", [], {}):
                self.refuse(f"{at and at + '.'}{shown(key)} is not understood, got {shown(value)}")

    def strings(self, at: str, value: Any) -> tuple[str, ...]:
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            self.refuse(f"{at} must be a list of strings, got {shown(value)}")
        return tuple(value)

    def flag(self, at: str, value: Any) -> bool | None:
        """True, false, or None where the key is not there."""
        if value is not None and not isinstance(value, bool):
            self.refuse(f"{at} must be true or false, got {shown(value)}")
        return value
