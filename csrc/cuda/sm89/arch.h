// Ada (L4, L40S, RTX 40): the kinds of its kernels and their tables. No CUDA here: the CPU library
// reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm89 {

// Newer devices by PTX, as sm80's code.
constexpr bool serves(int capability) { return capability >= 89; }

inline constexpr mma_sync::Gpus kGpus = {serves, "8.9 or newer", true};

namespace int8 {

using Multistage = mma_sync::Multistage<kGpus>;
using Stream = mma_sync::Stream<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm89/int8.table"
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
#include "cuda/sm89/lowbit.table"
#undef KERNEL

template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope);

}  // namespace lowbit

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm89
