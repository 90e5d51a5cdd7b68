// A folder's Arch: the kernels of its tables, by the model of model.h with the folder's numbers.
// Its model.cpp includes this behind its arch.h.
#pragma once

#include "cuda/mma_sync/k_scales.h"
#include "cuda/mma_sync/model.h"

namespace scaled_mm::cuda::SCALED_MM_ARCH {
namespace int8 {
namespace {

constexpr Kernel<Int8Problem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<Int8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include SCALED_MM_INT8_TABLE
#undef KERNEL
};

}  // namespace
}  // namespace int8

namespace lowbit {
namespace {

constexpr Kernel<LowbitProblem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<LowbitProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include SCALED_MM_LOWBIT_TABLE
#undef KERNEL
};

}  // namespace
}  // namespace lowbit

namespace grouped {
namespace {

constexpr Kernel<GroupedInt8Problem> kKernels[] = {
#define KERNEL(name, Kind, ...) \
  table_line<GroupedInt8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include SCALED_MM_GROUPED_TABLE
#undef KERNEL
};

}  // namespace
}  // namespace grouped

namespace grouped_lowbit {
namespace {

constexpr Kernel<GroupedLowbitProblem> kKernels[] = {
#define KERNEL(name, Kind, ...) \
  table_line<GroupedLowbitProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include SCALED_MM_GROUPED_LOWBIT_TABLE
#undef KERNEL
};

}  // namespace
}  // namespace grouped_lowbit

namespace k_scales {

constexpr Kernel<KScalesProblem> kKernels[] = {SCALED_MM_GROUP_TILES};
extern const std::span<const Kernel<KScalesProblem>> all;
constinit const std::span<const Kernel<KScalesProblem>> all = kKernels;

}  // namespace k_scales

constinit const Arch arch = {SCALED_MM_TEXT(SCALED_MM_ARCH), int8::kKernels, lowbit::kKernels,
                             grouped::kKernels, grouped_lowbit::kKernels};

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH
