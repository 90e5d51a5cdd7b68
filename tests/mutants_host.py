"""Bugs for mutants.py. The choice of a kernel: csrc/dispatch, the archs' models and tables."""

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
]
