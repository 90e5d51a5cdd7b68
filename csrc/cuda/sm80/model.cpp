// What Ampere's kernels serve and how long they are expected to take. The constants are an A100's
// published rates: nothing here was measured on one.
#include <algorithm>
#include <cmath>

#include "cuda/sm80/arch.h"
#include "dispatch/table.h"
#include "integers.h"
#include "refuse.h"

namespace scaled_mm::cuda::sm80 {
namespace {

constexpr double kMemoryShare = 0.85;     // of the peak of device memory
constexpr double kProductsPerUs = 2.9e6;  // int8 multiply-adds of a multiprocessor: 624 TOPS of 108
constexpr double kTensorCoreShare = 0.7;  // of those that a kernel reaches
constexpr double kFixedUs = 5.0;          // of a call, whatever its size
constexpr int64_t kMaxTilesAlongN = 8 * int64_t{65535};  // CUTLASS's swizzle puts 8 into a row of y

}  // namespace

namespace int8 {

std::string Multistage::describe(const Int8Problem::Size& size, const Machine&) const {
  const char* copies =
      size.k % 16 ? "; A and B are copied into rows that end in zeros, as K is no multiple of 16"
                  : "";
  return cat("CUTLASS 2.x, tiles of ", tile_m, " tokens x ", tile_n, " channels, ", stages,
             " stages", copies);
}

std::string Multistage::refuse(const Int8Problem::Size& size, const Machine& machine) const {
  if (!serves(machine.capability)) {
    return cat("needs compute capability 8.0 or newer, got ", machine.capability / 10, ".",
               machine.capability % 10);
  }
  if (const int64_t tiles = ceil_div(size.n, tile_n); tiles > kMaxTilesAlongN) {
    return cat("takes at most ", kMaxTilesAlongN, " tiles along N, got ", tiles);
  }
  return "";
}

Prediction Multistage::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const double tiles = double(ceil_div(size.m, tile_m) * ceil_div(size.n, tile_n));
  const double rounds = std::ceil(tiles / machine.sms);
  const double products = rounds * tile_m * tile_n * double(round_up(size.k, tile_k));
  Prediction p;
  p.memory = size.bytes() / (kMemoryShare * machine.bytes_per_us);
  p.busy = products / (kTensorCoreShare * kProductsPerUs);
  p.us = kFixedUs + std::max(p.memory, p.busy);
  return p;
}

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
