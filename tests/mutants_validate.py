"""Bugs for mutants.py. Python: validation and the reference."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/reference/accuracy.py",
        "test_guards_python test_check",
        {
            "bound-without-a-sum-doubled": ("torch.bfloat16: 0.50005,", "torch.bfloat16: 1.0001,"),
            "bound-of-float16-doubled": ("torch.float16: 0.5004,", "torch.float16: 1.0008,"),
            "bound-of-float32-doubled": ("torch.float32: 3.0}", "torch.float32: 6.0}"),
            "bound-of-a-sum-doubled": (
                "report.roundings * 2.0**-24 * terms.size",
                "report.roundings * 2.0**-23 * terms.size",
            ),
            "half-ulp-of-a-sum-doubled": ("(1 + 2.0**-10) * one / 2", "(1 + 2.0**-10) * one"),
            "twice-the-bound-passes": (
                "np.count_nonzero(fraction > 1)",
                "np.count_nonzero(fraction > 2)",
            ),
            "zero-is-minus-zero": ("((x == y) & (np.signbit(x) == np.signbit(y)))", "(x == y)"),
            "last-block-alone": (
                "different=report.different + len(different)",
                "different=len(different)",
            ),
        },
    ),
    *of(
        "scaled_mm/reference/arithmetic.py",
        "test_reference",
        {
            "reference-gate-and-value-swapped": (
                "return function.float32(x[:, 0::2]) * x[:, 1::2]",
                "return function.float32(x[:, 1::2]) * x[:, 0::2]",
            ),
        },
    ),
    *of(
        "scaled_mm/reference/epilogues.py",
        "test_reference",
        {
            "reference-azp-sign": (
                "return _rescaled(num, acc - azp * azp_adj, scale_a, scale_b, bias)",
                "return _rescaled(num, acc + azp * azp_adj, scale_a, scale_b, bias)",
            ),
            "reference-bias-of-plus-zero": (
                "np.full((1, 1), -0.0, np.float32)",
                "np.full((1, 1), 0.0, np.float32)",
            ),
            "reference-without-residual": (
                "return num.add(_rescaled(num, acc, scale_a, scale_b, bias), residual)",
                "return num.add(_rescaled(num, acc, scale_a, scale_b, bias), 0 * residual)",
            ),
        },
    ),
    *of(
        "scaled_mm/reference/float_mode.py",
        "test_environment",
        {
            "reference-flushes": ("    torch.set_flush_denormal(False)\n", ""),
            "reference-rounds-as-told": ("    _libm().fesetround(TO_NEAREST)\n", ""),
            "reference-leaves-its-mode": ("_libm().fesetenv(before)", "pass"),
        },
    ),
    *of(
        "scaled_mm/reference/lowbit.py",
        "test_awq",
        {
            "reference-group-of-the-first-row": (
                "group = np.arange(len(q)) * len(s) // max(1, len(q))",
                "group = np.zeros(len(q), int)",
            ),
            "reference-nibbles-in-order": (
                "COLUMNS = (0, 2, 4, 6, 1, 3, 5, 7)",
                "COLUMNS = (0, 1, 2, 3, 4, 5, 6, 7)",
            ),
        },
    ),
    *of(
        "scaled_mm/reference/quantize.py",
        "test_reference",
        {
            "reference-rounds-away": (
                "np.rint(quotient(x32) / quotient(s))",
                "np.round(quotient(x32) / quotient(s) + 1e-7)",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/compare.py",
        "test_validate",
        {
            "least-cosine-is-the-mean": (
                "cosine_min=float(cosine.min())",
                "cosine_min=float(cosine.mean())",
            ),
            "largest-error-signed": (
                "max_error=float(error.abs().max())",
                "max_error=float(error.max())",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/compare.py",
        "test_validate test_validate_checkpoint",
        {
            "unreached-layer-passes": ("if missed:", "if False:"),
            "shape-of-an-original-unchecked": (
                "if (linear.out_features, linear.in_features) != shape:",
                "if False:",
            ),
            "argmax-of-tokens": (
                "have.argmax(-1) == want.argmax(-1)",
                "have.argmax(0) == want.argmax(0)",
            ),
            "nothing-quantised-passes": ("if not layers:", "if False:"),
        },
    ),
    *of(
        "scaled_mm/validate/folds.py",
        "test_validate_checkpoint",
        {
            "small-factors-overlooked": ("NOTICED = 0.02", "NOTICED = 2.0"),
            "factor-on-one-side-believed": (
                (
                    "if found is None or _spread(columns / found) > min(ALIKE, "
                    "_spread(columns) / 2):"
                ),
                "if found is None:",
            ),
            "common-factor-noticed": ("(logs - logs.mean()).square()", "logs.square()"),
            "norms-that-add-one": ("for one in (0, 1):", "for one in (0,):"),
            "first-rows-of-a-fused-layer": ("1 / r[-k:] for p, r", "1 / r[:k] for p, r"),
        },
    ),
    *of(
        "scaled_mm/validate/layers.py",
        "test_validate test_validate_checkpoint",
        {
            "off-r1-never-counted": ("off_r1=sum(part.different for part in judged)", "off_r1=0"),
            "saturated-on-one-side": ("((on_grid < lowest) | (on_grid > 127))", "(on_grid > 127)"),
            "first-batch-forgotten": (
                "return seen if known is None else torch.maximum(known, seen)",
                "return seen",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/layers.py",
        (
            "test_validate test_validate_checkpoint "
            "test_guards_python::test_what_meets_a_threshold_passes"
        ),
        {
            "edge-of-the-grid-is-saturated": ("(on_grid > 127)).sum()", "(on_grid >= 127)).sum()"),
            "saturation-without-a-zero-point": ("+ (0 if azp is None else azp)\n", "+ 0\n"),
            "outliers-by-the-mean": (
                "OUTLIER * seen.before.median()",
                "OUTLIER * seen.before.mean()",
            ),
            "int4-bound-ignored": ("beyond=int((~(fraction <= 1)).sum())", "beyond=0"),
            "empty-call-observed": (
                "        if not len(x):\n            return\n",
                "",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/report.py",
        "test_guards_python::test_what_meets_a_threshold_passes test_validate",
        {
            "saturation-compared-strictly": (
                "if not layer.saturated <= limits.saturated:",
                "if not layer.saturated < limits.saturated:",
            ),
            "cosine-compared-strictly": (
                "if not self.outputs.cosine_mean >= limits.cosine_mean:",
                "if not self.outputs.cosine_mean > limits.cosine_mean:",
            ),
            "sqnr-compared-strictly": (
                "if not layer.sqnr_db >= limits.sqnr_db:",
                "if not layer.sqnr_db > limits.sqnr_db:",
            ),
            "nan-passes": (
                "if not self.outputs.cosine_mean >= limits.cosine_mean:",
                "if self.outputs.cosine_mean < limits.cosine_mean:",
            ),
            "off-r1-passes": ("if layer.off_r1:", "if False:"),
            "beyond-the-bound-passes": ("if layer.beyond:", "if False:"),
            "infinity-in-json": (
                "return None if isinstance(value, float) and not isfinite(value) else value",
                "return value",
            ),
        },
    ),
    *of(
        "scaled_mm/validate/targets.py",
        "test_validate test_validate_checkpoint",
        {
            "quantised-folder-as-float": ("if checkpoint.quantization is not None:", "if False:"),
            "everywhere-without-alpha": ("elif everywhere:", "elif False:"),
        },
    ),
]
