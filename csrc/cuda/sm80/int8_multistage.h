// A line of int8.table whose tiles go through shared memory. setup.py compiles this once for every
// such line, with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/mma_sync/int8_multistage.h"
#include "cuda/sm80/arch.h"

namespace scaled_mm::cuda::sm80::int8 {

template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  mma_sync::run_multistage<kTile, kGpus>(p, scope);
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm80::int8
