"""The version, for modules that `scaled_mm` itself is built upon."""

import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

try:
    VERSION = version("scaled-mm")
except PackageNotFoundError:  # a source tree that was built in place and never installed
    _project = (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
    VERSION = re.findall(r'^version = "(.*?)"', _project, re.MULTILINE)[0]
