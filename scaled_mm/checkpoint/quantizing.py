"""`quantize_checkpoint`: a float checkpoint in, a quantised one out.

The tensors of a shard are read, quantised and written one after the other, so that one weight is in
memory at a time. A scheme that needs calibration runs the float model first, block by block where
it is made of equal blocks (`blocks.py`) and else as a whole; what that finds is small, and is kept
in the output folder until the last shard is there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..lowbit.grouped import quantize_weight_grouped, scales_dtype
from ..lowbit.stored import stored, to_bytes
from ..nn.block_linear import BLOCK
from ..ops.quantize import quantize_weight_int8
from ..quantization.blockwise_int8 import BlockScheme
from ..quantization.compressed_tensors import INT, format_of, quantization_config
from ..quantization.model import QuantConfig
from ..quantization.rotation import EMBEDDING, HEAD, Rotation
from ..quantization.schemes import WeightScheme
from .calibrating import CALIBRATION, Calibrated, calibrate, read_calibration, write_calibration
from .files import TensorFile
from .folder import CONFIG, Checkpoint, rotation_metadata
from .output import other_files, output_folder, write_rest
from .quantize_plan import Plan, fingerprint
from .shards import NewShard
from .writing import is_marked, mode_of

MADE_BY = "scaled-mm quantize"
MARK = "scaled_mm.quantize"
"""In the `__metadata__` of every shard: of which source, and with which settings, it was made."""


@dataclass(frozen=True)
class ShardReport:
    """One file of the output."""

    name: str
    bytes: int
    layers: int
    """How many weights in it were quantised."""
    skipped: bool
    """It was there already, of an earlier run."""


@dataclass(frozen=True)
class QuantizeReport:
    """What `quantize_checkpoint` did."""

    checkpoint: str
    out: str
    layers: Mapping[str, str]
    """Name of each quantised layer -> its scheme."""
    smoothed: int | None
    """How many of them are smoothed; None: not known, all shards were there already."""
    rotation: Rotation | None
    """What was folded into the weights, with its seed; the shards' metadata have it too."""
    floats: tuple[str, ...] | None
    """Linears that stay float; None: the model's modules are not known."""
    others: Mapping[str, str]
    """Why other matrices stay float that are multiplied by, such as stacked experts, by name."""
    calibration: str | None
    """How the float model was run: "block by block", or why it had to be in memory as a whole.
    None: it was not run."""
    share: float
    """Part of the checkpoint's parameters that was quantised."""
    shards: tuple[ShardReport, ...]
    dropped: tuple[str, ...]
    """Tensors that the model computes itself."""
    copied: tuple[str, ...]
    """Other files that went along, such as the tokenizer's."""
    left_out: tuple[str, ...]
    """What did not: folders, pickles, tensor files that the checkpoint does not name."""
    bytes_before: int
    bytes: int
    seconds: float


def quantize_checkpoint(
    checkpoint: str | Path,
    out: str | Path,
    config: QuantConfig | None = None,
    batches: Iterable[Any] | None = None,
    progressed: Callable[[int, int], None] = lambda done, total: None,
    *,
    format: str | None = None,
) -> QuantizeReport:
    """Quantises a float checkpoint, file by file.

    The weights have the bits that `scaled_mm.quantize_model` gives them. All other tensors are
    copied byte for byte, except norms that smoothing divides. The output has the same shards.

    Run again after an interruption, it goes on behind the last shard that is whole, without
    calibrating again. config.json comes last: before it the folder is no checkpoint.

    Args:
        checkpoint: a float checkpoint, as for `scaled_mm.checkpoint.Checkpoint`.
        out: a folder: new, empty, or of an earlier run with the same source and settings.
        config: as for `quantize_model`. Which modules are Linears is asked of transformers, by
            config.json; where it cannot tell, `targets` must name them. Of smoothing only what a
            norm can take is done, for the format has no place for the rest.
        batches: for static schemes, smoothing and rotation, as for `quantize_model`. Then the float
            model runs, in its own dtype, on the CPU; of a rotation alone, on the first batch.
        progressed: called with how many bytes of the source were done since the last call, and of
            how many.
        format: as for `save_quantized`.

    Raises:
        ValueError: the checkpoint is malformed or quantised; config means no Linear, one that has
            no weight of its own, a rotation that the model cannot have, or smoothing that the
            format has no place for; batches are missing; or `out` holds what was not written
            here, or with other settings.
        ModuleNotFoundError: transformers is needed, and not installed.
        OSError: a file cannot be read or written. What was finished stays, for the next run.
    """
    started = time.perf_counter()
    source, out, config = Checkpoint(checkpoint), Path(out), config or QuantConfig()
    plan = Plan.of(source, config, format)
    if plan.runs and batches is None:
        what = "a static scheme, smoothing or rotation"
        raise ValueError(f"batches must be given for {what}, got None")
    run = _Run(plan, out, list(batches) if plan.runs and batches is not None else [])
    written = {*run.names(), CONFIG}
    others, left_out = other_files(source.folder, written, source.paths())
    with output_folder(out, MADE_BY, source.folder, run.names()):
        reports, values = run.write_shards(progressed)
        run.write_rest(others)
        (out / CALIBRATION).unlink(missing_ok=True)
    smoothed = values.smoothed if values else None
    return QuantizeReport(
        checkpoint=str(checkpoint),
        out=str(out),
        layers={name: str(scheme) for name, scheme in plan.schemes.items()},
        smoothed=smoothed if plan.config.smoothing else 0,
        rotation=plan.folding.rotation if plan.folding else None,
        calibration=values.how if values else None,
        floats=plan.floats,
        others=plan.others,
        share=plan.share,
        shards=reports,
        dropped=tuple(sorted(plan.computed)),
        copied=tuple(path.name for path in others),
        left_out=tuple(path.name for path in left_out),
        bytes_before=sum(file.size for file in source.files.values()),
        bytes=sum(shard.bytes for shard in reports),
        seconds=time.perf_counter() - started,
    )


class _Run:
    """One run: the plan, and the shards that it writes."""

    def __init__(self, plan: Plan, out: Path, batches: list[Any]) -> None:
        self._plan = plan
        self._source = plan.source
        self._out = out
        self._batches = batches
        self._mark = fingerprint(plan, batches)
        rotation = rotation_metadata(plan.folding.rotation if plan.folding else None)
        self._shards = {
            name: NewShard(
                name, plan.planned(file), {**file.metadata, **rotation, MARK: self._mark}
            )
            for name, file in plan.source.files.items()
        }

    def names(self) -> set[str]:
        """The checkpoint's files that are written."""
        index = self._source.index
        return {*self._shards, CALIBRATION} | ({index.name} if index else set())

    def write_shards(
        self, progressed: Callable[[int, int], None]
    ) -> tuple[tuple[ShardReport, ...], Calibrated | None]:
        """Writes what is not there yet; also returns what calibration found, if anything was."""
        files = self._source.files
        total = sum(file.size - file.data for file in files.values())
        missing = {name for name in files if not self._is_made(name)}
        values = self._calibrated() if missing else None
        reports = []
        for name, file in files.items():
            if name in missing:
                made = self._tensors(file, values or Calibrated(), lambda n: progressed(n, total))
                self._shards[name].write(self._out / name, made, mode=mode_of(file.path))
            else:
                progressed(file.size - file.data, total)
            layers = sum(entry in self._plan.weights for entry in file.entries)
            skipped = name not in missing
            reports.append(ShardReport(name, self._shards[name].size, layers, skipped))
        return tuple(reports), values

    def _is_made(self, name: str) -> bool:
        """Whether an earlier run wrote the shard, and nothing cut it off since.

        Raises:
            ValueError: it was made with other settings, or somewhere else.
        """
        path = self._out / name
        if not path.exists():
            return False
        if self._shards[name].is_there(path):
            return True
        if not is_marked(path, MARK, self._mark):
            raise ValueError(
                f"{path}: was made with other settings or of other files; name another folder"
            )
        return False

    def _calibrated(self) -> Calibrated:
        if not self._plan.runs:
            return Calibrated()
        values = read_calibration(self._out, self._mark)
        if values is None:
            values = calibrate(self._plan, self._batches)
            write_calibration(self._out, self._mark, values)
        return values

    def _tensors(
        self, file: TensorFile, values: Calibrated, progressed: Callable[[int], None]
    ) -> Iterator[tuple[str, Tensor]]:
        """The tensors that a file of the source becomes, one layer at a time."""
        for entry in file.entries.values():
            layer = self._plan.weights.get(entry.name)
            if layer is not None:
                yield from self._layer(layer, file.read(entry.name), values)
            elif entry.name not in self._plan.computed:
                inside = self._plan.names.get(entry.name, entry.name)  # the model's name of it
                x = file.read(entry.name)
                yield entry.name, _divided(inside, self._plan.folded(inside, x), values)
                if self._plan.new_head and inside == f"{EMBEDDING}.weight":
                    yield f"{HEAD}.weight", self._plan.folded(f"{HEAD}.weight", x)
                del x  # before the next one is read
            progressed(entry.nbytes)

    def _layer(self, name: str, weight: Tensor, values: Calibrated) -> Iterator[tuple[str, Tensor]]:
        smooth = values.get(f"{name}.smooth")
        scheme, dtype = self._plan.scheme_for(name), scales_dtype(weight.dtype)
        stored_as = self._plan.stored[name]
        weight = self._plan.folded(f"{name}.weight", weight)
        if smooth is not None:
            weight = weight.float() * smooth
        if isinstance(scheme, WeightScheme):
            made = quantize_weight_grouped(
                weight,
                bits=scheme.bits,
                group_size=scheme.group_size,
                symmetric=scheme.symmetric,
                dtype=dtype,
            )
            tensors = stored(made, scheme.bits) | {"weight_shape": torch.tensor(weight.shape)}
            if format_of(self._plan.schemes[name]) == INT:
                tensors = to_bytes(tensors, weight.shape[1])
            yield from ((f"{stored_as}.{part}", x) for part, x in tensors.items())
            return
        if isinstance(scheme, BlockScheme):
            q, scale = quantize_weight_int8(weight, block_size=BLOCK)
            yield f"{stored_as}.weight", q
            yield f"{stored_as}.weight_scale_inv", scale.t().contiguous()
            return
        q, scale = quantize_weight_int8(weight, rotate=scheme.rotate)
        yield f"{stored_as}.weight", q
        yield f"{stored_as}.weight_scale", scale.view(-1, 1)
        for part in ("input_scale", "input_zero_point"):
            if (x := values.get(f"{name}.{part}")) is not None:
                yield f"{stored_as}.{part}", x

    def write_rest(self, others: list[Path]) -> None:
        """What goes with the shards, and last config.json."""
        schemes = {self._plan.stored[name]: x for name, x in self._plan.schemes.items()}
        rotation = self._plan.folding.rotation if self._plan.folding else None
        quantization = quantization_config(schemes, self._plan.floats, rotation)
        untied = {"tie_word_embeddings": False} if rotation and rotation.residual else {}
        config = {**self._source.config, **untied, "quantization_config": quantization}
        write_rest(self._source, self._out, others, list(self._shards.values()), config)


def _divided(name: str, x: Tensor, values: Calibrated) -> Tensor:
    """A float tensor as it is, or of a norm that takes smoothing, as `feeds.divided` makes it."""
    divisor = values.get(f"{name.rpartition('.')[0]}.divisor")
    return x if divisor is None else (x.float() / divisor).to(x.dtype)
