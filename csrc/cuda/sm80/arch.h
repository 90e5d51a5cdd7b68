// Ampere, and by PTX whatever came after it: the kind of its kernels and their table. No CUDA here:
// the CPU library reads the same.
#pragma once

#include "dispatch/kernel.h"

namespace scaled_mm::cuda::sm80 {

// Newer devices run the folder's code where it was built with PTX; where there is a folder of their
// own, that one serves them.
constexpr bool serves(int capability) { return capability >= 80; }

namespace int8 {

// A CUTLASS 2.x kernel: cp.async into a ring of stages, mma.sync.m16n8k32.
struct Multistage {
  int tile_m;
  int tile_n;
  int tile_k;  // bytes of K in a stage
  int warp_m;  // of a tile, that a warp has
  int warp_n;
  int stages;

  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm80/int8.table"
#undef KERNEL

// One file is compiled for each line; it instantiates the line's.
template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope);

}  // namespace int8

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm80
