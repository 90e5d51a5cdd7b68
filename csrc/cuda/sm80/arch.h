// Ampere (A100; A10 and RTX 30, 8.6; Orin, 8.7): the kinds of its kernels and their tables. No CUDA
// here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm80 {

// Newer devices run the folder's code where it was built with PTX; where there is a folder of their
// own, that one serves them. What 8.6 has no shared memory for, a line refuses.
constexpr bool serves(int capability) { return capability >= 80; }

inline constexpr mma_sync::Gpus kGpus = {serves, "8.0 or newer", true};

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

namespace lowbit {

using Dense = mma_sync::Dense<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm80/lowbit.table"
#undef KERNEL

template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope);

}  // namespace lowbit

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm80
