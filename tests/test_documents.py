"""What the documents name must exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parent


def test_the_tests_that_reliability_names_exist() -> None:
    text = (TESTS.parent / "docs" / "reliability.md").read_text()
    text, _, _ = text.partition("\n## How the tests are tested")  # behind it are figures
    named = re.findall(r"`(test_\w+)::(test_\w+)`", text)
    rows = [line for line in text.splitlines() if line.startswith("| ") and "| Test |" not in line]
    assert len(named) >= len(rows) > 20
    for file, test in named:
        assert f"\ndef {test}(" in (TESTS / f"{file}.py").read_text(), f"{file}::{test}"
