"""Bugs for mutants.py. More of the CUDA sources: int4, producers, quantisers, sums of columns.
And their stores, which the CPU shows."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cuda/sm90/lowbit_stream.cuh",
        "test_cuda_awq",
        {
            "cuda-int4-slices-of-the-first": ("from += int64_t{cut} * tokens * channels;", ""),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/lowbit_stream.cuh",
        "test_cuda_chains",
        {
            "cuda-int4-joined-before-they-are-there": (
                "wait_for_dependencies();\n  if (place.row",
                "if (place.row",
            ),
        },
        gpu=True,
    ),
    # The older GPUs' iterator over rows along K: a newer GPU runs it as a stand-in.
    *of(
        "csrc/cuda/cutlass2/rows.h",
        "test_cuda_rows::test_every_row[tiles-0]",
        {
            "cuda-rows-step-over-a-whole-first-tile": (
                "data_ += is_first_ ? rest_ : kDepth;",
                "data_ += kDepth;",
            ),
            "cuda-rows-read-past-the-rest-of-k": (
                "limit_ = mine.contiguous() < rest_ ? rows_ : 0;",
                "limit_ = rows_;",
            ),
            "cuda-rows-masked-to-the-end": ("    if (is_first_) limit_ = rows_;\n", ""),
            "cuda-rows-of-the-first-pass": (
                "static_cast<uint32_t>(index_ * ThreadMap::Delta::kStrided)",
                "static_cast<uint32_t>(0 * ThreadMap::Delta::kStrided)",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/cutlass2/rows.h",
        "test_cuda_big::test_laid_out_anew",
        {
            "cuda-rows-apart-in-32-bits": ("uint64_t{down} * stride_", "down * stride_"),
            "cuda-first-row-in-32-bits": ("int64_t{row} * stride_", "uint32_t(row) * stride_"),
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
            "cuda-packed-shares-without-the-last": ("i <= last; ++i", "i < last; ++i"),
            "cuda-packed-share-in-the-first-slot": (
                "p.plan.slot(static_cast<int>(blockIdx.x), share.tile)",
                "p.plan.slot(static_cast<int>(blockIdx.x), 0)",
            ),
            "cuda-packed-share-stored-as-a-tile": ("  if (share.is_part) {", "  if (false) {"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/produce_row.cuh",
        "test_cuda_produce::test_named",
        {
            "cuda-norm-without-eps": ("__fsqrt_rn(mean + this->p_.eps)", "__fsqrt_rn(mean)"),
            "cuda-columns-beyond-a-row-count": (">= cols_) v[e] = 0.0f;", ">= cols_) continue;"),
            "cuda-smooth-forgotten": ("v[e] *= by[e];", "v[e] += 0.0f;"),
            "cuda-sum-of-a-residual-unrounded": ("x[e] = words[e];", "x[e] += 0.0f;"),
            "cuda-norm-as-floats-in-the-sums-place": (
                "write(this->p_.normed, row, group, rounded(v));",
                "write(this->p_.sum, row, group, rounded(v));",
            ),
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
    # Those that the CPU shows, where kernels' stores are played.
    *of(
        "csrc/cuda/cutlass3/direct.h",
        "test_device_stores",
        {
            "stored-by-four-where-two-are-aligned": (
                "to.ldd % (8 / kColumns) == 0",
                "to.ldd % 2 == 0",
            ),
            "stored-behind-the-last-token": (
                "if (first_row + row >= m) return;",
                "if (first_row + row > m) return;",
            ),
            "stored-without-the-swap-of-pairs": ("swap(item[2], item[3], 1);", ""),
            "stored-from-the-first-row-s-sums": (
                "kGroup + e / 2), kRow / 2, 0)",
                "kGroup + e / 2), 0, 0)",
            ),
        },
    ),
    *of(
        "csrc/cuda/common/finish.cuh",
        "test_device_stores",
        {
            "stored-by-four-wherever-a-row-begins": (
                "columns % (4 / epilogue::columns_of(E::form)) == 0",
                "true",
            ),
            "stored-behind-the-last-pair": ("inside / kColumns, made,", "inside, made,"),
            "stored-beyond-e4m3": ("x[i] = x[i] < -448.0f ? -448.0f : x[i];", ""),
        },
    ),
    *of(
        "csrc/cuda/common/store.cuh",
        "test_device_stores",
        {"stored-behind-the-row": ("if (i < count) d[i] =", "d[i] =")},
    ),
]
