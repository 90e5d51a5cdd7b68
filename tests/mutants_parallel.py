"""Bugs for mutants.py. Layers over several ranks."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/parallel/layouts.py",
        "test_parallel",
        {
            "range-of-this-rank": (
                "low, high = all_reduce(ends, mesh, dist.ReduceOp.MAX).unbind(-1)",
                "low, high = ends.unbind(-1)",
            ),
            "least-of-all-ranks-forgotten": (
                "torch.stack([-low, high], -1).float()",
                "torch.stack([low, high], -1).float()",
            ),
            "nan-among-ranks": ("torch.where(ends.isnan(), torch.inf, ends)", "ends"),
            "uneven-features": (
                "features if last else",
                "mesh.size() * x.shape[placement.dim] if last else",
            ),
        },
    ),
    *of(
        "scaled_mm/parallel/shares.py",
        "test_parallel",
        {
            "features-cut-evenly": (
                "piece = -(-size // world)\n        return",
                "piece = max(1, size // world)\n        return",
            ),
            "word-of-columns-cut": (
                'share.must_be_whole(NIBBLES, "the columns in a word")',
                "pass",
            ),
            "sum-over-ranks-may-wrap": ("share.size > MAX_K", "share.count > MAX_K"),
            "bias-of-every-rank-whole": (
                '        "weight_scale": Cut(0),\n        "bias": Cut(0),\n',
                '        "weight_scale": Cut(0),\n',
            ),
        },
    ),
    *of(
        "scaled_mm/parallel/styles.py",
        "test_parallel",
        {
            "layer-cut-twice": (
                "    if share is not None:\n        raise",
                "    if False:\n        raise",
            ),
            "hooks-of-a-layer-lost": ('if "hook" in name or name == "training"}', "if False}"),
        },
    ),
    *of(
        "scaled_mm/parallel/sums.py",
        "test_scaled_epilogue",
        {
            "sum-of-ranks-rounded-twice": (
                "to_odd = bits + step * ((error.abs() > 0) & (bits & 1 == 0))",
                "to_odd = bits",
            ),
            "rows-of-the-first-block": (
                "x.reshape(-1, 1)[rows]",
                "x.reshape(-1, 1)[: rows.stop - rows.start]",
            ),
        },
    ),
]
