#include "cuda/sm100/arch.h"

#include "cuda/mma_sync/kernels.h"

namespace scaled_mm::cuda::sm100::int8 {

std::string Tcgen05::describe(const Int8Problem::Size&, const Machine&) const {
  return cat("CUTLASS 3.x on tcgen05, tiles of ", tile_m, " tokens x ", tile_n, " channels");
}

std::string Tcgen05::refuse(const Int8Problem::Size& size, const Machine& machine) const {
  if (machine.capability != 100) {
    return cat("needs compute capability 10.0 (others have no int8 in tcgen05), got ",
               machine.capability / 10, ".", machine.capability % 10);
  }
  if (size.k == 0) return "takes K > 0, got 0";
  return "";
}

Prediction Tcgen05::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int64_t tiles = ceil_div(size.m, tile_m) * ceil_div(size.n, tile_n);
  const double rounds = double(ceil_div(tiles * sms, int64_t{machine.sms}));
  const double products = rounds / sms * tile_m * tile_n * double(round_up(size.k, tile_k));
  return prediction_of({fixed_us, rate}, size.bytes() / mma_sync::memory_rate(machine),
                       products / machine.products_per_us, 0.0,
                       products / machine.most_products_per_us);
}

}  // namespace scaled_mm::cuda::sm100::int8
