"""compute-sanitizer's four tools over every kernel, several processes side by side.

    python tests/sanitizers.py                         all, with a process for every two cores
    python tests/sanitizers.py --tools memcheck --count 9 --json build/sanitizers.json
    python tests/sanitizers.py sm80/ mixed             only processes that hold one of the words
    python tests/sanitizers.py --record docs/reliability.md     the figures of that file's run

Each process runs one piece of tests/sanitize_cuda.py, a few kernels of one family, under one tool.
The report is written after every piece; what is clean there, of the same library, is not run again.
Exit code 1 when a tool or a result complains, or a piece did not end.

initcheck does not see what TMA stores write, and takes it for unwritten. Kernels that write D so
are left out there, by name, and so are calls that a kernel hands to one of them;
tests/test_cuda_old_memory.py looks at these in another way.
"""

import argparse
import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build/sanitizers.json"
LIBRARY = ROOT / "scaled_mm/_C_cuda.abi3.so"
TOOLS = ("memcheck", "synccheck", "racecheck", "initcheck")
AT_ONCE = 3  # kernels of a piece: a process takes about 15 s before it calls the first
BY_TMA = re.compile(r"/(ping|coop)_|/dense$|^$|^packed$")  # or perhaps so: what the shape chooses
BEGIN, END = "<!-- sanitizers.py: begin -->", "<!-- sanitizers.py: end -->"


@dataclass(frozen=True)
class Piece:
    tool: str
    part: str  # of sanitize_cuda.py
    rows: tuple[str, ...] = ()

    def holds(self, words: list[str]) -> bool:
        return not words or any(word in f"{self.part} {' '.join(self.rows)}" for word in words)


@dataclass(frozen=True)
class Outcome:
    piece: Piece
    word: str  # "clean", "complains", "did not end"
    results: int  # compared with the CPU backend
    seconds: int
    said: str


def pieces(tools: list[str]) -> Iterator[Piece]:
    """Those of one tool after those of another."""
    from cuda_mixed_cases import arms
    from cuda_support import NAMES, kernels
    from test_cuda_awq import ALL_ARMS

    four_bits = [arm for arm in ALL_ARMS if "/packed8_" not in arm]
    mixed = [*arms(4), *(name for name in arms(8) if name not in arms(4))]
    for tool in tools:
        yield Piece(tool, "others")
        parts = {"int8": [*NAMES, ""], "int4": four_bits, "mixed": mixed}
        parts["grouped"] = [*kernels("grouped"), ""]
        for part, names in parts.items():
            seen = [x for x in names if tool != "initcheck" or not BY_TMA.search(x)]
            for at in range(0, len(seen), AT_ONCE):
                yield Piece(tool, part, tuple(seen[at : at + AT_ONCE]))


def run(piece: Piece, archs: list[str], count: int, limit: int) -> Outcome:
    """In a process that sees each allocation. `archs`: folders whose kernels this GPU runs; asking
    those of the others would be an error of the runtime's. `limit`: in seconds."""
    start = time.monotonic()
    rows = [f"--rows={','.join(piece.rows)}"] if piece.rows else []
    rows += ["--own"] if piece.tool == "initcheck" else []
    checked = ["compute-sanitizer", "--tool", piece.tool, "--error-exitcode", "1"]
    command = [*checked, sys.executable, "tests/sanitize_cuda.py", piece.part, *rows]
    process = subprocess.Popen(
        [*command, f"--count={count}"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "SCALED_MM_TEST_ARCHS": " ".join(archs)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # the tool starts Python as a child
    )
    try:
        said, _ = process.communicate(timeout=limit)
        word = "complains" if process.returncode else "clean"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
        word = "did not end"
    found = re.search(r"([\d,]+) results compared", said)
    results = int(found[1].replace(",", "")) if found else 0
    if word == "clean" and not results:
        word = "complains"  # nothing was run
    return Outcome(piece, word, results, round(time.monotonic() - start), said[-3000:])


def table(report: dict[str, Any]) -> str:
    """The figures of a report, as Markdown."""
    lines = ["| Tool | processes | kernels | results compared | complaints | did not end |"]
    lines.append("|---|---:|---:|---:|---:|---:|")
    for tool in TOOLS:
        own = [x for x in report["outcomes"] if x["piece"]["tool"] == tool]
        words = Counter(x["word"] for x in own)
        ended = [x for x in own if x["word"] == "clean"]
        kernels = sum(len(x["piece"]["rows"]) for x in ended)
        compared = sum(x["results"] for x in ended)
        counts = (len(own), kernels, compared, words["complains"], words["did not end"])
        lines.append(f"| {tool} | {' | '.join(f'{x:,}' for x in counts)} |")
    what = f"On an {report['device']}, about {report['count']} calls of each kernel"
    others = "packing, quantisers, producers, dequantising and widening are a process of each tool."
    return "\n".join([f"{what}; {others}", "", *lines])


def record(text: str, figures: str, marks: tuple[str, str]) -> str:
    """The document with these figures between the marks.

    Raises:
        SystemExit: a mark is missing.
    """
    before, begin, rest = text.partition(marks[0])
    _, end, after = rest.partition(marks[1])
    if not (begin and end):
        raise SystemExit(f"the document must hold {marks[0]} and {marks[1]}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def clean_before(path: Path, head: dict[str, Any]) -> list[Outcome]:
    """Of an earlier run of the same library, on the same machine, with as many calls."""
    kept = json.loads(path.read_text()) if path.is_file() else {}
    if not head.items() <= kept.items():
        return []
    found = [Outcome(**{**x, "piece": Piece(**x["piece"])}) for x in kept["outcomes"]]
    return [
        replace(x, piece=replace(x.piece, rows=tuple(x.piece.rows)))
        for x in found
        if x.word == "clean"
    ]


def check(options: argparse.Namespace) -> int:
    from cuda_support import ARCHS_HERE, DEVICE
    from torch.cuda import get_device_name

    assert DEVICE == "cuda"
    report: dict[str, Any] = {"device": get_device_name(), "count": options.count}
    report["library"] = hashlib.sha256(LIBRARY.read_bytes()).hexdigest()[:16]
    outcomes = clean_before(options.json, report)
    known = {x.piece for x in outcomes}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.jobs) as pool:
        chosen = [x for x in pieces(options.tools.split(",")) if x not in known]
        chosen = [x for x in chosen if x.holds(options.words)]
        running = [
            pool.submit(run, piece, ARCHS_HERE, options.count, options.limit) for piece in chosen
        ]
        for done in as_completed(running):
            one = done.result()
            outcomes.append(one)
            print(f"{one.word:11} {one.seconds:4} s  {one.piece}: {one.results:,}", flush=True)
            if one.word != "clean":
                print(one.said, flush=True)
            report["outcomes"] = [asdict(x) for x in outcomes]
            options.json.write_text(json.dumps(report, indent=1) + "\n")
    return int(any(x.word != "clean" for x in outcomes))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("words", nargs="*", metavar="WORD", help="only processes that hold one")
    parser.add_argument("--tools", default=",".join(TOOLS), help="by commas (default: all four)")
    parser.add_argument("--count", type=int, default=40, help="calls of each kernel, about")
    parser.add_argument("--limit", type=int, default=1800, help="seconds for a process")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) // 2))
    parser.add_argument("--json", type=Path, default=REPORT, metavar="FILE")
    parser.add_argument("--record", type=Path, metavar="FILE.md", help="run nothing; write figures")
    options = parser.parse_args()
    if options.record is None:
        return check(options)
    figures = table(json.loads(options.json.read_text()))
    text = record(options.record.read_text(), figures, (BEGIN, END))
    options.record.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
