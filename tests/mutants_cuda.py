"""Bugs for mutants.py. The CUDA sources: planted by `make gpu-mutate`, where there is a GPU."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cuda/common/alignment.h",
        "test_cuda_rows::test_every_row[places-0] test_cuda_rows::test_every_row[places-1]",
        {
            "cuda-misaligned-operand-in-place": (
                "reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&",
                "true &&",
            ),
            "cuda-padded-rows-in-place": (
                "kSize * x.row_stride % 16 == 0 && x.row_stride >= cols",
                "true",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/convert.cuh",
        "test_cuda_widen test_cuda_awq",
        {
            "cuda-nibble-unscaled": ("0x2c002c00, base)  // 1/16", "0x3c003c00, base)  // 1"),
            "cuda-signed-bytes-off": (
                "kSigned ? 0x64806480 : 0x64006400",
                "kSigned ? 0x64006400 : 0x64006400",
            ),
            "cuda-bfloat16-nibbles-off": (
                "? 0x43084308 : 0x43004300;",
                "? 0x43004300 : 0x43004300;",
            ),
            "cuda-bytes-of-the-other-half": (
                "__byte_perm(word, 0x64646464, 0x4342)",
                "__byte_perm(word, 0x64646464, 0x4140)",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/device.cpp",
        "test_cuda_environment test_cuda_streams",
        {
            "cuda-no-device-guard": ('check(cudaSetDevice(device.index), "cudaSetDevice");', ""),
            "cuda-device-not-put-back": ("if (previous_ >= 0) cudaSetDevice(previous_);", ""),
            "cuda-default-stream": ("return static_cast<cudaStream_t>(stream);", "return nullptr;"),
            "cuda-facts-of-device-0": ("return known[index];", "return known[0];"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/device.cpp",
        "test_cuda_streams test_cuda_environment",
        {
            "cuda-one-workspace-for-all": (
                "return workspace_.emplace_back(new_empty(on_, {bytes}, ScalarType::Byte))",
                (
                    "constexpr int64_t most = int64_t{1} << 28;\n"
                    "  static std::deque<Tensor> kept;\n"
                    "  while (kept.size() <= workspace_.size())\n"
                    "    kept.push_back(new_empty(on_, {most}, ScalarType::Byte));\n"
                    "  return workspace_.emplace_back(bytes <= most ? kept[workspace_.size()]\n"
                    "      : new_empty(on_, {bytes}, ScalarType::Byte))"
                ),
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/partials.cu",
        "test_cuda_rows::test_every_row[depths-0] test_cuda_rows::test_every_row[tiles-1]",
        {
            "cuda-partial-sums-of-nobody": ("s < p.slices; ++s", "s <= p.slices; ++s"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/cutlass2/gemm.h",
        "test_cuda_big::test_int8_mm",
        {
            "cuda-blocks-in-16-bits": (
                "const dim3 grid(static_cast<unsigned>(tiles_m * tiles_n),",
                "const dim3 grid(static_cast<uint16_t>(tiles_m * tiles_n),",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/lowbit.cpp",
        "test_cuda_big::test_rows_too_long_for_32_bits",
        {"cuda-bytes-of-a-token-in-32-bits": ('in a row", 2 * p.w.k)', 'in a row", p.w.k)')},
        gpu=True,
    ),
    *of(
        "csrc/cuda/produce.cu",
        "test_cuda_big::test_rows_too_long_for_32_bits",
        {
            "cuda-columns-up-to-2-31": (
                "(int64_t{1} << 31) - kSumLanes * kSumGroup",
                "(int64_t{1} << 31) - 1",
            )
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/device.cpp",
        "test_cuda_big::test_rows_too_long_for_32_bits",
        {
            "cuda-sizes-in-32-bits": (
                "if (size > std::numeric_limits<int32_t>::max()) {",
                "if (false) {",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/launch.cuh",
        "test_cuda_chains",
        {
            "cuda-dependent-launch-without-wait": (
                'asm volatile("griddepcontrol.wait;" ::: "memory");',
                "",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/launch.cuh",
        "test_cuda_environment::test_launches_that_fail",
        {
            "cuda-status-of-a-launch-lost": (
                (
                    "check(cudaLaunchKernelEx(&launch, kernel, Params(args)...), "
                    '"cudaLaunchKernelEx");'
                ),
                "cudaLaunchKernelEx(&launch, kernel, Params(args)...);",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/launch.cuh",
        "test_cuda_environment::test_devices_in_turn",
        {"cuda-shared-memory-of-one-device": ("once(device.index, [&] {", "once(0, [&] {")},
        gpu=True,
    ),
    *of(
        "csrc/cuda/int8.cpp",
        "test_cuda_early",
        {"cuda-every-weight-read-early": (".settled = p.b.settled && in_place", ".settled = true")},
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/lower.cuh",
        "test_cuda_scaled_mm::test_named",
        {
            "cuda-bias-not-fused": (
                "return __fmaf_rn(x, y, z);",
                "return __fadd_rn(__fmul_rn(x, y), z);",
            ),
            "cuda-operand-of-the-first-tile": (
                "(operands[static_cast<int>(L::id)], row + i, col + i)",
                "(operands[static_cast<int>(L::id)], row + i, i)",
            ),
            "cuda-stride-ignored": ("[m * operand.row_stride + n * operand.col_stride]", "[m + n]"),
            "cuda-residual-dropped": ("return __fadd_rn(x, y);", "return x;"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/finish.cuh",
        "test_cuda_scaled_mm::test_named",
        {
            "cuda-last-channels-unwritten": (
                "inside / kColumns, made,",
                "(inside - (inside == 3)) / kColumns, made,",
            ),
            "cuda-function-not-applied": ("apply_function(function, made);", ""),
            "cuda-gate-and-value-swapped": (
                "made[i] = x[kColumns * i];",
                "made[i] = x[kColumns * i + kColumns - 1];",
            ),
            "cuda-out-azp-ignored": ("get(epilogue::OutAzp{}));", "0);"),
            "cuda-int8-lowest-by-azp-turned": (
                "quantizer_given(scale, azp, to.symmetric)",
                "quantizer_given(scale, azp, !to.symmetric)",
            ),
            "cuda-e4m3-pair-swapped": ('"f"(y), "f"(x));', '"f"(x), "f"(y));'),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/cutlass3/direct.h",
        "test_cuda_rows::test_every_row[epilogues-0] test_cuda_rows::test_every_row[epilogues-5]",
        {
            "cuda-quad-not-transposed": ("swap(item[1], item[3], 2);", ""),
            "cuda-direct-first-lane-s-columns": ("- 2 * lane + 8 * lane", "- 2 * lane"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/quantizer.cuh",
        "test_cuda_quantize",
        {
            "cuda-scale-of-zeros-is-zero": ("    by.scale = fmaxf(by.scale, FLT_MIN);\n", ""),
            "cuda-infinity-in-a-range": (
                "poison = __fmaf_rn(x, 0.0f, poison);",
                "poison = x == x ? poison : x;",
            ),
            "cuda-one-step-of-division": (
                "    q = __fmaf_rn(__fmaf_rn(-q, divisor, x), reciprocal, q);\n",
                "",
                "one step can leave an ulp, which would matter next to a tie: among 241 million "
                "quotients at ties and beside them none was rounded otherwise. The second step is "
                "what the theorem needs",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/relayout.cu",
        "test_cuda_weight test_cuda_scaled_mm",
        {
            "cuda-tile-transposed-wrong": (
                "word[3] = __byte_perm(high01, high23, 0x7632);",
                "word[3] = __byte_perm(high01, high23, 0x5410);",
            ),
            "cuda-rows-past-the-last": (
                "if (out_row >= rows || out_col >= to_stride) continue;",
                "if (out_row + 1 >= rows || out_col >= to_stride) continue;",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/common/store.cuh",
        "test_cuda_scaled_mm::test_named",
        {
            "cuda-rest-of-a-row-overwritten": ("if (vectors && count >= kSize)", "if (vectors)"),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/cutlass3/lower.h",
        "test_cuda_guard_pages",
        {"cuda-persistent-residual-past-its-end": ("r < rows && c < cols ?", "true ?")},
        gpu=True,
    ),
    *of(
        "csrc/cuda/cutlass3/lower.h",
        "test_cuda_scaled_mm::test_named",
        {
            "cuda-persistent-residual-of-the-first-tile": (
                "static_cast<int>(tile_m) * size<0>(Tile{});",
                "0 * static_cast<int>(tile_m) * size<0>(Tile{});",
            ),
            "cuda-persistent-columns-of-the-first-subtile": (
                "shared(cute::_, cute::_, cute::_, epi_m, epi_n), epi_v)",
                "shared(cute::_, cute::_, cute::_, epi_m, 0), epi_v)",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/dequantize.cu",
        "test_cuda_awq",
        {
            "cuda-int4-group-not-advanced": ("      ++group;\n", ""),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/dequantize.cu",
        "test_cuda_awq::test_dequantize_more_than_2_31_elements",
        {
            "cuda-int4-row-in-32-bits": (
                "(out + row * 8 * eights)",
                "(out + static_cast<int>(row * 8 * eights))",
            ),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/dequantize.cu",
        "test_cuda_old_memory::test_nothing_behind_a_dequantised_weight",
        {
            "cuda-int4-rows-past-the-last": ("if (row >= w.k) return;", ""),
            "cuda-rows-of-a-unit-past-the-last": ("if (row >= w.k) continue;", ""),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/int8.cpp",
        "test_cuda_scaled_mm::test_named",
        {
            "cuda-operands-not-bound": ("epilogue::bind_operands(epilogue, p.operands);", ""),
        },
        gpu=True,
    ),
    *of(
        "csrc/cuda/sm90/int8_stream.cuh",
        "test_cuda_rows::test_every_row[depths-0] test_cuda_rows::test_every_row[depths-1]",
        {
            "cuda-slice-of-k-dropped": (
                "static_cast<int>(int64_t{p.chunks} * (slice + 1) / split)",
                "static_cast<int>(p.chunks / split * (slice + 1))",
            ),
        },
        gpu=True,
    ),
]
