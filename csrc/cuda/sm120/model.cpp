// What the kernels serve and how long they are expected to take: the model of mma_sync/model.h with
// the numbers of this folder.
#include "cuda/mma_sync/model.h"
#include "cuda/sm120/arch.h"

namespace scaled_mm::cuda::sm120 {
namespace int8 {
namespace {

constexpr Kernel<Int8Problem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<Int8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm120/int8.table"
#undef KERNEL
};

}  // namespace
}  // namespace int8

namespace lowbit {
namespace {

constexpr Kernel<LowbitProblem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<LowbitProblem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm120/lowbit.table"
#undef KERNEL
};

}  // namespace
}  // namespace lowbit

constinit const Arch arch = {"sm120", serves, int8::kKernels, lowbit::kKernels};

}  // namespace scaled_mm::cuda::sm120
