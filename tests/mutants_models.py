"""Bugs for mutants.py. Python: quantising whole models."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/quantization/calibrate.py",
        "test_smoothquant test_model",
        {
            "range-of-the-last-batch": (
                "found[name] = found[name] | seen if name in found else seen",
                "found[name] = seen",
            ),
            "maximum-of-one-side": ("torch.maximum(-self.low, self.high)", "self.high"),
            "nan-in-a-calibration": (
                "if not bool((low.isfinite() & high.isfinite()).all()):",
                "if False:",
            ),
            "clipped-at-one-end": (
                "tail = (1 - percentile / 100) / 2",
                "tail = 1 - percentile / 100",
            ),
            "clipping-not-warned": ("if part > CLIPPED_ENERGY}", "if part > 2}"),
            "merged-ranges-of-the-first": ("reduce(Ranges.__or__, found)", "found[0]"),
            "rows-are-not-a-copy": (
                "x[::step].clone() if rows",
                "x[::step] if rows",
                (
                    "the rows of a batch are the inputs themselves, and a model that writes "
                    "into them is none that can be calibrated"
                ),
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/feeds.py",
        "test_smoothquant",
        {
            "residual-is-no-reader": ("self.spoiled |= origins", "pass"),
            "gemma-is-foldable": ("if scales(norms[norm], trace.samples[norm])", "if True"),
            "two-sources-of-a-linear": (
                "if norm is not None and not others:",
                "if norm is not None:",
            ),
            "bias-of-a-norm-not-divided": (
                'for name in ("weight", "bias"):',
                'for name in ("weight",):',
            ),
            "output-of-the-model-is-no-reader": (
                "trace.changed |= trace.origins(out)  #",
                "pass  #",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/inspect.py",
        "test_demo::test_bits",
        {"nan-is-a-difference": ("differs & ~(got.isnan() & want.isnan())", "differs")},
    ),
    *of(
        "scaled_mm/quantization/inspect.py",
        "test_validate test_validate_checkpoint",
        {
            "first-token-only": ("rows = [x[:: self.stride]]", "rows = [x[:1]]"),
            "decibels-of-amplitudes": ("10 * log10(signal / noise)", "20 * log10(signal / noise)"),
            "extremes-not-kept": (
                "rows += [x.amin(0, keepdim=True), x.amax(0, keepdim=True)]",
                "pass",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/calibration.py",
        "test_model test_smoothquant",
        {
            "percentile-forgotten": (
                "if config.percentile is not None:\n        layers",
                "if False:\n        layers",
            ),
            "unreached-static-layer": (
                "missed = [name for name in static if name not in self.ranges]",
                "missed: list[str] = []",
            ),
            "smoothed-range-of-the-raw-input": (
                "(ranges.times(1 / smooth.s) if smooth else ranges).whole()",
                "ranges.whole()",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/blocks.py",
        "test_quantize_blocks",
        {
            "blocks-in-any-order": ("if at != self._done:", "if False:"),
            "an-output-read-twice": ("self._between.for_blocks |= out", "pass"),
            "a-norm-of-another-block": ("if all(held):", "if any(held) or True:"),
            "a-block-that-is-not-freed": (
                "            self._loaded.close()\n            self._out",
                "            self._out",
            ),
        },
    ),
    *of(
        "scaled_mm/checkpoint/streaming.py",
        "test_quantize_blocks",
        {
            "matrices-that-stay": (
                "owner._parameters[leaf] = _empty(owner._parameters[leaf])",
                "pass",
            ),
            "another-dtype-in-the-files": (
                "if DTYPES.get(entry.dtype) != x.dtype or",
                "if",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/observe.py",
        "test_model test_smoothquant test_validate",
        {
            "padding-calibrates": (
                ("if mask is not None and x.shape[:-1] == mask.shape:\n            return x[mask]"),
                "if mask is not None and False:\n            return x[mask]",
            ),
            "hooks-left-behind": (
                (
                    "finally:\n        for hook in hooks:\n            hook.remove()\n    return "
                    "outputs"
                ),
                "finally:\n        pass\n    return outputs",
            ),
            "training-mode-not-restored": (
                "finally:\n        for module in training:\n            module.training = True",
                "finally:\n        pass",
            ),
            "one-scale-without-padding": (
                "Call().tokens if one_scale(layer) else call.tokens",
                "call.tokens",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/smoothquant.py",
        "test_smoothquant",
        {
            "alpha-the-other-way-round": (
                "s = x**alpha / w ** (1 - alpha)",
                "s = x ** (1 - alpha) / w**alpha",
            ),
            "smoothed-by-an-empty-channel": (
                "s.where((x > 0) & (w > 0), 1.0)",
                "s.where(w > 0, 1.0)",
            ),
            "norm-divided-for-some-of-its-readers": (
                "and set(names) <= set(chosen)",
                "and set(names) & set(chosen)",
            ),
            "search-judged-by-its-own-inputs": (
                "others = [merge(p for p in parts if p is not held) for held in parts]",
                "others = [merge(parts) for held in parts]",
            ),
            "search-takes-the-worst": (
                "(min(noise, key=lambda a: noise[a])",
                "(max(noise, key=lambda a: noise[a])",
            ),
            "overfitting-not-said": ("if len(near_one) > len(self.smooth) / 2:", "if False:"),
            "alphas-of-the-last-pattern": (
                "return next(given, smoothing.alpha)",
                "return [smoothing.alpha, *given][-1]",
            ),
            "shared-norm-of-one-weight": ("return torch.stack(maxima).amax(0)", "return maxima[0]"),
            "layers-that-no-norm-feeds": ("return name in feeds.fed", "return True"),
            "noise-of-the-first-layer": (
                "total += float(noise / signal) if signal else 0.0",
                "total = total or float(noise / signal)",
            ),
            "alpha-of-any-size": ("if not 0 <= alpha <= 1:", "if not -1 <= alpha <= 2:"),
        },
    ),
]
