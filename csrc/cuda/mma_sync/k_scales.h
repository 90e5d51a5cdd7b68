// The kernels for products with scales along K that every arch has (k_scales/tile.cuh). No
// CUDA here: the CPU library reads the same.
#pragma once

#include "dispatch/table.h"
#include "integers.h"

namespace scaled_mm::cuda {

struct GroupTiles {
  int tokens;       // of a tile of 64 channels
  double fixed_us;  // of a call, whatever its size
  double rate;      // how much faster its tiles are than 3e4 rows of a multiprocessor's us

  std::string describe(const KScalesProblem::Size&, const Machine&) const {
    return cat("mma.sync, tiles of ", tokens, " tokens x ", kUnitChannels, " channels");
  }
  std::string refuse(const KScalesProblem::Size&, const Machine&) const { return ""; }
  Prediction predict(const KScalesProblem::Size& size, const Machine& machine) const {
    const double tiles = double(ceil_div(size.m, tokens) * ceil_div(size.n, kUnitChannels));
    const double rows = double(kUnitChannels + 2 * tokens) * double(size.k);
    return prediction_of({fixed_us, rate},
                         size.bytes() / (machine.memory_share * machine.bytes_per_us),
                         tiles * rows / (3e4 * machine.sms), 0);
  }
};
inline constexpr GroupTiles groups_16{16, 7.0, 1.06}, groups_64{64, 3.6, 0.79};  // fitted on 9.0

template <const GroupTiles& kTile>
void run(const KScalesProblem& p, const Scope& scope);  // k_scales.cu

// Their lines, for an arch's array.
#define SCALED_MM_GROUP_TILES                                                              \
  table_line<KScalesProblem, groups_16>("groups_16", SCALED_MM_RUN(cuda::run<groups_16>)), \
      table_line<KScalesProblem, groups_64>("groups_64", SCALED_MM_RUN(cuda::run<groups_64>))

}  // namespace scaled_mm::cuda
