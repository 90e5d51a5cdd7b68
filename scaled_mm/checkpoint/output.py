"""A folder that a command writes: one run at a time, of one source, and nobody else's files.

The folder holds `scaled_mm_output.json`, which is written first. It says which command wrote the
folder, and of which source. A later run takes the folder up only if it is that command, on that
source. The path of the source goes in as a hash: outputs are given away, and paths tell who made
them.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from .fields import read_json, shown
from .folder import CONFIG, Checkpoint
from .paths import is_other_file
from .shards import NewShard, index_of
from .writing import PARTIAL, Draft, mode_of, new_file

MANIFEST = "scaled_mm_output.json"


@contextmanager
def output_folder(out: Path, made_by: str, source: Path, files: Collection[str]) -> Iterator[None]:
    """Makes the folder, or takes up that of an earlier run, and locks it for this one.

    Args:
        out: new, empty, or of an earlier run of the same command on the same source.
        made_by: the command.
        source: the folder that is read; a new output folder gets its permissions.
        files: the checkpoint's files that will be written (shards, index).

    Raises:
        ValueError: out is no folder, is the source, holds what was not written here or of another
            source, or another run is writing there.
    """
    if os.path.lexists(out) and not out.is_dir():  # a broken link too
        raise ValueError(f"{out}: must be a folder")
    if out.resolve() == source.resolve():
        raise ValueError(f"{out}: must not be the folder of the checkpoint")
    out.mkdir(mode_of(source) | 0o700, parents=True, exist_ok=True)
    path = source.resolve()
    digest = hashlib.sha256(os.fsencode(path)).hexdigest()
    manifest = {"made_by": made_by, "source": shown(path.name), "source_path_sha256": digest}
    with _locked(out):
        _check_ours(out, manifest, files)
        for left in out.glob(f".*{PARTIAL}"):  # of a run that was killed
            left.unlink()
        if not (out / MANIFEST).exists():
            write_json(out / MANIFEST, manifest)
        yield


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """The lock ends with the process, however that ends."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(f"{folder}: another run is writing there") from None
        yield
    finally:
        os.close(descriptor)


def _check_ours(out: Path, manifest: dict[str, str], files: Collection[str]) -> None:
    if not (out / MANIFEST).exists():
        if {path.name for path in out.iterdir()} - {f".{MANIFEST}{PARTIAL}"}:
            raise ValueError(f"{out}: must be new, empty or of an earlier run, and is neither")
        return
    found = read_json(out / MANIFEST)
    if found.get("made_by") != manifest["made_by"]:
        raise ValueError(f"{out}: was written by another command; name another folder")
    if found != manifest:
        raise ValueError(f"{out}: was made of another checkpoint; name another folder")
    for path in out.iterdir():
        if path.name.endswith((".safetensors", ".index.json")) and path.name not in files:
            raise ValueError(f"{path}: would not be written; remove it or name another folder")


def other_files(
    folder: Path, written: Collection[str], read: Collection[Path] = ()
) -> tuple[list[Path], list[Path]]:
    """What goes along with a checkpoint as it is, and what is left out. The links of what is `read`
    are looked at too.

    Raises:
        ValueError: a file is a link out of the folder.
    """
    copied: list[Path] = []
    left_out: list[Path] = []
    for path in sorted(folder.iterdir()):
        if path.name not in {*written, MANIFEST}:
            (copied if is_other_file(path) else left_out).append(path)
    _refuse_links_out(folder, [*read, *copied])
    return copied, left_out


def _refuse_links_out(folder: Path, paths: Collection[Path]) -> None:
    """Links are followed within the folder, and from a hub's snapshot to the blobs beside it.

        HUB/models--ORGANISATION--NAME/snapshots/REVISION/config.json -> ../../blobs/HASH

    Raises:
        ValueError: a file is a link to anywhere else, which a copy would give away.
    """
    inside = folder.resolve()
    blobs = inside.parents[1] / "blobs" if inside.parent.name == "snapshots" else None
    for path in paths:
        if not path.is_symlink():
            continue
        target = path.resolve()
        if not target.is_relative_to(inside) and target.parent != blobs:
            raise ValueError(f"{path}: is a link out of the checkpoint, which is not copied")


def copy_file(path: Path, out: Path) -> None:
    """A copy of a file, with its permissions."""
    with path.open("rb") as file, new_file(out, mode_of(path)) as made:
        shutil.copyfileobj(file, made)


def write_rest(
    source: Checkpoint,
    out: Path,
    others: Iterable[Path],
    shards: Sequence[NewShard | Draft],
    config: dict[str, Any],
) -> None:
    """What goes with the shards of a copy: other files, the index where the source has one, and
    config.json last: before it the folder is no checkpoint."""
    for path in others:
        copy_file(path, out / path.name)
    if source.index is not None:
        index = index_of(shards, source.index_fields.get("metadata") or {})
        fields = {**source.index_fields, **index}
        write_json(out / source.index.name, fields, mode_of(source.index))
    write_json(out / CONFIG, config, mode_of(source.folder / CONFIG))


def write_json(path: Path, fields: dict[str, Any], mode: int = 0o666) -> None:
    """A JSON file; mode as for `new_file`."""
    text = json.dumps(fields, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with new_file(path, mode) as file:
        file.write(text.encode())
