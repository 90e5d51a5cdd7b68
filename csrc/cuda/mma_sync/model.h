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
  const int has = kGpus.shared_bytes(machine.capability);
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
  p.busy = std::max(products / (rate * kGpus.products_per_us(machine.capability)),
                    loads / (kGpus.l2_bytes_per_us * machine.sms));
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
  p.busy = std::max(loads / (kGpus.l2_bytes_per_us * machine.sms),
                    products / (0.3 * kGpus.products_per_us(machine.capability)));
  p.waves = join_us(slices, size, machine);
  p.us = fixed_us + std::max(p.memory, p.busy) + p.waves;
  return p;
}

}  // namespace scaled_mm::cuda::mma_sync
