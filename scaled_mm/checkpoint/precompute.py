"""`precompute`: the azp terms of a checkpoint, added to it.

    static asymmetric     azp_with_adj = input_zero_point * 1 B     int32 [1, N]
    dynamic asymmetric    azp_adj      =                    1 B     int32 [1, N]

for every layer with an int8 weight B.T [N, K]; all other tensors are copied byte for byte. A shard
goes through a buffer of some MB, whatever the size of its tensors. It is written beside its final
name, synced and renamed: what has its final name is whole. Run again after an interruption: a shard
that is there is compared with what would be written, and left alone when it is the same. The index
and config.json come last; without them a folder of shards is no checkpoint.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch

from .config import W8A8
from .folder import CONFIG, Checkpoint
from .layers import Int8Layer, int8_layers
from .output import other_files, output_folder, write_rest
from .writing import MARK, Draft, is_marked

CONFIG_MARK = "scaled_mm_azp"
"""Stands in the config.json that is written, as 1."""


@dataclass(frozen=True)
class Term:
    """The azp term of one layer."""

    layer: str
    name: str
    """azp_with_adj or azp_adj."""
    channels: int
    zero_point: int | None
    """Static: the zero point."""
    rounded_from: float | None
    """Static: what was stored, where that was no integer."""
    added: bool
    """False: the checkpoint had the term, and it was right."""


@dataclass(frozen=True)
class Shard:
    """One file of the output."""

    name: str
    bytes: int
    terms: int
    """How many were added."""
    skipped: bool
    """It was there already, as it should be."""


@dataclass(frozen=True)
class PrecomputeReport:
    """What `precompute` did."""

    checkpoint: str
    out: str
    terms: tuple[Term, ...]
    symmetric: tuple[str, ...]
    """Quantised layers that need no term."""
    shards: tuple[Shard, ...]
    copied: tuple[str, ...]
    """Other files that went along, such as the tokenizer's."""
    left_out: tuple[str, ...]
    """What did not: folders, pickles, tensor files that the checkpoint does not name."""
    bytes: int
    """Of all shards."""
    seconds: float


def precompute(
    checkpoint: str | Path,
    out: str | Path,
    progressed: Callable[[int, int], None] = lambda done, total: None,
) -> PrecomputeReport:
    """Writes a copy of a W8A8 checkpoint that has the azp term of every asymmetric layer.

    Args:
        checkpoint: as for `scaled_mm.checkpoint.Checkpoint`.
        out: a folder: new, empty, or of an earlier run on this checkpoint.
        progressed: called with how many bytes were done since the last call, and of how many.

    Raises:
        ValueError: the checkpoint is malformed, not W8A8, or has what is not understood (named); or
            `out` is the checkpoint itself, holds what was not written here or of another
            checkpoint, or is being written by another run; or a file is a link out of the folder.
        OSError: a file cannot be read or written. What was finished stays, for the next run.
    """
    started = time.perf_counter()
    source, out = Checkpoint(checkpoint), Path(out)
    if source.quantization is None:
        raise ValueError(f"{source.folder}: is a float checkpoint, without quantization_config")
    if not isinstance(source.quantization, W8A8):
        raise ValueError(
            f"{source.folder}: must be W8A8 to have azp terms, got {source.quantization}"
        )
    layers = int8_layers(source, source.quantization)
    if not layers:
        raise ValueError(f"{source.folder}: has no int8 weight")
    terms = tuple(_term(source, layer) for layer in layers.values() if layer.scheme.term)
    drafts = [Draft(source, file, layers) for file in source.files.values()]
    total = sum(draft.size for draft in drafts)
    names = {draft.name for draft in drafts} | ({source.index.name} if source.index else set())
    others, left_out = other_files(source.folder, {*names, CONFIG}, source.paths())
    shards = []
    with output_folder(out, "scaled-mm precompute", source.folder, names), _one_thread():
        for path in (out / draft.name for draft in drafts):
            if path.exists() and not is_marked(path, MARK, "1"):  # somebody's own
                raise ValueError(f"{path}: was not written by precompute; name another folder")
        for draft in drafts:
            skipped = draft.is_in(out / draft.name, lambda done: progressed(done, total))
            if not skipped:
                draft.write(out / draft.name, lambda done: progressed(done, total))
            shards.append(Shard(draft.name, draft.size, len(draft.terms), skipped))
        write_rest(source, out, others, drafts, {**source.config, CONFIG_MARK: 1})
    return PrecomputeReport(
        checkpoint=str(checkpoint),
        out=str(out),
        terms=terms,
        symmetric=tuple(layer.name for layer in layers.values() if layer.scheme.symmetric),
        shards=tuple(shards),
        copied=tuple(path.name for path in others),
        left_out=tuple(path.name for path in left_out),
        bytes=total,
        seconds=time.perf_counter() - started,
    )


@contextmanager
def _one_thread() -> Iterator[None]:
    """A piece's sums take less than its copy; several threads would mostly wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _term(source: Checkpoint, layer: Int8Layer) -> Term:
    """Reads the small tensors of a layer, so that a bad one is refused before any work."""
    layer.check_zeros(source)
    zero = layer.zero_point(source)
    value = None if zero is None else int(zero)
    stored = None if zero is None else float(layer.read(source, "input_zero_point"))
    return Term(
        layer=layer.name,
        name=str(layer.scheme.term),
        channels=layer.n,
        zero_point=value,
        rounded_from=stored if stored != value else None,
        added=layer.scheme.term not in layer.parts,
    )
