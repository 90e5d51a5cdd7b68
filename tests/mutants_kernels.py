"""Bugs for mutants.py. More of the CUDA sources: int4, producers, quantisers, sums of columns."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cuda/sm90/lowbit_stream.cuh",
        "test_cuda_awq",
        {
            "cuda-int4-slices-of-the-first": ("from += int64_t{cut} * tokens * channels;", ""),
            "cuda-int4-joined-before-they-are-there": (
                "wait_for_dependencies();\n  if (place.row",
                "if (place.row",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/lowbit_packed.cuh",
        "test_cuda_awq",
        {
            "cuda-packed-slices-of-one-block": (
                "load_remote(base + 4 * (token * Block::kSumsRow + channel), slice)",
                "load_remote(base + 4 * (token * Block::kSumsRow + channel), rank)",
            ),
            "cuda-packed-shares-of-the-first": ("    from += slot;\n", ""),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/produce_row.cuh",
        "test_cuda_produce",
        {
            "cuda-norm-without-eps": ("__fsqrt_rn(mean + this->p_.eps)", "__fsqrt_rn(mean)"),
            "cuda-columns-beyond-a-row-count": (">= cols_) v[e] = 0.0f;", ">= cols_) continue;"),
            "cuda-smooth-forgotten": ("v[e] *= by[e];", "v[e] += 0.0f;"),
            "cuda-sum-of-a-residual-unrounded": ("x[e] = words[e];", "x[e] += 0.0f;"),
            "cuda-norm-bias-not-fused": (
                "v[e] = __fmaf_rn((v[e] - mean) * r, weight[e], bias[e]);",
                "v[e] = __fadd_rn(__fmul_rn((v[e] - mean) * r, weight[e]), bias[e]);",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/quantize.cu",
        "test_cuda_quantize",
        {
            "cuda-range-of-the-first-block": (
                "i < count; i += blockDim.x * blockDim.y) whole",
                "i < 1; i += blockDim.x * blockDim.y) whole",
            ),
            "cuda-odd-elements-forgotten": ("    part.extend_by_odd(range, threadIdx.x);\n", ""),
            "cuda-rows-of-other-zero-points-as-one": (
                "p.scale_stride == 0 && p.azp_stride == 0 : !p.per_token",
                "p.scale_stride == 0 : !p.per_token",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/weight.cu",
        "test_cuda_weight",
        {
            "cuda-sum-of-the-first-warp": (
                "for (int i = 1; i < blockDim.x / 32; ++i) sum += sums[warp + i];",
                "",
            ),
            "cuda-sums-not-cleared": (
                (
                    "check(cudaMemsetAsync(p.out, 0, p.b.n * sizeof(int32_t), scope.stream), "
                    '"cudaMemsetAsync");'
                ),
                "",
            ),
            "cuda-last-bytes-of-a-column": (
                "end % 16 > 0 && (whole_end",
                "end % 16 > 1 && (whole_end",
            ),
        },
        gpu=True,
    ),
]
