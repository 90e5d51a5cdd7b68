"""What `import scaled_mm` takes with it, and the paths under which its parts are imported."""

import json
import pkgutil

import pytest
from helpers import run_python

import scaled_mm

LATER = ("rich", "typer", "click", "matplotlib", "tokenizers", "transformers", "safetensors")
"""Of the command line, of reading checkpoints, of the demo: loaded by what needs them."""

PUBLIC = [each.name for each in pkgutil.iter_modules(scaled_mm.__path__) if each.name[0] != "_"]
PUBLIC += ["", "integrations.vllm", "integrations.vllm_weights"]


def test_import_is_light():
    before = run_python("import sys, torch, numpy; print(*sys.modules)").split()
    after = run_python("import sys, torch, numpy, scaled_mm; print(*sys.modules)").split()
    assert "scaled_mm" in after
    new = {name.partition(".")[0] for name in set(after) - set(before)}
    assert new.isdisjoint(LATER)


LAZY = ("bench", "compat", "explain", "integrations", "parallel", "precompute", "validate")


def test_what_is_imported_when_it_is_named():
    run_python(
        "import sys, scaled_mm\n"
        f"for name in {LAZY}:\n"
        "    assert f'scaled_mm.{name}' not in sys.modules, name\n"
        "    assert name in dir(scaled_mm)\n"
        "    assert getattr(scaled_mm, name).__name__ == f'scaled_mm.{name}'\n"
        "scaled_mm.integrations.inductor.options()\n"
        "assert callable(scaled_mm.integrations.vllm.register)\n"
        "assert 'transformers' not in sys.modules\n"
        "for module in (scaled_mm, scaled_mm.integrations):\n"
        "    assert not hasattr(module, 'no_such_name')\n"
    )


EACH = """
import importlib, json, os, sys, traceback
import numpy, torch  # what every one of them loads first, and what takes the time

said = {}
for name in sys.argv[1:]:
    read, write = os.pipe()
    if not (child := os.fork()):
        assert "scaled_mm" not in sys.modules
        try:
            module = importlib.import_module(f"scaled_mm.{name}".removesuffix("."))
            for each in getattr(module, "__all__", ()):
                getattr(module, each)
        except BaseException:
            os.write(write, traceback.format_exc()[-4000:].encode())
            os._exit(1)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        said[name] = pipe.read()
    if os.waitpid(child, 0)[1]:
        said[name] = said[name] or "it ended"
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def imported():
    """What each module said that was imported first, with every name that it offers, in a process
    of its own: "" is good."""
    return json.loads(run_python(EACH, *PUBLIC))


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_are_imported_first(name, imported):
    """No other has loaded what it forgot."""
    assert imported[name] == ""
