"""No kernel reads outside an operand: tails of every length against pages without access."""

import sys
from pathlib import Path

import pytest
from helpers import run_python

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="mprotect")
SCRIPT = (Path(__file__).with_name("guard_pages.py")).read_text()


def test_operands_between_guard_pages() -> None:
    assert run_python(SCRIPT).strip() == "no access outside"


def test_the_guard_guards() -> None:
    with pytest.raises(AssertionError, match=r"exit code -11|AddressSanitizer: SEGV"):
        run_python(SCRIPT, "fault")
