"""Bugs for mutants.py. Producers: norms and activations that write int8, and the models that use
them."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cpu/produce_rows.h",
        "test_produce",
        {
            "norm-sum-in-order": (
                "return ((p[0] + p[4]) + (p[2] + p[6])) + ((p[1] + p[5]) + (p[3] + p[7]));",
                "return ((((((p[0] + p[1]) + p[2]) + p[3]) + p[4]) + p[5]) + p[6]) + p[7];",
            ),
            "rest-of-a-norm-dropped": ("lanes[whole % kSumLanes] += group(rest);", ""),
            "mean-square-without-eps": (
                "sum / static_cast<float>(p.cols) + p.eps",
                "sum / static_cast<float>(p.cols)",
            ),
            "mean-not-taken-off": ("v[k] -= mean;", ""),
            "sum-of-a-residual-not-rounded": (
                "  widen_row_of({p.sum, p.cols, 1}, p.x_dtype, row, v, p.cols);\n",
                "",
            ),
            "norm-as-floats-behind-the-first-row": (
                "narrow_row_to(p.normed, p, row, v);",
                "narrow_row_to(p.normed, p, 0, v);",
            ),
            "smooth-forgotten-by-a-producer": (
                "for (int64_t k = 0; k < p.cols; ++k) v[k] *= p.smooth[k];",
                "",
            ),
            "row-of-the-first-token": (
                "widen_row_of(p.x, p.x_dtype, row, v, p.cols);",
                "widen_row_of(p.x, p.x_dtype, row - row % 2, v, p.cols);",
            ),
        },
    ),
    *of(
        "csrc/problems/produce.cpp",
        "test_produce test_refusals",
        {
            "columns-of-x-taken-for-side-by-side": (
                "const bool side_by_side = t.stride(t.dim() - 1) == 1 || cols <= 1;",
                "const bool side_by_side = true;",
            ),
            "negative-eps-accepted": (
                "if (!(p.eps >= 0.0f) || std::isinf(p.eps)) {",
                "if (false) {",
            ),
            "second-factor-of-any-shape": (
                "if (!t.sizes().equals(x.sizes())) refuse(",
                "if (false) refuse(",
            ),
        },
    ),
    *of(
        "scaled_mm/ops/produce.py",
        "test_produce test_refusals test_fakes test_torch",
        {
            "gelu-of-tanh-by-default": (
                'producer = "gelu" if approximate == "none" else "gelu_tanh"',
                'producer = "gelu_tanh"',
            ),
            "zero-point-without-its-scale": ("if azp is not None and scale is None:", "if False:"),
            "given-scale-not-returned": (
                "return (q, made, zero, *floats) if scale is None else (q, scale, azp, *floats)",
                "return (q, made, zero, *floats)",
            ),
            "fake-halves-are-whole": ("cols = cols // 2", "cols = cols // 1"),
        },
    ),
    *of(
        "scaled_mm/quantization/fused.py",
        "test_fuse test_fuse_safe",
        {
            "norm-of-gemma-without-its-one": (
                "weight = 1 + weight.float()",
                "weight = weight.float()",
            ),
            "readers-of-other-schemes-fused": (
                "all(_equal(mine[name], x) for name, x in input_options(other).items())",
                "True",
            ),
            "scale-of-all-rows-fused": (
                "    if first.dynamic and not first.per_token:\n        return False\n",
                "",
            ),
        },
    ),
    *of(
        "scaled_mm/quantization/fuse.py",
        "test_fuse test_fuse_safe",
        {
            "gate-and-up-in-any-order": (
                "torch.equal(down(activation(gate(x)) * up(x)), want)",
                "True",
            ),
            "norm-taken-on-trust": (
                "if all(_near(got, norm(some), room) for some, got in tried):",
                "if True:",
            ),
            "fused-where-it-is": (
                "    if not inplace:\n        model = copy.deepcopy(model)\n",
                "",
            ),
        },
    ),
    *of(
        "scaled_mm/nn/produced.py",
        "test_fuse test_fuse_safe",
        {
            "columns-told-apart": (
                "        if shape[-1] == self.shape[-1]:",
                "        if True:",
            ),
            "scales-of-all-rows-kept": (
                "t if t is None or (given and t.numel() == 1) else change(t)",
                "t if t is None or (given and t.numel() == 1) else t",
            ),
        },
    ),
]
