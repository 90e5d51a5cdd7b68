// What the kernels of mma.sync serve and how long they are expected to take; for the model.cpp of
// an arch's folder.
#pragma once

#include <algorithm>
#include <cmath>

#include "cuda/mma_sync/kinds.h"
#include "dispatch/table.h"
#include "integers.h"
#include "refuse.h"

namespace scaled_mm::cuda::mma_sync {

inline constexpr double kMemoryShare = 0.87;  // of the peak of device memory
inline constexpr double kJoinUs = 2.0;        // of the kernel that adds up slices
inline constexpr int64_t kMaxGridY = 65535;

// Dense int8 of a multiprocessor, by datasheets: T4 130 TOPS of 40, A100 624 of 108, A10 250 of 72,
// L40S 733 of 142, RTX 5090 838 of 170; Orin as A10, B200 as A100 where mma.sync is what it has.
inline double products_per_us(const Machine& machine) {
  switch (machine.capability / 10 * 10) {
    case 70: return 1.63e6;
    case 80: return machine.capability == 80 ? 2.89e6 : machine.capability == 89 ? 2.58e6 : 1.74e6;
    case 120: return 2.46e6;
    default: return 2.89e6;
  }
}
// From L2, for each multiprocessor when all of them read: A100 about 5 TB/s.
inline double l2_bytes_per_us(const Machine&) { return 47e3; }

inline std::string refuse_machine(const Gpus& gpus, const Machine& machine) {
  if (gpus.serves(machine.capability)) return "";
  return cat("needs compute capability ", gpus.served, ", got ", machine.capability / 10, ".",
             machine.capability % 10);
}

inline std::string slices_text(int slices) {
  return slices > 1 ? cat(", K in ", slices, " slices") : "";
}

// Bytes of the operands' ring.
template <const Gpus& kGpus>
constexpr int ring_bytes(const Multistage<kGpus>& tile) {
  return (tile.tile_m + tile.tile_n) * tile.tile_k * tile.stages;
}

template <const Gpus& kGpus>
int64_t tiles_of(const Multistage<kGpus>& tile, const Int8Problem::Size& size) {
  return ceil_div(size.m, tile.tile_m) * ceil_div(size.n, tile.tile_n);
}
template <const Gpus& kGpus>
int64_t tiles_of(const Stream<kGpus>& tile, const Int8Problem::Size& size) {
  return ceil_div(size.m, tile.tile_m) * ceil_div(size.n, tile.tile_n);
}

template <const Gpus& kGpus>
int slices_of(const Multistage<kGpus>& tile, const Int8Problem::Size& size,
              const Machine& machine) {
  // A slice shorter than two rings would only fill and drain.
  return plan_split(tile.split, tiles_of(tile, size), size.k / (2 * tile.tile_k * tile.stages),
                    machine);
}
template <const Gpus& kGpus>
int slices_of(const Stream<kGpus>& tile, const Int8Problem::Size& size, const Machine& machine) {
  return plan_split(tile.split, tiles_of(tile, size), size.k / (2 * tile.step * tile.warps),
                    machine);
}

// What slices cost beside the product: their sums are written, read and added up.
inline double join_us(int slices, const Int8Problem::Size& size, const Machine& machine) {
  if (slices == 1) return 0;
  const double bytes = 8.0 * slices * double(size.m) * double(size.n);
  return kJoinUs + bytes / (3 * machine.bytes_per_us);  // L2 holds them
}

template <const Gpus& kGpus>
std::string Multistage<kGpus>::describe(const Int8Problem::Size& size,
                                        const Machine& machine) const {
  const char* copies =
      size.k % 16 ? "; A and B are copied into rows that end in zeros, as K is no multiple of 16"
                  : "";
  return cat("CUTLASS 2.x, tiles of ", tile_m, " tokens x ", tile_n, " channels, ", stages,
             " stages", slices_text(slices_of(*this, size, machine)), copies);
}

template <const Gpus& kGpus>
std::string Multistage<kGpus>::refuse(const Int8Problem::Size& size, const Machine& machine) const {
  if (const std::string why = refuse_machine(kGpus, machine); !why.empty()) return why;
  const int has = shared_bytes(machine.capability);
  if (const int bytes = ring_bytes(*this); bytes > has) {
    return cat("needs ", bytes, " bytes of shared memory, a block has at most ", has);
  }
  if (const int64_t tiles = ceil_div(size.n, tile_n); tiles > swizzle * kMaxGridY) {
    return cat("takes at most ", swizzle * kMaxGridY, " tiles along N, got ", tiles);
  }
  return "";
}

template <const Gpus& kGpus>
Prediction Multistage<kGpus>::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int slices = slices_of(*this, size, machine);
  const int64_t blocks = tiles_of(*this, size) * slices;
  const double k = double(round_up(ceil_div(size.k, slices), tile_k));
  // Blocks that share a multiprocessor share its tensor cores: only the last round is ragged.
  const double rounds = double(ceil_div(blocks, int64_t{machine.sms}));
  const double products = rounds * tile_m * tile_n * k;
  const double loads = double(blocks) * (tile_m + tile_n) * k;
  Prediction p;
  p.memory = size.bytes() / (kMemoryShare * machine.bytes_per_us);
  p.busy = std::max(products / (rate * products_per_us(machine)),
                    loads / (l2_bytes_per_us(machine) * machine.sms));
  p.waves = join_us(slices, size, machine);
  p.us = fixed_us + std::max(p.memory, p.busy) + p.waves;
  return p;
}

template <const Gpus& kGpus>
std::string Stream<kGpus>::describe(const Int8Problem::Size& size, const Machine& machine) const {
  return cat("streams the weight, tiles of ", tile_m, " tokens x ", tile_n, " channels, ", warps,
             " warps", slices_text(slices_of(*this, size, machine)));
}

template <const Gpus& kGpus>
std::string Stream<kGpus>::refuse(const Int8Problem::Size&, const Machine& machine) const {
  return refuse_machine(kGpus, machine);
}

template <const Gpus& kGpus>
Prediction Stream<kGpus>::predict(const Int8Problem::Size& size, const Machine& machine) const {
  const int slices = slices_of(*this, size, machine);
  const int64_t blocks = tiles_of(*this, size) * slices;
  const double k = double(round_up(ceil_div(size.k, slices), step));
  const double rounds = std::max(1.0, double(blocks) / machine.sms);
  const double loads = rounds * machine.sms * (tile_m + tile_n) * k;
  const double products = rounds * tile_m * tile_n * k;
  Prediction p;
  p.memory = size.bytes() / (rate * machine.bytes_per_us);
  p.busy = std::max(loads / (l2_bytes_per_us(machine) * machine.sms),
                    products / (0.3 * products_per_us(machine)));
  p.waves = join_us(slices, size, machine);
  p.us = fixed_us + std::max(p.memory, p.busy) + p.waves;
  return p;
}

template <const Gpus& kGpus>
std::string Dense<kGpus>::describe(const LowbitProblem::Size&, const Machine&) const {
  return cat("dequantises W to memory, then a dense product, CUTLASS 2.x, tiles of ", tile_m,
             " tokens x ", tile_n, " channels, ", stages, " stages");
}

template <const Gpus& kGpus>
std::string Dense<kGpus>::refuse(const LowbitProblem::Size& size, const Machine& machine) const {
  if (size.bits != 4 || size.packing != Packing::awq || size.zero_point != ZeroPoint::integer) {
    return cat("takes 4 bits in AWQ's packing with integer zero points, got ", size.bits, " bits");
  }
  if (!kGpus.multistage && size.dtype != DType::float16) {
    return "takes float16 (these tensor cores have no bfloat16), got bfloat16";
  }
  if (const int64_t tiles = ceil_div(size.n, tile_n); tiles > swizzle * kMaxGridY) {
    return cat("takes at most ", swizzle * kMaxGridY, " tiles along N, got ", tiles);
  }
  return refuse_machine(kGpus, machine);
}

template <const Gpus& kGpus>
Prediction Dense<kGpus>::predict(const LowbitProblem::Size& size, const Machine& machine) const {
  const double rounds =
      double(ceil_div(ceil_div(size.m, tile_m) * ceil_div(size.n, tile_n), int64_t{machine.sms}));
  const double k = double(round_up(size.k, tile_k)), dense = 2 * double(size.n) * double(size.k);
  const double memory = kMemoryShare * machine.bytes_per_us;
  Prediction p;
  p.memory = (size.weight_bytes() + dense) / memory;
  // 16-bit floats at half the rate of int8.
  p.busy = rounds * tile_m * tile_n * k * 2 / (rate * products_per_us(machine));
  p.us =
      fixed_us + p.memory + std::max(p.busy, (dense + size.bytes() - size.weight_bytes()) / memory);
  return p;
}

}  // namespace scaled_mm::cuda::mma_sync
