"""Bugs for mutants.py: weights in units, and the CUDA kernels that read them."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "scaled_mm/ops/units.py",
        "test_units",
        {
            "units-rows-of-a-byte-swapped": (
                '8: ("chunk", "panel", "p", "w", "g", "t", "step", "i", "r", "h"),',
                '8: ("chunk", "panel", "p", "w", "g", "t", "step", "r", "i", "h"),',
            ),
            "units-nibbles-of-a-byte-swapped": (
                "return nibbles[..., 0::2] | nibbles[..., 1::2] << 4",
                "return nibbles[..., 1::2] | nibbles[..., 0::2] << 4",
            ),
            "units-group-of-the-padding": (
                "torch.where(rows < k, rows // group, k // group)",
                "(rows // group).clamp(max=k // group - 1)",
            ),
            "units-no-zero-point-is-zero": (
                "torch.full_like(scales, 8, dtype=torch.uint8)",
                "torch.zeros_like(scales, dtype=torch.uint8)",
            ),
            "units-a-set-for-every-group": ("(group // depth)", "1"),
        },
    ),
    *of(
        "csrc/cuda/common/convert.cuh",
        "test_cuda_mixed",
        {
            "cuda-bytes-1-and-3-are-0-and-2": (
                "__byte_perm(word, 0x64646464, 0x5351)",
                "__byte_perm(word, 0x64646464, 0x5250)",
            ),
            "cuda-bit-7-not-inverted": ("%3, 0xAE;", "%3, 0xEA;"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/units.cuh",
        "test_cuda_mixed",
        {
            "cuda-float-zero-of-the-other-channel": (
                "Pairs<T>::both(scale, h), Pairs<T>::both(zero, h));",
                "Pairs<T>::both(scale, h), Pairs<T>::both(zero, 0));",
            ),
            "cuda-byte-zero-points-not-lifted": (
                "Bytes<T>::lift(__byte_perm(base[0], 0, 0x1010), base);",
                "base[1] = base[0];",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/dequantize.cu",
        "test_cuda_mixed",
        {
            "cuda-columns-of-bytes-apart": (
                "pair[2 * i] = __byte_perm(apart[0], apart[1], 0x5410);",
                "pair[2 * i] = apart[0];",
            ),
            "cuda-one-set-of-a-unit": (
                "(kPartSteps * part + step) * sets / 8, warp, lane)",
                "0, warp, lane)",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/lowbit.cpp",
        "test_cuda_mixed::test_the_bits_of_the_cpu test_cuda_guard_pages",
        {"cuda-bias-not-padded": ("padded.bias = pad_bias(p, scope);", ";")},
        gpu=True,
    ),
    *of(
        "csrc/cuda/lowbit.cpp",
        "test_cuda_mixed::test_arranged_tokens test_cuda_mixed::test_strides",
        {
            "cuda-order-of-a-copy": (
                "&& !p.order && !p.pre_scale.data) {",
                ") {",
                "x is copied first and arranged then, which is slower and gives the same",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/lowbit_store.cuh",
        "test_cuda_mixed",
        {
            "cuda-first-sums-activated-twice": (
                "sums[kCount - kAtOnce + i] = now[i];",
                "sums[i] = now[i];",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/lowbit_packed_multiply.cuh",
        "test_cuda_mixed::test_the_bits_of_the_cpu",
        {
            "cuda-set-of-another-group": (
                "kSets == 1 ? 0 : set * sets_ / kSets",
                "kSets == 1 ? 0 : set % sets_",
            ),
            "cuda-sets-of-half-a-unit-among-words": ("read(unit - kMissing,", "read(unit,"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/lowbit_packed_load.cuh",
        "test_cuda_mixed::test_the_bits_of_the_cpu",
        {
            "cuda-first-half-of-a-unit-twice": ("from + part * Block::kPieceWords,", "from,"),
            "cuda-tokens-of-the-first-half": (
                "(piece * kBoxes + box) * 128",
                "(piece / Block::kPieces * 2 + box) * 128",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/tokens.cu",
        "test_cuda_mixed::test_arranged_tokens",
        {
            "cuda-pre-scale-in-the-weight-s-order": (
                "load_float(pre_scale, 0, from[i])",
                "load_float(pre_scale, 0, at)",
            ),
            "cuda-last-column-of-an-odd-k": ("min(column + i, k - 1)", "column"),
        },
        gpu=True,
    ),
]
