"""ThreadSanitizer over the CPU kernels and over callers in several threads: `make tsan`.

    python tests/races.py              no report of the library; then reports, where threads overlap
    python tests/races.py --work       the calls alone, in this process

The library is built with -fsanitize=thread, in build/tsan. torch is not: its parallel_for is
replaced by one on plain threads (counted_threads.cpp), and OpenMP has one thread. So the tool knows
every order that there is between two accesses of the library. The interpreter and torch are not
compiled for it: their own accesses are not looked at. Nothing is suppressed.
"""

import argparse
import os
import platform
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent
BUILT = ROOT / "build" / "tsan"
THREADS = 4
TURNS = 3


def work() -> None:
    """Every op on every instruction set; alone, and from several threads with the same operands
    while another thread forces one instruction set after the other."""
    os.environ["SCALED_MM_TEST_DEVICE"] = "cpu"
    import torch
    from awq_cases import AwqCase
    from cuda_mixed_cases import exact_cases
    from cuda_support import how_many_differ
    from produce_cases import PRODUCE_CASES
    from test_cuda_streams import Work
    from test_produce import produce

    import scaled_mm
    from scaled_mm import _library

    assert torch.get_num_threads() == 1  # of OpenMP, which the tool does not see through
    every = Work(device="cpu")
    weight = AwqCase("races", 128, 64, 32, rows=(70,)).product()
    exact, bound = scaled_mm.reference.awq_gemm_bound(**weight)
    packed = [scaled_mm.pack_weight_int8(x["b"]) for x in every.operands[0]]
    expected = [scaled_mm.int8_mm(x["a"], x["b"]) for x in every.operands[0]]

    weights = [(case.weight("cpu"), case.operands()) for case in list(exact_cases())[::13]]
    produced = [case.build() for case in list(PRODUCE_CASES.values())[::7]]

    def newest() -> list[torch.Tensor]:
        """Sums of `exact_cases` are exact: the same bits on every instruction set."""
        made = [scaled_mm.mixed_mm(w=w, **x) for w, x in weights]
        made += [w.dequantize() for w, _ in weights]
        return made + [x for given in produced for x in produce(**given) if x is not None]

    before = newest()

    def call(_: int = 0) -> int:
        wrong = sum(every.differences(every.run())) + sum(how_many_differ(newest(), before))
        shared = [
            scaled_mm.int8_mm(x["a"], w) for x, w in zip(every.operands[0], packed, strict=True)
        ]
        wrong += sum(how_many_differ(shared, expected))
        scaled_mm.awq_dequantize(*(weight[x] for x in ("qweight", "scales", "qzeros")))
        error = (scaled_mm.awq_gemm(**weight).double() - exact).abs()
        return wrong + int((error > bound).sum())

    def switch(_: int) -> int:
        for isa in _library.cpu_isas() * 50:
            with _library.forced_cpu_isa(isa):
                _library.cpu_isa()
        return 0

    for isa in _library.cpu_isas():
        with _library.forced_cpu_isa(isa):
            assert call() == 0, isa
    # A packed weight is the same bytes for every instruction set, or the switch would be refused.
    with ThreadPoolExecutor(THREADS + 1) as pool:
        switching = pool.submit(switch, 0)
        assert sum(pool.map(call, range(TURNS * THREADS))) == 0
        assert switching.result() == 0
    print(f"right on {', '.join(_library.cpu_isas())}")


def tool_library() -> str:
    return subprocess.check_output(
        [os.environ.get("CXX", "c++"), "-print-file-name=libtsan.so"], text=True
    ).strip()


def compile_threads(*flags: str) -> Path:
    library = BUILT / f"counted_threads{len(flags)}.so"
    command = [os.environ.get("CXX", "c++"), "-std=c++20", "-O1", "-g", "-shared", "-fPIC", *flags]
    source = str(TESTS / "counted_threads.cpp")
    subprocess.run([*command, "-fsanitize=thread", source, "-o", str(library)], check=True)
    return library


def watched(threads: Path, options: str = "") -> tuple[int, str]:
    """The reports of the tool about the calls, with these threads; and all that was said."""
    ours = {
        "LD_PRELOAD": f"{tool_library()} {threads}",
        "TSAN_OPTIONS": f"exitcode=66 history_size=4 {options}",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(BUILT), str(TESTS)]),
    }
    # The tool lays its shadow at fixed addresses: no random ones for this process.
    command = ["setarch", platform.machine(), "-R", sys.executable, str(TESTS / "races.py")]
    done = subprocess.run(
        [*command, "--work"],
        cwd=BUILT,
        env={**os.environ, **ours},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    reports = len(re.findall("WARNING: ThreadSanitizer", done.stdout))
    if not reports and done.returncode:
        raise SystemExit(f"the calls fail:\n{done.stdout[-3000:]}")
    return reports, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--work", action="store_true", help="the calls alone")
    if parser.parse_args().work:
        work()
        return 0
    shutil.rmtree(BUILT, ignore_errors=True)
    subprocess.run(
        [sys.executable, "setup.py", "--quiet", "build", "--build-lib", str(BUILT)],
        cwd=ROOT,
        env={**os.environ, "SCALED_MM_SANITIZE": "thread"},
        check=True,
    )
    reports, said = watched(compile_threads())
    print(said if reports else said.strip(), f"{reports} reports", sep="\n", flush=True)
    planted, _ = watched(compile_threads("-DOVERLAP"), "halt_on_error=1")
    print(f"planted: {planted} reports")
    return 1 if reports or not planted else 0


if __name__ == "__main__":
    sys.exit(main())
