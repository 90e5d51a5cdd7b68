// What Ampere's kernels serve and how long they are expected to take: the shared model with the
// numbers of arch.h.
#include "cuda/mma_sync/model.h"
#include "cuda/sm80/arch.h"

namespace scaled_mm::cuda::sm80 {
namespace int8 {
namespace {

constexpr Kernel<Int8Problem> kKernels[] = {
#define KERNEL(name, Kind, ...) table_line<Int8Problem, name>(#name, SCALED_MM_RUN(run<name>)),
#include "cuda/sm80/int8.table"
#undef KERNEL
};

}  // namespace
}  // namespace int8

constinit const Arch arch = {"sm80", serves, int8::kKernels, {}};

}  // namespace scaled_mm::cuda::sm80
