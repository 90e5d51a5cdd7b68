// The lines of a folder's tables as constants, and what is compiled for them. Its arch.h
// includes this last, with SCALED_MM_ARCH defined as the folder's name.
#pragma once

#define SCALED_MM_TEXT_OF(words) #words
#define SCALED_MM_TEXT(words) SCALED_MM_TEXT_OF(words)
// These are paths.
// clang-format off
#define SCALED_MM_INT8_TABLE SCALED_MM_TEXT(cuda/SCALED_MM_ARCH/int8.table)
#define SCALED_MM_LOWBIT_TABLE SCALED_MM_TEXT(cuda/SCALED_MM_ARCH/lowbit.table)
#define SCALED_MM_GROUPED_TABLE SCALED_MM_TEXT(cuda/SCALED_MM_ARCH/grouped.table)
#define SCALED_MM_GROUPED_LOWBIT_TABLE SCALED_MM_TEXT(cuda/SCALED_MM_ARCH/grouped_lowbit.table)
// clang-format on

namespace scaled_mm::cuda::SCALED_MM_ARCH {
namespace int8 {

using Multistage = mma_sync::Multistage<kGpus>;
using Stream = mma_sync::Stream<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include SCALED_MM_INT8_TABLE
#undef KERNEL

template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope);
template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope);

}  // namespace int8

namespace lowbit {

using Units = mma_sync::Units<kGpus>;
using Dense = mma_sync::Dense<kGpus>;
using Simt = mma_sync::Simt<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include SCALED_MM_LOWBIT_TABLE
#undef KERNEL

template <const Units& kTile>
void run(const LowbitProblem& p, const Scope& scope);
template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope);
template <const Simt& kTile>
void run(const LowbitProblem& p, const Scope& scope);

}  // namespace lowbit

namespace grouped {

using Stream = mma_sync::GroupedStream<kGpus>;
using Multistage = mma_sync::GroupedMultistage<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include SCALED_MM_GROUPED_TABLE
#undef KERNEL

template <const Stream& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope);
template <const Multistage& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope);

}  // namespace grouped

namespace grouped_lowbit {

using Units = mma_sync::GroupedUnits<kGpus>;

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include SCALED_MM_GROUPED_LOWBIT_TABLE
#undef KERNEL

template <const Units& kTile>
void run(const GroupedLowbitProblem& p, const Scope& scope);

}  // namespace grouped_lowbit

extern const Arch arch;

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH
