// A kernel is a line of a table: for every family of ops, on every architecture.
//
// P is a family's problem (problems/). What a kernel says of itself before it runs it says of a
// P::Size, which holds all that the choice may depend on. Plain C++ without CUDA: the CPU library
// holds the same tables, so that `scaled-mm explain` works where there is no GPU.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "dispatch/gpus.h"
#include "dispatch/plan.h"
#include "dispatch/predict.h"
#include "problems/groups.h"
#include "problems/int8.h"
#include "problems/k_scales.h"
#include "problems/lowbit.h"
#include "problems/mixed_groups.h"

namespace scaled_mm {

namespace cuda {
class Scope;
}

template <class P>
struct Kernel {
  using Size = typename P::Size;

  const char* name;  // what SCALED_MM_KERNEL takes and what explain prints
  // What it does with the size, in words.
  std::string (*describe)(const Size&, const Machine&);
  // The rule that the size or the machine breaks, and the value; empty: the kernel serves it.
  std::string (*refuse)(const Size&, const Machine&);
  // With the line's own numbers where the fit is null.
  Prediction (*predict)(const Size&, const Machine&, const Fit*);
  // Of the line; none: its kind has no numbers that could be fitted.
  std::optional<Fit> fit;
  // Launches it; null in the CPU library.
  void (*run)(const P&, const cuda::Scope&);
};

// A folder csrc/cuda/smXX: its kernels of each family.
struct Arch {
  const char* name;
  std::span<const Kernel<Int8Problem>> int8;
  std::span<const Kernel<LowbitProblem>> lowbit;
  std::span<const Kernel<GroupedInt8Problem>> grouped;
  std::span<const Kernel<GroupedLowbitProblem>> grouped_lowbit;
  // Of an int8 kernel by its name; null where epilogues are not compiled, and in the CPU library.
  LinePlan (*plan_line)(const char* name, const Int8Problem::Size&, const Machine&,
                        bool settled) = nullptr;

  // 90 of sm90: what its code is compiled for.
  int number() const { return std::atoi(name + 2); }
};

template <class P>
std::span<const Kernel<P>> kernels_of(const Arch& arch);
template <>
inline std::span<const Kernel<Int8Problem>> kernels_of<Int8Problem>(const Arch& arch) {
  return arch.int8;
}
template <>
inline std::span<const Kernel<LowbitProblem>> kernels_of<LowbitProblem>(const Arch& arch) {
  return arch.lowbit;
}
template <>
inline std::span<const Kernel<GroupedInt8Problem>> kernels_of<GroupedInt8Problem>(
    const Arch& arch) {
  return arch.grouped;
}
template <>
inline std::span<const Kernel<GroupedLowbitProblem>> kernels_of<GroupedLowbitProblem>(
    const Arch& arch) {
  return arch.grouped_lowbit;
}
// Beside those of an Arch.
template <>
std::span<const Kernel<KScalesProblem>> kernels_of<KScalesProblem>(const Arch& arch);

// The architectures of this library, the oldest first: all folders in the CPU library, those that
// were built in the CUDA library.
std::span<const Arch* const> archs();
std::string arch_names();
// The newest with code that GPUs of the capability run, as this library was built; null: none.
const Arch* find_arch(int capability);

}  // namespace scaled_mm
