// Blackwell for data centres (B200, 10.0; B300, 10.3): the kinds of its kernels and their tables.
// No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm100 {

// mma.sync, which these devices have kept; and for int8, on 10.0, their own tcgen05.
constexpr bool serves(int capability) { return capability / 10 == 10; }

inline constexpr mma_sync::Gpus kGpus = {serves, "10.x", true};

namespace int8 {

// A persistent CUTLASS 3.x kernel on tcgen05 (int8_tcgen05.h).
struct Tcgen05 {
  int tile_m;
  int tile_n;
  int tile_k;      // bytes of K in a stage
  int sms;         // multiprocessors that share a tile: 1 or 2
  float fixed_us;  // of a call, whatever its size
  float rate;      // how fast it is where tensor cores bind, relative to the machine's rates

  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};
template <const Tcgen05& kTile>
void run(const Int8Problem& p, const Scope& scope);

}  // namespace int8
}  // namespace scaled_mm::cuda::sm100

#define SCALED_MM_ARCH sm100
#include "cuda/mma_sync/tables.h"
