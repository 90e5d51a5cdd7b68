"""Bugs for mutants.py that no test noticed when mutate_random.py planted them."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/checkpoint/blocks.py",
        "test_quantize_blocks::test_which_models_are_run_by_blocks",
        {"blocks-that-ignore-each-other": ("if set(slots) == {SAME}:", "if False:")},
    ),
    *of(
        "scaled_mm/checkpoint/calibrating.py",
        "test_quantize_blocks::test_warnings_are_those_of_the_whole_model",
        {"warned-of-the-library-s-line": ("stacklevel=6", "stacklevel=5")},
    ),
    *of(
        "scaled_mm/checkpoint/calibrating.py",
        "test_quantize_outputs::test_nothing_of_another_run_is_mixed_in",
        {"calibration-of-another-run": ("if file.metadata.get(_MARK) != mark:", "if False:")},
    ),
    *of(
        "scaled_mm/checkpoint/files.py",
        "test_parallel::test_a_part_of_a_dtype_that_torch_has_not",
        {
            "part-of-another-dtype": (
                "entry, dtype = self.entries[name], self._dtype(name)\n        part",
                "entry = self.entries[name]\n        dtype = DTYPES.get(entry.dtype)\n        part",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/float_model.py",
        "test_remote_code",
        {"strangers-code-is-run": ('"trust_remote_code": False', '"trust_remote_code": True')},
    ),
    *of(
        "scaled_mm/checkpoint/folder.py",
        "test_checkpoint_files::test_a_bad_index_is_refused",
        {"pickled-shard-is-only-misnamed": ("if (index.parent / shard).is_file():", "if False:")},
    ),
    *of(
        "scaled_mm/checkpoint/layers_packed.py",
        "test_checkpoint_packed",
        {"packed-without-channels": ("if not words or not n:", "if not words:")},
    ),
    *of(
        "scaled_mm/checkpoint/loading.py",
        "test_checkpoint",
        {
            "stored-buffer-on-meta-refused": (
                "if buffer.is_meta and name not in targets:",
                "if buffer.is_meta:",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/output.py",
        "test_save_quantized::test_modes_are_those_of_new_files",
        {"json-may-be-run": ("mode: int = 0o666) -> None:", "mode: int = 0o777) -> None:")},
    ),
    *of(
        "scaled_mm/checkpoint/precompute.py",
        "test_precompute",
        {"seconds-since-the-start": ("time.perf_counter() - started", "time.perf_counter()")},
    ),
    *of(
        "scaled_mm/checkpoint/saving.py",
        "test_save_quantized",
        {
            "shards-of-one-tensor-refused": ("if max_shard_bytes < 1:", "if max_shard_bytes < 2:"),
            "in-folders-that-exist-alone": (
                "path.parent.mkdir(parents=True, exist_ok=True)",
                "path.parent.mkdir(exist_ok=True)",
            ),
        },
    ),
    *of(
        "scaled_mm/lowbit/words.py",
        "test_mixed_weights::test_words_of_checkpoints_refused",
        {"nested-words": (" and not words.is_nested", "")},
    ),
    *of(
        "scaled_mm/ops/units.py",
        "test_units::test_who_gets_units",
        {
            "units-on-a-cpu": ('device.type != "cuda" or ', ""),
            "units-of-nothing": ("n == 0 or not", "not"),
        },
    ),
    *of(
        "scaled_mm/quantization/calibrate.py",
        "test_smoothquant::test_clip_keeps_what_it_says",
        {"energy-of-edges": ("energy = counted * ", "energy = counted + ")},
    ),
    *of(
        "scaled_mm/quantization/feeds.py",
        "test_smoothquant::test_a_linear_with_two_sources_is_not_fed",
        {"norm-of-a-linear-s-other-source": ("if len(seen) > 1 for norm", "if False for norm")},
    ),
    *of(
        "scaled_mm/quantization/fuse.py",
        "test_fuse::test_a_gated_mlp_whatever_the_order_of_its_linears",
        {
            "gated-mlps-of-one-order": (
                "for roles in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0), (2, 1, 0)):",
                "for roles in ((0, 1, 2), (1, 0, 2), (0, 2, 1), (2, 0, 1), (1, 2, 0)):",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/compare.py",
        "test_terminal::test_bars_end_at_their_total",
        {
            "bar-that-stops-short": (
                "wanted.append(_rows(call, output(call(model))))\n                tick()",
                "wanted.append(_rows(call, output(call(model))))",
            ),
        },
    ),
]
