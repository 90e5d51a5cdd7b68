"""The file that keeps what `scaled-mm tune` measured: how it is read, checked and written.

    {"format": 1,
     "gpus": [{"device": "NVIDIA H200", "capability": 90, "sms": 132,    the GPU, by its driver
               "library": "0.2.0", "arch": "sm90", "tables": "36ff...",  what was measured
               "driver": "580.159.04",
               "memory_share": 0.87,     of the peak of device memory, what kernels reach
               "rows": {"sm90/int8/stream_8x64": [2.16, 1.444], ...}}]}  us of a call, rate

Numbers of another version of the library, of other tables or of another driver are stale: they are
left out, with the reason. A file that breaks any rule is left out as a whole. Nobody is kept from
working by either: `scaled-mm info` and `scaled-mm explain` say what happened.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .. import _library
from .._version import VERSION
from ..checkpoint.fields import Fields, read_json
from ..checkpoint.writing import new_file

VARIABLE = "SCALED_MM_TUNING"
"""Names the file, or is `off`: then none is read or written. Read once, at import."""

FORMAT = 1
MAX_BYTES = 1_000_000
MAX_GPUS = 64
MAX_TEXT = 256
# The limits of csrc/dispatch/tuning.cpp, in which a prediction is finite and above 0.
MEMORY_SHARE, FIXED_US, RATE = (0.05, 2.0), (0.0, 1e4), (1e-3, 1e3)
DRIVER = Path("/proc/driver/nvidia/version")


@dataclass(frozen=True)
class Entry:
    """What was measured on one kind of GPU."""

    device: str
    """The driver's name for it."""
    capability: int
    sms: int
    library: str
    """Version of scaled_mm."""
    arch: str
    tables: str
    """`_library.fingerprint` of the arch."""
    driver: str
    memory_share: float
    rows: dict[str, tuple[float, float]]
    """Kernel, such as sm90/int8/stream_8x64 -> fixed time in us, rate."""

    @property
    def gpu(self) -> tuple[str, int, int]:
        return (self.device, self.capability, self.sms)

    def stale(self) -> str:
        """Why the numbers do not hold here; empty: they do."""
        now = {
            "scaled_mm": (self.library, VERSION),
            "tables": (self.tables, _library.fingerprint(self.arch)),
            "driver": (self.driver, driver()),
        }
        found = (f"{what} {then}, now {here}" for what, (then, here) in now.items() if then != here)
        return "; ".join(found)


@dataclass(frozen=True)
class Cache:
    """What was found when the package was imported."""

    path: Path | None
    """Where it is looked for; None: it is off, or there is no home folder."""
    ignored: str = ""
    """Why nothing of the file is taken."""
    gpus: tuple[Entry, ...] = ()
    """Whose numbers are in force."""
    stale: dict[tuple[str, int, int], str] = field(default_factory=dict)
    """GPU -> why its numbers are not taken."""

    def lines(self) -> list[str]:
        """For `scaled-mm info`."""
        if self.path is None:
            return [self.ignored]
        if self.ignored:
            return [f"{self.path} is ignored: {self.ignored}"]
        told = [
            f"{entry.device} ({entry.sms} SMs): {len(entry.rows)} kernels, {self.path}"
            for entry in self.gpus
        ]
        told += [
            f"{device} ({sms} SMs) is ignored, stale: {reason}, {self.path}"
            for (device, _, sms), reason in self.stale.items()
        ]
        return told or ["none: `scaled-mm tune` measures this GPU"]

    def line(self, device: str, capability: int, sms: int) -> str:
        """For `scaled-mm explain`: of one GPU; empty: nothing was measured, nothing is wrong."""
        key = (device, capability, sms)
        if self.ignored and self.path is not None:
            return f"{self.path} is ignored: {self.ignored}"
        if key in self.stale:
            return f"{self.path} is ignored for this GPU, stale: {self.stale[key]}"
        if key in {entry.gpu for entry in self.gpus}:
            return f"numbers of `scaled-mm tune` are in force: {self.path}"
        return ""


def driver() -> str:
    """The version of NVIDIA's driver, as the kernel tells without CUDA being started; else
    "unknown"."""
    try:
        found = re.search(r"\s(\d+(?:\.\d+)+)\s", DRIVER.read_text())
    except (OSError, UnicodeDecodeError):
        return "unknown"
    return found[1] if found else "unknown"


def default_path() -> Path | None:
    """$XDG_CACHE_HOME/scaled_mm/tuning.json, with ~/.cache where that is not set."""
    folder = Path(os.environ.get("XDG_CACHE_HOME", ""))
    try:
        base = folder if folder.is_absolute() else Path.home() / ".cache"
    except RuntimeError:  # no home folder
        return None
    return base / "scaled_mm" / "tuning.json"


# --- reading --------------------------------------------------------------------------------------


def read(path: Path) -> tuple[Entry, ...]:
    """The entries of a file, every field checked by its type and range.

    Raises:
        ValueError: it breaks a rule; the message names file, field, rule and value.
        OSError: it cannot be read.
    """
    made = read_json(path, MAX_BYTES)
    fields = Fields(str(path))
    fields.integer("format", made.get("format"), FORMAT, FORMAT)
    gpus = made.get("gpus")
    if not isinstance(gpus, list) or len(gpus) > MAX_GPUS:
        fields.refuse(f"gpus must be a list of at most {MAX_GPUS} objects")
    entries = tuple(_entry(fields, f"gpus[{i}]", each) for i, each in enumerate(gpus))
    if len({entry.gpu for entry in entries}) < len(entries):
        fields.refuse("gpus must have each GPU once")
    return entries


def _entry(fields: Any, at: str, value: Any) -> Entry:
    made = fields.object(at, value)

    def text(name: str) -> str:
        found: str = fields.text(f"{at}.{name}", made.get(name))
        if not found.isprintable() or not 1 <= len(found) <= MAX_TEXT:
            fields.refuse(f"{at}.{name} must be 1 to {MAX_TEXT} printable characters")
        return found

    rows = fields.object(f"{at}.rows", made.get("rows"))
    arch = text("arch")
    entry = Entry(
        device=text("device"),
        capability=fields.integer(f"{at}.capability", made.get("capability"), 1, 10_000),
        sms=fields.integer(f"{at}.sms", made.get("sms"), 1, 1_000_000),
        library=text("library"),
        arch=arch,
        tables=text("tables"),
        driver=text("driver"),
        memory_share=fields.number(f"{at}.memory_share", made.get("memory_share"), *MEMORY_SHARE),
        rows={name: _row(fields, f"{at}.rows", name, pair) for name, pair in rows.items()},
    )
    known = kernels(arch)
    if not entry.stale() and (unknown := [name for name in rows if name not in known]):
        fields.refuse(f"{at}.rows must be of kernels of {arch}, got {unknown[0]!r}")
    return entry


def _row(fields: Any, at: str, name: str, pair: Any) -> tuple[float, float]:
    if not isinstance(pair, list) or len(pair) != 2:
        fields.refuse(f"{at} must be pairs of numbers")
    return (
        fields.number(f"{at}, fixed time of {name[:80]!r}", pair[0], *FIXED_US),
        fields.number(f"{at}, rate of {name[:80]!r}", pair[1], *RATE),
    )


def kernels(arch: str) -> set[str]:
    """Kernels of an arch by their full names, such as sm90/int8/stream_8x64."""
    return {
        f"{arch}/{family}/{name}"
        for family in _library.FAMILIES
        for name in _library.cuda_kernels(arch, family)
    }


# --- what is in force -----------------------------------------------------------------------------

_state = Cache(None, "not read yet")


def state() -> Cache:
    """What `load` found."""
    return _state


def load() -> Cache:
    """Reads the file and puts in force what holds here. Raises nothing for what a file may hold."""
    global _state
    _library.untune()
    _state = _loaded(os.environ.get(VARIABLE, ""))
    return _state


def _loaded(setting: str) -> Cache:
    if setting == "off":
        return Cache(None, f"off ({VARIABLE}=off)")
    path = Path(setting) if setting else default_path()
    if path is None:
        return Cache(None, "none: there is no home folder")
    try:
        if not path.exists():
            return Cache(path)
        entries = read(path)
        stale = {entry.gpu: reason for entry in entries if (reason := entry.stale())}
        good = tuple(entry for entry in entries if entry.gpu not in stale)
        for entry in good:
            _library.tune(*entry.gpu, entry.memory_share, entry.rows)
    except (ValueError, OSError) as reason:
        _library.untune()
        return Cache(path, str(reason).removeprefix(f"{path}: "))
    return Cache(path, gpus=good, stale=stale)


# --- writing --------------------------------------------------------------------------------------


def keep(entry: Entry, path: Path) -> None:
    """Puts the entry into the file, in place of the one of the same GPU.

    The file is there as it was or as it is to be, never in part; a broken one is replaced.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _locked(path.parent):
        others = [each for each in _there(path) if each.gpu != entry.gpu][-(MAX_GPUS - 1) :]
        _write(path, [*others, entry])


def drop(gpu: tuple[str, int, int], path: Path) -> bool:
    """Takes the GPU out of the file; whether it was there.

    Raises:
        OSError: the file cannot be written.
    """
    if not path.exists():
        return False
    with _locked(path.parent):
        there = _there(path)
        others = [each for each in there if each.gpu != gpu]
        _write(path, others)
    return len(others) < len(there)


def _write(path: Path, entries: list[Entry]) -> None:
    made = {"format": FORMAT, "gpus": [asdict(each) for each in entries]}
    with new_file(path, 0o600) as file:
        file.write(json.dumps(made, indent=1, allow_nan=False).encode() + b"\n")


def _there(path: Path) -> tuple[Entry, ...]:
    try:
        return read(path)
    except (ValueError, OSError):
        return ()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Two runs write one after the other."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
