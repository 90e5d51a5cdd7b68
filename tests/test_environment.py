"""What must not change a bit: threads, repetition, the floating-point mode of the caller or of a
worker, a fork; and what chooses the instruction set."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from awq_cases import AwqCase
from helpers import ISAS, ROUNDING, bits, run_python, strange_mode, x86_only
from operands import Case, Vector
from quantize_cases import QuantizeCase
from torch import Tensor

import scaled_mm
from scaled_mm import reference

CASES = {
    "bias": Case("bias", 70, 200, 300, bias=Vector("signed")),
    "azp": Case("azp", 33, 130, 600, azp=Vector("int8"), azp_adj=Vector("sums")),
    "subnormal": Case("subnormal", 70, 200, 9, scale_a=Vector("wide"), scale_b=Vector("wide")),
    "float16": Case("float16", 70, 200, 9, scale_a=Vector("wide"), out_dtype=torch.float16),
    "ties": Case("ties", 70, 200, 2000, a="extreme", scale_a=Vector((0.3,)), bias=Vector("signed")),
    "float32": Case("float32", 40, 70, 9, scale_a=Vector("mixed"), out_dtype=torch.float32),
}
QUANTIZE_CASES = {
    "token": QuantizeCase("token", "normal", (300, 200)),
    "asymmetric": QuantizeCase("asymmetric", "scaled", (300, 200), symmetric=False),
    "tensor": QuantizeCase("tensor", "positive", (300, 200), symmetric=False, per_token=False),
    "denormal": QuantizeCase("denormal", "denormal", (300, 200), scale=Vector((1e-42,), "1")),
    "float16": QuantizeCase("float16", "denormal", (300, 200), torch.float16),
    "least": QuantizeCase("least", "scale-near-least", (300, 200), symmetric=False),
}
AWQ_CASES = {
    "subnormal": AwqCase("subnormal", scales="subnormal", k=256, n=520),
    "bfloat16": AwqCase("bfloat16", scales="wide", dtype=torch.bfloat16, bias=torch.float32),
}
# Built once, in the ordinary mode: flushing denormals would change the operands.
PRODUCTS = {name: case.build() for name, case in CASES.items()}
QUANTISED = {name: case.build() for name, case in QUANTIZE_CASES.items()}
AWQ = {name: case.product() for name, case in AWQ_CASES.items()}
PRODUCTS["least"] = {
    "a": torch.ones(200, 8, dtype=torch.int8),
    "b": torch.ones(8, 200, dtype=torch.int8),
    "scale_a": torch.ones(1),
    "scale_b": torch.full((200,), 1e-41),
    "residual": torch.full((200, 200), 3e-45),
    "out_dtype": torch.float32,
}


def outputs() -> Iterator[Tensor]:
    """Every op on every case above."""
    for operands in PRODUCTS.values():
        weight = scaled_mm.pack_weight_int8(operands["b"])
        yield weight.data
        yield scaled_mm.scaled_mm(**operands)
        yield scaled_mm.scaled_mm(**{**operands, "b": weight})
        yield scaled_mm.int8_mm(operands["a"], weight)
        yield scaled_mm.azp_adj(operands["b"])
    for operands in QUANTISED.values():
        yield from filter(torch.is_tensor, scaled_mm.quantize_int8(**operands))
    for operands in AWQ.values():
        weight = {k: x for k, x in operands.items() if k not in ("x", "bias")}
        yield scaled_mm.awq_dequantize(**weight)


def definitions() -> Iterator[Tensor]:
    """The reference on the same cases."""
    for operands in PRODUCTS.values():
        out = reference.scaled_mm(**operands)
        yield out
        yield reference.scaled_mm_exact(**operands)
        yield reference.int8_mm(operands["a"], operands["b"])
        given = {k: x for k, x in operands.items() if k != "out_dtype"}
        report = reference.check(out, **given)
        assert report.different == 0, report
        judged = [report.worst_ulp, report.worst_of_bound, float(report.outside)]
        yield torch.tensor(judged, dtype=torch.float64).view(torch.int64)
    for operands in QUANTISED.values():
        yield from filter(torch.is_tensor, reference.quantize_int8(**operands))
        yield reference.quantize_int8_exact(**operands)[0]
    for operands in AWQ.values():
        weight = {k: x for k, x in operands.items() if k not in ("x", "bias")}
        yield reference.awq_dequantize(**weight)
        yield reference.awq_gemm(**operands)


def digest(of: Callable[[], Iterator[Tensor]] = outputs) -> str:
    """One hash for all bits of all of them."""
    state = hashlib.sha256()
    for out in of():
        state.update(bits(out).contiguous().numpy().tobytes())
    return state.hexdigest()


@pytest.fixture(scope="module")
def expected() -> str:
    """The bits on the instruction set that runs without being asked for."""
    return digest()


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("count", range(1, 9))
def test_threads(isa: str, count: int, expected: str) -> None:
    torch.set_num_threads(count)
    assert digest() == expected


@pytest.mark.usefixtures("threads")
def test_a_thousand_runs(isa: str) -> None:
    torch.set_num_threads(4)
    operands = Case("again", 64, 200, 96, bias=Vector("signed")).build()
    x = QuantizeCase("again", "normal", (64, 300)).build()["x"]
    hashes = set()
    for _ in range(1000):
        out = scaled_mm.scaled_mm(**operands)
        q, scale, _ = scaled_mm.quantize_int8(x)
        data = b"".join(bits(t).numpy().tobytes() for t in (out, q, scale))
        hashes.add(hashlib.sha256(data).digest())
    assert len(hashes) == 1


def test_calls_from_many_threads(isa: str, expected: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(lambda _: digest(), range(24))) == {expected}


# --- floating-point modes -------------------------------------------------------------------------

MODES = ("down", "up", "to-zero")


@pytest.fixture
def flush_denormal() -> Iterator[None]:
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush denormals")
    yield
    torch.set_flush_denormal(False)


def test_flush_denormal(isa: str, expected: str, flush_denormal: None) -> None:
    assert digest() == expected
    assert torch.tensor([1e-40]).mul(1.0).item() == 0, "the caller's mode is restored"


@pytest.fixture(scope="module")
def defined() -> str:
    """The bits of the reference in the ordinary mode."""
    return digest(definitions)


def test_the_reference_when_subnormals_are_flushed(defined: str, flush_denormal: None) -> None:
    assert digest(definitions) == defined
    assert torch.tensor([1e-40]).mul(1.0).item() == 0, "the caller's mode is restored"


def digest_rounded(mode: str, of: Callable[[], Iterator[Tensor]]) -> str:
    """In a rounding mode, which is left as it is."""
    with strange_mode(mode) as libm:
        got, restored = digest(of), libm.fegetround()
    assert restored == ROUNDING[mode]
    return got


@x86_only
@pytest.mark.parametrize("mode", MODES)
def test_rounding_mode(isa: str, expected: str, mode: str) -> None:
    assert digest_rounded(mode, outputs) == expected


@x86_only
@pytest.mark.parametrize("mode", MODES)
def test_the_reference_in_a_rounding_mode(defined: str, mode: str) -> None:
    assert digest_rounded(mode, definitions) == defined


IN_A_STRANGE_MODE = """
import sys, torch
torch.set_num_threads(1)
import test_environment
from helpers import each_isa, strange_mode

x = torch.arange(4e6)
nearest = x / 7
with strange_mode(sys.argv[1], True):
    torch.set_num_threads(4)  # workers are born in the mode of the thread that makes them
    x.div(7)
assert not torch.equal(x.div(7), nearest), "no worker is in the strange mode"
what = getattr(test_environment, sys.argv[2])
print(*{test_environment.digest(what) for isa in each_isa()})
"""


@x86_only
@pytest.mark.parametrize("mode", MODES)
def test_rounding_mode_of_workers(expected: str, mode: str) -> None:
    assert run_python(IN_A_STRANGE_MODE, mode, "outputs").strip() == expected


@x86_only
def test_the_reference_beside_workers_in_a_strange_mode(defined: str) -> None:
    got = run_python(IN_A_STRANGE_MODE, "up", "definitions").strip()
    assert got == defined


FORK = """
import os, sys, torch, test_environment
from helpers import each_isa
before = test_environment.digest()
torch.set_num_threads(4)
for isa in each_isa():
    assert test_environment.digest() == before
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # as torch asks of a forked child: OpenMP's workers are not in it
        os._exit(0 if test_environment.digest() == before else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert test_environment.digest() == before  # and the parent goes on
print(before)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_fork_after_use(expected: str) -> None:
    assert run_python(FORK).strip() == expected


# --- the choice of an instruction set -------------------------------------------------------------

KNOWN_ISAS = ("amx_int8", "avx512_bf16", "avx512_vnni", "avx_vnni", "avx2", "portable")


def test_isas() -> None:
    assert [isa for isa in KNOWN_ISAS if isa in ISAS] == ISAS
    assert ISAS[-1] == "portable"


@pytest.mark.parametrize(("variable", "expected"), [("portable", "portable"), ("", ISAS[0])])
def test_isa_by_the_environment(variable: str, expected: str) -> None:
    code = (
        "import os, scaled_mm\n"
        "print(scaled_mm._library.cpu_isa())\n"
        "os.environ['SCALED_MM_CPU_ISA'] = 'none'\n"  # read once, when the library is loaded
        "print(scaled_mm._library.cpu_isa())\n"
    )
    assert run_python(code, SCALED_MM_CPU_ISA=variable).split() == [expected] * 2


def test_isa_forced_for_a_while() -> None:
    best = scaled_mm._library.cpu_isa()
    with scaled_mm._library.forced_cpu_isa("portable"):
        assert scaled_mm._library.cpu_isa() == "portable"
        with scaled_mm._library.forced_cpu_isa(""):
            assert scaled_mm._library.cpu_isa() == ISAS[0]
        assert scaled_mm._library.cpu_isa() == "portable"
    assert scaled_mm._library.cpu_isa() == best
    assert scaled_mm.int8_mm(*(torch.ones(2, 2, dtype=torch.int8),) * 2).tolist() == [[2, 2]] * 2


@pytest.mark.parametrize(
    "name", ["avx3", "AVX2", "avx2 ", "none", *(isa for isa in KNOWN_ISAS if isa not in ISAS)]
)
def test_unavailable_isa(name: str) -> None:
    one = torch.ones(1, 1, dtype=torch.int8)
    message = (
        rf"^SCALED_MM_CPU_ISA must be one that this machine runs \({', '.join(ISAS)}\), got {name}$"
    )
    for call in (
        lambda: scaled_mm.scaled_mm(one, one, torch.ones(1), torch.ones(1)),
        lambda: scaled_mm.int8_mm(one, one),
        lambda: scaled_mm.quantize_int8(torch.ones(1, 1)),
        lambda: scaled_mm.quantize_int8(torch.ones(1, 1), scale=torch.ones(1)),
        lambda: scaled_mm.quantize_weight_int8(torch.ones(1, 1)),
    ):
        with scaled_mm._library.forced_cpu_isa(name), pytest.raises(ValueError, match=message):
            call()


def test_tree_without_its_library(tmp_path: Path) -> None:
    """The sources without `_C_cpu.abi3.so` say which command makes it."""
    package = Path(scaled_mm.__file__).parent
    ignored = shutil.ignore_patterns("*.so", "__pycache__")
    shutil.copytree(package, tmp_path / "scaled_mm", ignore=ignored)
    done = subprocess.run(
        [sys.executable, "-c", "import scaled_mm"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("ImportError: scaled_mm is not built")
    assert "`make build`" in last
