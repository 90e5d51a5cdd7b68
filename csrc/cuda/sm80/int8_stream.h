// A line of int8.table that streams the weight. setup.py compiles this once for every such line,
// with SCALED_MM_KERNEL_NAME defined as its name.
#include "cuda/mma_sync/int8_stream.h"
#include "cuda/sm80/arch.h"

namespace scaled_mm::cuda::sm80::int8 {

template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  mma_sync::run_stream<kTile>(p, scope);
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm80::int8
