"""What `import scaled_mm` takes with it, and the paths under which its parts are imported."""

import pytest
from helpers import run_python

LATER = ("rich", "typer", "click", "matplotlib", "tokenizers", "transformers", "safetensors")
"""Of the command line, of reading checkpoints, of the demo: loaded by what needs them."""

PUBLIC = (
    "awq",
    "bench",
    "calibrate",
    "checkpoint",
    "cli",
    "compat",
    "demo",
    "explain",
    "integrations",
    "integrations.vllm",
    "integrations.vllm_weights",
    "layouts",
    "nn",
    "observe",
    "parallel",
    "precompute",
    "reference",
    "smoothquant",
    "validate",
)


def test_import_is_light():
    before = run_python("import sys, torch, numpy; print(*sys.modules)").split()
    after = run_python("import sys, torch, numpy, scaled_mm; print(*sys.modules)").split()
    assert "scaled_mm" in after
    new = {name.partition(".")[0] for name in set(after) - set(before)}
    assert new.isdisjoint(LATER)


@pytest.mark.parametrize("name", PUBLIC)
def test_public_modules_are_imported_first(name):
    """Each in a fresh process, so that no other has loaded what it forgot."""
    run_python(f"import scaled_mm.{name}")


def test_every_name_on_offer_is_there():
    run_python(
        "import importlib\n"
        "for name in ['', *" + repr(tuple("." + name for name in PUBLIC)) + "]:\n"
        "    module = importlib.import_module('scaled_mm' + name)\n"
        "    for each in getattr(module, '__all__', ()):\n"
        "        getattr(module, each)\n"
    )
