"""No kernel reads or writes outside an operand or an output: each at both ends of mapped memory."""

from pathlib import Path

import cuda_guard_pages
import pytest
from cuda_support import GPU, streams_only
from helpers import run_python

pytestmark = [*GPU, streams_only]

SCRIPT = Path(cuda_guard_pages.__file__).read_text()


@pytest.mark.parametrize("part", cuda_guard_pages.PARTS)
def test_operands_between_guard_pages(part: str) -> None:
    assert run_python(SCRIPT, part).strip() == f"{part}: no access outside"


def test_the_guard_guards() -> None:
    with pytest.raises(AssertionError, match="illegal memory access"):
        run_python(SCRIPT, "fault")
