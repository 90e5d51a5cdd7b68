// Hopper: which devices this folder serves, and its table.
#pragma once

#include "cuda/config.h"

namespace scaled_mm::cuda::sm90 {

constexpr bool serves(int capability) { return capability == 90; }

enum class RowId : int {
#define ROW(name, ...) name,
#include "cuda/sm90/table.h"
#undef ROW
};

using enum Schedule;

constexpr Config stream(int tile_m, int tile_n, float fixed_us, float rate) {
  Config row{Kernel::stream, tile_m, tile_n, 128};
  row.fixed_us = fixed_us;
  row.rate = rate;
  return row;
}

constexpr Config persistent(int tile_m, int tile_n, int tile_k, int cluster_m, int cluster_n,
                            Schedule schedule, int swizzle, float fixed_us, float rate) {
  return {Kernel::persistent, tile_m,   tile_n,  tile_k,   cluster_m,
          cluster_n,          schedule, swizzle, fixed_us, rate};
}

inline constexpr Row kRows[] = {
#define ROW(name, kernel, ...) {#name, kernel(__VA_ARGS__)},
#include "cuda/sm90/table.h"
#undef ROW
};

constexpr const Config& config(RowId row) { return kRows[static_cast<int>(row)].config; }

}  // namespace scaled_mm::cuda::sm90
