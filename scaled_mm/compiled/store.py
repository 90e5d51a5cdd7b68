"""The folder that keeps compiled epilogues, $XDG_CACHE_HOME/scaled_mm/epilogues.

    KEY.so       a library
    KEY.json     {"format": 1, "sha256": of the library, "verified": on a GPU,
                  "stamp": of the compiler's files}
    lock-00 ...  of keys that begin so: one process compiles, the others wait
    work-...     where one is being compiled

A library is taken if its record is there, its bytes are those of the record, and nobody else could
have written either: both belong to this user or to root, and neither group nor others may write
them or the folder. Anything else is as if it were not there. A record is written after its library,
and both are renamed to their names: whatever is killed leaves nothing that is taken.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ..tuning.cache import default_path

MOST_BYTES = 512 << 20
"""Of all libraries: the ones that were not used for longest go."""
STALE_S = 24 * 3600.0
"""After so long what was being compiled is a killed process's."""
_FORMAT = 1
_WORK = "work-"


def default_folder() -> Path | None:
    """None: there is no home folder."""
    tuning = default_path()
    return tuning.parent / "epilogues" if tuning else None


@dataclass(frozen=True)
class Found:
    """A library that may be loaded."""

    key: str
    path: Path
    verified: bool
    stamp: str


@dataclass(frozen=True)
class Store:
    """The folder."""

    folder: Path

    def find(self, key: str) -> Found | None:
        """The library of a key, if it is sound."""
        path, record = self._library(key), self._record(key)
        try:
            if not (_is_ours(self.folder) and _is_ours(path) and _is_ours(record)):
                return None
            said = json.loads(record.read_bytes()[:4096])
            if said.get("format") != _FORMAT or said.get("sha256") != _sha256(path):
                return None
        except (OSError, ValueError, AttributeError):
            return None
        with suppress(OSError):
            os.utime(path)
        return Found(key, path, said.get("verified") is True, str(said.get("stamp")))

    def keep(self, key: str, made: Path, stamp: str) -> Found:
        """Takes a library that was made in `work()`.

        Raises:
            OSError: it cannot be written.
        """
        path = self._library(key)
        sha256 = _sha256(made)
        self._record(key).unlink(missing_ok=True)  # it is of another library
        made.chmod(0o600)
        made.replace(path)
        self._note(key, sha256, verified=False, stamp=stamp)
        self._evict(path)
        return Found(key, path, False, stamp)

    def find_all(self, beginning: str) -> Iterator[Found]:
        """The sound libraries whose keys begin so."""
        for path in sorted(self.folder.glob(f"{beginning}*.so")):
            if found := self.find(path.stem):
                yield found

    def verified(self, found: Found) -> None:
        """Notes that the library gave the right bits."""
        with suppress(OSError):
            self._note(found.key, _sha256(found.path), verified=True, stamp=found.stamp)

    def drop(self, key: str) -> None:
        with suppress(OSError):
            self._record(key).unlink(missing_ok=True)
            self._library(key).unlink(missing_ok=True)

    @contextmanager
    def locked(self, key: str) -> Iterator[None]:
        """For one process at a time.

        Raises:
            OSError: the folder cannot be made or written.
        """
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(self.folder):
            raise PermissionError(f"{self.folder} can be written by others")
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        descriptor = os.open(self.folder / f"lock-{key[:2]}", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    @contextmanager
    def work(self) -> Iterator[Path]:
        """A folder to compile in; what killed processes left goes.

        Raises:
            OSError: it cannot be made.
        """
        for left in self.folder.glob(f"{_WORK}*"):
            with suppress(OSError):
                if time.time() - left.stat().st_mtime > STALE_S:
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
        folder = Path(tempfile.mkdtemp(prefix=_WORK, dir=self.folder))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _library(self, key: str) -> Path:
        return self.folder / f"{key}.so"

    def _record(self, key: str) -> Path:
        return self.folder / f"{key}.json"

    def _note(self, key: str, sha256: str, verified: bool, stamp: str) -> None:
        said = {"format": _FORMAT, "sha256": sha256, "verified": verified, "stamp": stamp}
        descriptor, name = tempfile.mkstemp(prefix=_WORK, dir=self.folder)
        try:
            with os.fdopen(descriptor, "w") as file:
                json.dump(said, file)
            Path(name).replace(self._record(key))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def _evict(self, kept: Path) -> None:
        """Deletes what was used least lately, until the rest is small enough."""
        found = []
        for path in self.folder.glob("*.so"):
            with suppress(OSError):
                facts = path.stat()
                found.append((facts.st_mtime, facts.st_size, path))
        total = sum(size for _, size, _ in found)
        for _, size, path in sorted(found):
            if total <= MOST_BYTES:
                break
            if path != kept:
                self.drop(path.stem)
                total -= size


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _is_ours(path: Path) -> bool:
    """Whether only this user or root can have written it."""
    facts = path.lstat()
    if stat.S_ISLNK(facts.st_mode) or facts.st_uid not in (os.geteuid(), 0):
        return False
    return not facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
