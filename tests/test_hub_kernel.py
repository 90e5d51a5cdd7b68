"""The project for Hugging Face's kernel-builder: of the sources and flags that setup.py builds."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import hub_kernel
import pytest
from helpers import extra, run_python
from torch.utils import cpp_extension

tomllib = extra("tomllib" if sys.version_info >= (3, 11) else "tomli")  # pytest has tomli


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("hub")
    hub_kernel.write(out)
    return out


def tables(project: Path) -> dict[str, Any]:
    return tomllib.loads((project / "build.toml").read_text())


def test_the_tables_are_those_that_were_made(project: Path) -> None:
    assert tables(project) == hub_kernel.build_toml(hub_kernel.load_setup())


def test_every_source_of_setup_is_built_once_for_its_backend(project: Path) -> None:
    read, setup = tables(project), hub_kernel.load_setup()
    archs = setup.present_archs()
    targets = setup.cuda_build.targets(None, archs)
    cuda = setup.cuda_library(Path("/cuda"), Path("/cutlass"), targets)
    wanted = {
        "cpu": setup.cpu_library().sources,
        "cuda": [*cuda.sources, *(x for _, code, _ in cuda.device_code for x in code)],
    }
    own = set(read["torch"]["src"])
    assert own == {"torch-ext/torch_binding.cpp", "csrc/ops/schemas.cpp"}
    for backend, sources in wanted.items():
        built = [
            source
            for kernel in read["kernel"].values()
            if kernel["backend"] == backend
            for source in kernel["src"]
        ]
        assert len(set(built)) == len(built)
        assert set(built) == {x.replace("build/stubs", "stubs") for x in sources} - own
        for source in (*built, *own):
            assert (project / source).is_file(), source
    assert set(archs) < read["kernel"].keys()
    assert read["general"]["backends"] == list(wanted)


def test_flags_are_those_that_the_bits_need(project: Path) -> None:
    for kernel in tables(project)["kernel"].values():
        assert "-ffp-contract=off" in kernel["cxx-flags"]
        if kernel["backend"] == "cuda":
            assert {"-fmad=false", "-DUSE_CUDA"} <= set(kernel["cuda-flags"])
            assert "-DUSE_CUDA" in kernel["cxx-flags"]
    capabilities = {
        name: x.get("cuda-capabilities") for name, x in tables(project)["kernel"].items()
    }
    assert capabilities["cpu"] is None
    assert capabilities["sm80"] == ["8.0"]
    assert capabilities["sm90"] == ["9.0a"]
    assert {"8.0", "9.0a"} <= set(capabilities["common"])


def test_the_package_stands_alone(project: Path) -> None:
    """Relative imports, torch and the standard library; and no namespace of a fixed name."""
    package = project / "torch-ext/scaled_mm"
    files = sorted(package.rglob("*.py"))
    assert {"ops/int8.py", "nn/scaled_linear.py", "lowbit/grouped.py"} <= {
        str(file.relative_to(package)) for file in files
    }
    for file in files:
        text = file.read_text()
        compile(text, str(file), "exec")
        assert "scaled_mm::" not in text, file
        assert not re.search(r"torch\.ops\.scaled_mm\.\w", text), file
        assert not re.search(r"^\s*(from|import) scaled_mm", text, re.MULTILINE), file


def test_what_the_hub_cannot_have_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hub_kernel, "ENTRANCES", ("reference",))
    with pytest.raises(SystemExit, match=r"scaled_mm/reference/\w+.py: .* has no numpy"):
        hub_kernel.python_files()
    (tmp_path / "mine").write_text("")
    with pytest.raises(SystemExit, match="must be new or empty"):
        hub_kernel.write(tmp_path)


# What kernel-builder makes of its own, as far as the project uses it.
REGISTRATION = """#include <Python.h>
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define REGISTER_EXTENSION(name) \\
  PyMODINIT_FUNC JOIN(PyInit_, name)() { \\
    static PyModuleDef module = {PyModuleDef_HEAD_INIT, TEXT(name), nullptr, 0, nullptr}; \\
    return PyModule_Create(&module); \\
  }
"""
OPS = """import torch
from . import {name}
ops = torch.ops.{name}
def add_op_namespace_prefix(op):
    return f"{name}::{{op}}"
"""
USE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import scaled_mm as wheel
import renamed as hub  # under any name, beside the wheel's
assert hub.scaled_mm is not wheel.scaled_mm
torch.manual_seed(0)
a, b = (torch.randint(-128, 128, s, dtype=torch.int8) for s in ((5, 70), (70, 9)))
scales = torch.rand(5, 1), torch.rand(1, 9)
assert torch.equal(hub.scaled_mm(a, b, *scales), wheel.reference.scaled_mm(a, b, *scales))
layer = hub.nn.ScaledLinear.from_linear(torch.nn.Linear(70, 9).requires_grad_(False))
x = torch.randn(3, 70)
compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
assert torch.equal(compiled(x), layer(x))
print("right")
"""


@pytest.mark.slow
def test_the_cpu_build(project: Path, tmp_path: Path) -> None:
    """As kernel-builder builds it, beside the library of this tree in one process."""
    name, read = "_scaled_mm_0123abc", tables(project)
    (tmp_path / "registration.h").write_text(REGISTRATION)
    kernel = read["kernel"]["cpu"]
    include = [f"-I{project / x}" for x in kernel["include"]]
    torchs = [f"-isystem{x}" for x in cpp_extension.include_paths()]
    common = ["g++", "-c", "-fPIC", "-O2", *kernel["cxx-flags"], f"-DTORCH_EXTENSION_NAME={name}"]
    common += [*include, *torchs, f"-I{tmp_path}", f"-isystem{sysconfig.get_path('include')}"]
    common += ["-DCPU_KERNEL", "-DTORCH_TARGET_VERSION=0x020b000000000000ULL"]
    objects = []
    for source in (*read["torch"]["src"], *kernel["src"]):
        objects.append(str(tmp_path / (source.replace("/", "_") + ".o")))
        subprocess.run([*common, str(project / source), "-o", objects[-1]], check=True)
    package = tmp_path / "renamed"
    (project / "torch-ext/scaled_mm").rename(package)
    (package / "_ops.py").write_text(OPS.format(name=name))
    libraries = [f"-L{x}" for x in cpp_extension.library_paths()] + ["-ltorch", "-ltorch_cpu"]
    module = package / f"{name}.abi3.so"
    link = ["g++", "-shared", "-Wl,-Bsymbolic", *objects, *libraries, "-o", str(module)]
    subprocess.run(link, check=True)
    assert run_python(USE, str(tmp_path)).split()[-1] == "right"
