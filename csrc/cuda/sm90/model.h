// What the models of Hopper's kernels have in common (docs/tuning.md).
#pragma once

#include "cuda/sm90/arch.h"
#include "dispatch/table.h"
#include "refuse.h"

namespace scaled_mm::cuda::sm90 {

// Measured on an H200; machine.latency says how much longer they are elsewhere.
constexpr double kExposedEpilogueUs = 2.2;  // of a tile, where no other tile's products hide it
constexpr double kTileEndingUs = 3e-7;      // of a sum with an ending, in a persistent kernel

// Of device memory, at best.
inline double rate_of(const Machine& machine) {
  return machine.memory_share * machine.bytes_per_us;
}

inline std::string refuse_machine(const Machine& machine) {
  if (serves(machine.capability)) return "";
  return cat("needs compute capability 9.0, got ", machine.capability / 10, ".",
             machine.capability % 10);
}

namespace int8 {

// Without an activation, a residual or an 8-bit D.
inline bool is_plain(const Int8Problem::Size& size) {
  return !size.has_ending() && !epilogue::entry(size.epilogue).has_residual;
}

inline std::string tile_text(int tile_m, int tile_n) {
  return cat("tiles of ", tile_m, " tokens x ", tile_n, " channels");
}

}  // namespace int8

// The lines of tables whose models are in grouped_model.cpp.
#define KERNEL(...) +1
namespace grouped {
inline constexpr int kLines = 0
#include "cuda/sm90/grouped.table"
    ;
extern const Kernel<GroupedInt8Problem> kKernels[kLines];
}  // namespace grouped

namespace grouped_lowbit {
inline constexpr int kLines = 0
#include "cuda/sm90/grouped_lowbit.table"
    ;
extern const Kernel<GroupedLowbitProblem> kKernels[kLines];
}  // namespace grouped_lowbit
#undef KERNEL

}  // namespace scaled_mm::cuda::sm90
