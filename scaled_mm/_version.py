"""The version, for modules that `scaled_mm` itself is built upon."""

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("scaled-mm")
except PackageNotFoundError:  # a source tree that was built in place and never installed
    VERSION = "0+unknown"
