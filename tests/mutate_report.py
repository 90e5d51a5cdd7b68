"""The verdicts on mutants, in a file: build/mutants.json is that of the runs of a clone. The first
of them begins with the kept one, docs/validation/mutants.json."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from mutant import Mutant

ROOT = Path(__file__).resolve().parent.parent
REPORT = ROOT / "build" / "mutants.json"
KEPT = ROOT / "docs" / "validation" / "mutants.json"
GOOD = ("killed", "equivalent")


@dataclass
class Verdict:
    word: str
    detail: str = ""
    seconds: int = 0
    key: str = ""


class Report:
    """The verdicts so far, by name of the mutant, in a file that is rewritten after each."""

    def __init__(self, path: Path, before: Path | None = None) -> None:
        """`before`: what stands for the file as long as there is none."""
        self.path = path
        source = path if path.is_file() else before
        kept = json.loads(source.read_text()) if source and source.is_file() else {}
        self.verdicts = {name: Verdict(**fields) for name, fields in kept.items()}

    def current(self, mutant: Mutant) -> Verdict | None:
        """The verdict, if it is of these sources."""
        verdict = self.verdicts.get(mutant.name)
        return verdict if verdict and verdict.key == key_of(mutant) else None

    def known(self, mutant: Mutant) -> Verdict | None:
        """The verdict of an earlier run that is believed."""
        verdict = self.current(mutant)
        return verdict if verdict and verdict.word in GOOD else None

    def add(self, mutant: Mutant, verdict: Verdict) -> None:
        verdict.key = key_of(mutant)
        self.verdicts[mutant.name] = verdict
        self.write()

    def write(self) -> None:
        said = {name: json.dumps(asdict(v)) for name, v in sorted(self.verdicts.items())}
        text = ",\n".join(f'"{name}": {fields}' for name, fields in said.items())
        self.path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self.path.with_suffix(".new")
        fresh.write_text(f"{{\n{text}\n}}\n")
        fresh.replace(self.path)  # a run that is stopped here loses nothing


def key_of(mutant: Mutant) -> str:
    """Of what a verdict depends on first: the mutant, its file, the files of its tests."""
    paths = [mutant.path, *(f"tests/{test.partition('::')[0]}.py" for test in mutant.tests.split())]
    state = hashlib.sha256(repr(mutant).encode())
    for path in paths:
        state.update((ROOT / path).read_bytes())
    return state.hexdigest()[:16]
