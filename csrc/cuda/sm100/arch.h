// Blackwell for data centres (B200, 10.0; B300, 10.3): the kinds of its kernels and their tables.
// No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/mma_sync/kinds.h"

namespace scaled_mm::cuda::sm100 {

// mma.sync, which these devices have kept; their own tcgen05 is not used.
constexpr bool serves(int capability) { return capability / 10 == 10; }

inline constexpr mma_sync::Gpus kGpus = {serves, "10.x", true};

namespace int8 {

using Multistage = mma_sync::Multistage<kGpus>;
using Stream = mma_sync::Stream<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm100/int8.table"
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
#include "cuda/sm100/lowbit.table"
#undef KERNEL

template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope);

}  // namespace lowbit

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm100
