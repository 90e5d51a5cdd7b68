"""Bugs for mutants.py. What is written: quantised checkpoints, tuned numbers, packed int4."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/checkpoint/quantizing.py",
        "test_cli_quantize test_quantize_outputs",
        {
            "shard-of-other-settings-kept": (
                "if not is_marked(path, MARK, self._mark):",
                "if False:",
            ),
            "weight-quantised-unsmoothed": (
                "weight = weight.float() * smooth",
                "pass",
            ),
            "norm-not-divided": ("(x.float() / divisor).to(x.dtype)", "x"),
            "scale-of-a-weight-flat": ("scale.view(-1, 1)", "scale.view(-1)"),
            "calibrated-again": (
                "        if values is None:\n            values = calibrate(",
                "        if True:\n            values = calibrate(",
            ),
            "computed-tensors-written": ("elif entry.name not in self._plan.computed:", "else:"),
            "calibration-left-behind": (
                "        (out / CALIBRATION).unlink(missing_ok=True)\n",
                "",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/quantizing.py",
        "test_quantize_outputs::test_modes_are_never_wider",
        {"mode-of-a-shard-wider": ("made, mode=mode_of(file.path)", "made")},
    ),
    *of(
        "scaled_mm/checkpoint/calibrating.py",
        "test_quantize_outputs::test_a_scale_that_is_none",
        {
            "static-scale-not-checked": (
                "if not bool(scale > 0 and scale.isfinite()):",
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/calibrating.py",
        "test_quantize_outputs::test_smoothing_that_no_norm_takes",
        {
            "smoothing-without-a-place": (
                "if smooth is not None and smooth.norm is None:",
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/saving.py",
        "test_save_quantized",
        {
            "half-a-folder-left": ("        shutil.rmtree(folder)\n        raise", "        raise"),
            "folder-with-files-written-into": (
                "if path.exists() and not (path.is_dir() and not any(path.iterdir())):",
                "if False:",
            ),
            "tied-tensor-twice": ("names = set(first.values())", "names = set(tensors)"),
            "embeddings-in-place-of-the-head": ('fields["tie_word_embeddings"] = False', "pass"),
            "transposed-weight-saved": (
                "if name in kinds and not is_linear(kinds[name]):",
                "if False:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/shards.py",
        "test_shards test_save_quantized test_cli_quantize test_quantize_outputs",
        {
            "small-elements-first": (
                "key=lambda each: -DTYPES[each.dtype].itemsize",
                "key=lambda each: DTYPES[each.dtype].itemsize",
            ),
            "tensor-that-is-missing-forgotten": (
                '            if missing:\n                raise ValueError(f"{path}',
                '            if False:\n                raise ValueError(f"{path}',
            ),
            "shard-that-was-cut-kept": (" or path.stat().st_size != self.size", ""),
            "shard-without-end": ("if not shards or each.nbytes > room:", "if not shards:"),
        },
    ),
    *of(
        "scaled_mm/ops/packed_awq.py",
        "test_pack_awq",
        {
            "packed-int4-of-any-size": ("if self.data.shape != (size,):", "if False:"),
        },
    ),
    *of(
        "scaled_mm/tuning/cache.py",
        "test_tune test_tune_fit",
        {
            "stale-numbers-taken": ("if entry.gpu not in stale)", "if True)"),
            "gpu-twice-in-a-file": (
                "if len({entry.gpu for entry in entries}) < len(entries):",
                "if False:",
            ),
            "unknown-kernels-in-a-file": (
                "if not entry.stale() and (unknown",
                "if False and (unknown",
            ),
            "other-gpus-forgotten": (
                "for each in (*others, entry)]}",
                "for each in (entry,)]}",
            ),
            "two-runs-write-at-once": ("        fcntl.flock(descriptor, fcntl.LOCK_EX)\n", ""),
        },
    ),
]
