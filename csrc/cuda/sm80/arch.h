// Ampere: the kinds of its kernels and their table. No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm80 {

// Newer devices run the folder's code where it was built with PTX; where there is a folder of their
// own, that one serves them.
constexpr bool serves(int capability) { return capability >= 80; }

// That a block may ask for: A100 and Orin (8.7) have 164 KiB to a multiprocessor, A10 and RTX 30
// (8.6), Ada and RTX 50 (12.x) 100, Hopper and B200 (10.x) 228; 1 KiB is the system's.
constexpr int shared_bytes(int capability) {
  if (capability == 90 || capability / 10 == 10) return 227 * 1024;
  return capability == 80 || capability == 87 ? 163 * 1024 : 99 * 1024;
}

// Dense int8: A100 624 TOPS of 108 multiprocessors; A10 250 of 72; Orin and what comes by PTX as
// A10.
constexpr double products_per_us(int capability) { return capability == 80 ? 2.89e6 : 1.74e6; }

// L2: A100 about 5 TB/s over 108 multiprocessors.
inline constexpr mma_sync::Gpus kGpus = {serves,       "8.0 or newer",  true,
                                         shared_bytes, products_per_us, 47e3};

namespace int8 {

using Multistage = mma_sync::Multistage<kGpus>;
using Stream = mma_sync::Stream<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm80/int8.table"
#undef KERNEL

// One file is compiled for each line; it instantiates the line's.
template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope);
template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope);

}  // namespace int8

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm80
