"""Bugs for mutants.py. Checks and dispatch: csrc/problems, csrc/dispatch, the archs' tables."""

from __future__ import annotations

from mutant import of

MUTANTS = [
    *of(
        "csrc/cuda/common/convert.cuh",
        "test_widen",
        {
            "signed-bytes-off-in-the-source": (
                "0x64806480 : 0x64006400;  // 1152",
                "0x64816480 : 0x64006400;  // 1152",
            ),
            "nibbles-off-in-the-source": ("0xd480d480 : 0xd400d400;", "0xd480d480 : 0xd480d480;"),
        },
    ),
    *of(
        "csrc/cuda/mma_sync/model.h",
        "test_explain test_archs",
        {
            "more-shared-memory-than-there-is": (
                "const int bytes = block_bytes(*this); bytes > has) {",
                "const int bytes = block_bytes(*this); bytes > 2 * has) {",
            ),
            "ring-of-units-without-room": (
                "has = shared_bytes(machine.capability); bytes > has) {",
                "has = shared_bytes(machine.capability); bytes > 2 * has) {",
                "every ring of the tables has room on every GPU that their folders serve",
            ),
            "units-from-words": ("if (size.packing != Packing::units) return", "if (false) return"),
            "slices-of-units-too-short": ("size.k / (4 * kUnitRows)", "size.k / kUnitRows"),
        },
    ),
    *of(
        "csrc/cuda/mma_sync/model.h",
        "test_archs",
        {
            "as-many-blocks-as-registers-hold": (
                "std::min((shared_bytes(machine.capability) + 1024) / (block_bytes(tile) + 1024),",
                "std::min(65536,",
            ),
            "as-many-blocks-as-shared-memory-holds": ("65536 / (2 * sums)", "65536"),
            "turns-of-blocks-that-are-not-alone": (
                "live_of(*this, machine) > 1 ? 0.0",
                "live_of(*this, machine) > 9 ? 0.0",
            ),
            "turns-of-no-block": (
                "live_of(*this, machine) > 1 ? 0.0",
                "live_of(*this, machine) > 0 ? 0.0",
            ),
        },
    ),
    *of(
        "csrc/cuda/sm100/model.cpp",
        "test_archs",
        {
            "int8-of-tcgen05-on-every-blackwell": ("machine.capability != 100", "false"),
            "tcgen05-without-whole-vectors": ("size.n % 4 != 0", "size.n % 2 != 0"),
        },
    ),
    *of(
        "csrc/cuda/sm100/int8.table",
        "test_archs",
        {"tcgen05-chosen-unseen": ("1000000,  1.00)", "6.5,  1.00)")},
    ),
    *of(
        "tools/cuda_build.py",
        "test_build",
        {"tcgen05-for-the-family": ('NARROW = {"int8_tcgen05": "100a"}', "NARROW = {}")},
    ),
    *of(
        "csrc/cuda/mma_sync/kinds.h",
        "test_archs",
        {"slices-of-a-short-k": ("std::min(room, steps)", "std::min(room, steps + 9)")},
    ),
    *of(
        "csrc/cuda/sm90/model.cpp",
        "test_explain test_model",
        {
            "persistent-kernel-without-k": (
                'if (size.k == 0) return "needs K > 0 (it',
                'if (size.k < 0) return "needs K > 0 (it',
            ),
            "weight-at-the-pace-of-all": (
                "weight * machine.latency / kWeightBytesPerUs",
                "0.0 * weight",
            ),
            "weight-from-memory-for-every-tile": (
                "work.rows / double(token_tiles);",
                "work.rows;",
            ),
            "sums-added-up-for-nothing": ("waves += kExchangeUs * sums", "waves += 0 * sums"),
            "sums-added-up-where-k-is-whole": ("if (plan.split > 1) {", "if (plan.split > 0) {"),
            "idle-multiprocessors-at-work": (
                "work.rounds - kIdleShare * (",
                "work.rounds - 0 * (",
            ),
            "no-tiles-of-tokens": ("std::max(plan.token_tiles, 1)", "plan.token_tiles + 0"),
            "rows-outside-a-for-nothing": ("waves += kOutsideUs * outside", "waves += 0 * outside"),
            "rows-outside-a-of-one-channel": (
                "work.rows * double(along);",
                "work.rows;",
            ),
        },
    ),
    *of(
        "csrc/cuda/sm90/model.cpp",
        "test_explain_awq",
        {
            "shares-of-two-tiles": ("plan.whole == 0 && chunks % longest == 0", "false"),
            "fewer-blocks-with-longer-shares": (
                "plan.whole == 0 && chunks % longest == 0",
                "plan.whole == 0",
            ),
            "clusters-where-two-blocks-live": (
                "tile.live == 1 ? std::min(kMostSlices, chunks) : 1",
                "std::min(kMostSlices, chunks)",
            ),
            "second-tile-of-a-share-for-nothing": (
                "tile.live == 2 && one_tile_shares(plan) ? 0 : kTwoTilesUs",
                "tile.live == 2 ? 0 : kTwoTilesUs",
            ),
        },
    ),
    *of(
        "csrc/dispatch/archs.cpp",
        "test_model test_explain test_explain_awq",
        {
            "name-of-a-later-arch-unknown": (
                "found |= wanted == kernel.name",
                "found = wanted == kernel.name",
            ),
        },
    ),
    *of(
        "csrc/dispatch/choose.h",
        "test_explain test_explain_awq test_tune",
        {
            "refusing-kernel-chosen": ("if (!kernel.refuse(size, machine).empty()) continue;", ""),
            "forced-kernel-that-refuses": (
                "if (forced->refuse(size, machine).empty()) return forced;",
                "return forced;",
            ),
            "forced-kernel-ignored": (
                "if (!forced) return nullptr;",
                "if (forced || !forced) return nullptr;",
            ),
            "last-of-the-kernels-chosen": ("if (us < least) least = us,", "least = us,"),
            "answer-of-another-size": ("!(known.size == size) ||", ""),
            "answer-of-another-machine": (" || !(known.machine == machine)", ""),
            "answer-of-other-numbers": ("known.tuned != tuned) {", "false) {"),
            "unknown-kernel-ignored": (
                "check_forced_kernels();\n  std::string_view",
                "std::string_view",
            ),
        },
    ),
    *of(
        "csrc/dispatch/gpus.cpp",
        "test_gpus",
        {
            "part-of-a-name-is-a-gpu": (
                "if ((at == 0 || apart(at - 1)) && apart(at + words.size())) return true;",
                "return true;",
            ),
            "broader-name-of-a-gpu": (
                "|| gpu.words.size() > found->words.size())",
                "|| gpu.words.size() < found->words.size())",
            ),
            "gpu-of-another-capability": ("if (gpu.capability != capability) continue;", ""),
        },
    ),
    *of(
        "csrc/dispatch/tuning.cpp",
        "test_tune",
        {
            "tuned-number-not-finite": (
                "if (std::isfinite(value) && value >= least && value <= most) return;",
                "return;",
            ),
            "tuning-of-every-gpu": ("if (tuning.key == machine.key) return", "return"),
            "tuned-kernel-twice": ("if (tuning.find(kernel)) refuse(", "if (false) refuse("),
        },
    ),
    *of(
        "csrc/dispatch/explain.cpp",
        "test_explain",
        {
            "every-kernel-is-the-chosen": (
                "is_chosen = &kernel == chosen;",
                "is_chosen = chosen != nullptr;",
            ),
            "pairs-not-explained": (
                "find_activation(activation);",
                'find_activation("none");',
            ),
        },
    ),
    *of(
        "csrc/dispatch/setting.h",
        "test_environment",
        {
            "empty-isa-refused": ("return value && *value ?", "return value ?"),
            "setting-read-at-every-call": (
                "return value_.load(std::memory_order_acquire); }",
                "return kept(std::getenv(variable_)); }",
            ),
            "value-before-forgotten": ('return before ? *before : "";', 'return before ? "" : "";'),
        },
    ),
    *of(
        "csrc/dtypes.h",
        "test_scaled_mm",
        {
            "halves-swapped": (
                "if (type == ScalarType::scalar_type) return DType::name;",
                (
                    "if (type == ScalarType::scalar_type)                          \\\n    "
                    "return DType::name == DType::bfloat16  ? DType::float16   \\\n           : "
                    "DType::name == DType::float16 ? DType::bfloat16  "
                    "\\\n                                           : DType::name;"
                ),
            ),
        },
    ),
    *of(
        "csrc/problems/int8.cpp",
        "test_scaled_mm",
        {
            "column-stride-of-b-ignored": ("b.stride(0), b.stride(1)}", "b.stride(0), b.size(0)}"),
        },
    ),
    *of(
        "csrc/problems/int8.cpp",
        "test_refusals",
        {
            "scale-per-token-taken-for-one": (
                "if (Leaf::scalar_ok && t.numel() == 1) return;",
                "if (Leaf::scalar_ok && (t.numel() == 1 || t.size(0) == 1)) return;",
            ),
            "k-of-131072": ("if (k > kMaxK)", "if (k > kMaxK + 1)"),
            "bias-of-one-element": (
                "if (Leaf::scalar_ok && t.numel() == 1) return;",
                "if (t.numel() == 1) return;",
            ),
            "too-many-columns-of-a": (
                "if (a.size(a.dim() - 1) != p.size.k)",
                "if (a.size(a.dim() - 1) < p.size.k)",
            ),
            "packed-buffer-of-any-size": (
                "b.dim() != 1 || b.numel() != bytes ||",
                "b.dim() != 1 ||",
            ),
            "odd-number-of-columns-in-pairs": (
                "if (size.n % epilogue::entry(size.epilogue).columns())",
                "if (false)",
            ),
            "residual-of-any-shape": (
                "if (t.sizes().equals(wanted)) return;",
                "if (t.numel()) return;",
            ),
            "residual-of-half-an-output": (
                "sizes_with_last(a, size.n);\n      if",
                "sizes_with_last(a, size.n / 2);\n      if",
            ),
            "unknown-activation-is-none": (
                'refuse("activation", "be None or one of " + names, *wanted);',
                "return kActivations[0];",
            ),
            "unknown-out-dtype-is-bfloat16": (
                "if (known) return *known;",
                "return known.value_or(DType::bfloat16);",
            ),
        },
    ),
    *of(
        "csrc/problems/int8.cpp",
        "test_guards_int8 test_refusals",
        {
            "k-of-a-packed-weight": (
                '  check_k(weight.k);\n  must_be("b", b, ScalarType::Byte);',
                '  must_be("b", b, ScalarType::Byte);',
            ),
            "n-of-a-packed-weight": (
                '|| weight.n > kMaxPackedN) {\n    refuse("b_shape"',
                ') {\n    refuse("b_shape"',
            ),
            "n-of-a-weight-to-pack": ("if (checked.problem.n > kMaxPackedN) {", "if (false) {"),
            "packed-limit-off-by-one": (
                "checked.problem.n > kMaxPackedN",
                "checked.problem.n > kMaxPackedN + 1",
            ),
            "negative-k-of-a-packed-weight": (
                "if (weight.k < 0 || weight.n < 0",
                "if (weight.n < 0",
            ),
            "packed-slice-taken-whole": (
                "b.numel() != bytes || !b.is_contiguous()",
                "b.numel() != bytes",
            ),
            "azp-of-many-elements": ("if (azp->numel() != 1)", "if (false)"),
        },
    ),
    *of(
        "csrc/problems/int8.h",
        "test_epilogues",
        {
            "pairs-are-as-wide-as-b": (
                "return n / epilogue::entry(epilogue).columns();",
                "return n;",
            ),
        },
    ),
    *of(
        "csrc/problems/lowbit.cpp",
        "test_awq",
        {
            "int4-scales-of-any-dtype": ("if (dtype != x.scalar_type())", "if (false)"),
            "int4-columns-of-x-unchecked": ("if (x.size(x.dim() - 1) != p.w.k)", "if (false)"),
            "int4-zeros-of-any-shape": ("if (qzeros.size(0) != groups ||", "if (false &&"),
        },
    ),
    *of(
        "csrc/problems/lowbit.cpp",
        "test_guards_int4::test_an_expanded_operand test_awq",
        {
            "int4-words-of-stride-0": (
                "t.stride(1) == 1 || t.size(1) <= 1",
                "t.stride(1) <= 1 || t.size(1) <= 1",
            ),
            "int4-group-size-floored": ("|| w.k % groups != 0)", "|| false)"),
            "int4-columns-of-the-scales": ("if (scales.size(1) != w.n) {", "if (false) {"),
            "int4-bias-of-any-shape": ("if (!is_per_column(*bias, p.w.n)) {", "if (false) {"),
        },
    ),
    *of(
        "csrc/problems/quantize.cpp",
        "test_quantize",
        {
            "static-scale-of-the-first-row": ("return by_row.row_stride;", "return 0;"),
        },
    ),
    *of(
        "csrc/problems/quantize.cpp",
        "test_quantize test_refusals",
        {
            "static-scale-of-any-length": (
                "if (t.numel() != 1 && !is_per_row(t, x)) {",
                "if (false) {",
            ),
            "static-azp-of-the-scale-s-stride": (
                "if (azp) p.azp_stride = check_given",
                "if (azp) p.azp_stride = 0 * check_given",
            ),
            "weight-scale-per-tensor-always": (
                "per_channel ? w.size(0) : 1}, true, per_channel",
                "per_channel ? w.size(0) : 1}, true, false",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_scaled_mm",
        {
            "stride-of-one-element-used": ("if (sizes[i] == 1) continue;", ""),
            "two-strides-taken-for-one": (
                "if (stride && strides[i] != next) return",
                "if (false) return",
            ),
            "vector-of-two-strides-in-place": (
                "data = copies.emplace_back(row_major_copy(t)).const_data_ptr();",
                "",
            ),
            "folded-rows-contiguous": (
                "*row_stride, strides[last]}",
                "sizes[last], strides[last]}",
            ),
            "residual-rows-contiguous": (
                "{matrix.data, dtype, matrix.row_stride, 1}",
                "{matrix.data, dtype, t.size(t.dim() - 1), 1}",
            ),
            "residual-of-any-stride-in-place": (
                "side_by_side ? t : copies.emplace_back(row_major_copy(t))",
                "side_by_side ? t : t",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_memory",
        {
            "out-of-memory-of-another-type": ("throw OutOfMemory(", "throw std::runtime_error("),
            "bytes-of-one-element": (
                "if (__builtin_mul_overflow(bytes, size, &bytes))",
                "if (false && size)",
            ),
        },
    ),
    *of(
        "csrc/problems/tensors.cpp",
        "test_guards_int8 test_scaled_mm test_awq",
        {
            "stride-of-the-last-dimension-alone": (
                "next = strides[i] * sizes[i];",
                "next = strides[i];",
            ),
            "copy-of-an-operand-not-kept": (
                "data = copies.emplace_back(row_major_copy(t)).const_data_ptr();\n    stride",
                "data = row_major_copy(t).const_data_ptr();\n    stride",
            ),
        },
    ),
    *of(
        "csrc/rules.cpp",
        "test_out test_fakes",
        {
            "out-over-an-operand": ("written.end <= read.begin || read.end", "true || read.end"),
            "out-over-the-end-of-an-operand": ("(last + 1) * t.element_size()", "t.element_size()"),
            "out-with-gaps": ("if (!out->is_contiguous())", "if (false)"),
            "out-of-any-shape": ("if (!out->sizes().equals(sizes))", "if (false)"),
            "out-not-written": ("  return *out;", "  return new_empty(like, sizes, dtype);"),
        },
    ),
    *of(
        "csrc/rules.cpp",
        "test_refusals",
        {
            "bias-of-any-dtype": ("t.scalar_type() != dtype &&", "false &&"),
            "vector-of-any-dtype": ("if (t.scalar_type() != dtype) refuse(", "if (false) refuse("),
            "device-of-an-operand-unchecked": (
                "if (t.is_cpu() != other.is_cpu() ||",
                "if (false &&",
            ),
            "row-of-scales-on-the-wrong-side": (
                "return sizes.slice(0, sizes.size() - column).equals(rows);",
                (
                    "return t.numel() == matrix.numel() / std::max<int64_t>(1, "
                    "matrix.size(matrix.dim() - 1));"
                ),
            ),
        },
    ),
]
