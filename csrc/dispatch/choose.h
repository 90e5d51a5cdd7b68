// The choice of a kernel, the same for every family of ops: the one that is forced, else the
// remembered answer, else the least prediction among those that do not refuse.
#pragma once

#include <cmath>
#include <string_view>

#include "dispatch/kernel.h"
#include "dispatch/setting.h"
#include "dispatch/tuning.h"
#include "refuse.h"

namespace scaled_mm {

// SCALED_MM_KERNEL: names of kernels, separated by commas. A name forces that kernel where the
// device's arch has it and the kernel does not refuse; "sm80/NAME" takes it from another folder. A
// name of one family does not touch the others.
Setting& forced_kernels();

// Throws std::invalid_argument where SCALED_MM_KERNEL holds a name that no kernel of any family
// has.
void check_forced_kernels();

namespace detail {

// The forced kernel of this family, refusing or not; null where none is forced.
template <class P>
const Kernel<P>* find_forced(const Machine& machine) {
  const std::string* const forced = forced_kernels().get();
  if (!forced) return nullptr;
  check_forced_kernels();
  std::string_view rest = *forced;
  while (!rest.empty()) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const size_t slash = name.find('/');
    const bool elsewhere = slash != name.npos;
    for (const Arch* arch : archs()) {
      if (elsewhere ? name.substr(0, slash) != arch->name : arch != find_arch(machine.capability)) {
        continue;
      }
      for (const Kernel<P>& kernel : kernels_of<P>(*arch)) {
        if (name.substr(elsewhere ? slash + 1 : 0) == kernel.name) return &kernel;
      }
    }
  }
  return nullptr;
}

// As what was measured on the machine has it, if anything was.
template <class P>
Prediction predict(const Kernel<P>& kernel, const typename P::Size& size, Machine machine,
                   const Tuning* tuning) {
  if (!tuning) return kernel.predict(size, machine, nullptr);
  machine.memory_share = tuning->memory_share;
  return kernel.predict(size, machine, tuning->find(&kernel));
}

template <class P>
const Kernel<P>* find_fastest(const typename P::Size& size, const Machine& machine) {
  const Arch* const arch = find_arch(machine.capability);
  const Tuning* const tuning = find_tuning(machine);
  const Kernel<P>* found = nullptr;
  double least = INFINITY;
  for (const Kernel<P>& kernel : arch ? kernels_of<P>(*arch) : std::span<const Kernel<P>>{}) {
    if (!kernel.refuse(size, machine).empty()) continue;
    const double us = predict<P>(kernel, size, machine, tuning).us;
    if (us < least) least = us, found = &kernel;
  }
  return found;
}

inline uint64_t mix(int64_t m, int64_t n, int64_t k) {
  return (static_cast<uint64_t>(m) * 0x9e3779b97f4a7c15u) ^
         (static_cast<uint64_t>(n) * 0xc2b2ae3d27d4eb4fu) ^
         (static_cast<uint64_t>(k) * 0x165667b19e3779f9u);
}

}  // namespace detail

// The kernel to run; null where the device's arch has none for the size. A thread keeps its last
// answers: the same few sizes come again and again.
template <class P>
const Kernel<P>* choose(const typename P::Size& size, const Machine& machine) {
  if (const Kernel<P>* forced = detail::find_forced<P>(machine)) {
    if (forced->refuse(size, machine).empty()) return forced;
  }
  struct Known {
    typename P::Size size;
    Machine machine;
    const Tunings* tuned = nullptr;
    const Kernel<P>* answer = nullptr;
  };
  thread_local Known all[64];
  Known& known = all[detail::mix(size.m, size.n, size.k) >> 58];
  const Tunings* const tuned = tunings();
  if (!known.answer || !(known.size == size) || !(known.machine == machine) ||
      known.tuned != tuned) {
    known = {size, machine, tuned, detail::find_fastest<P>(size, machine)};
  }
  return known.answer;
}

// Why no kernel of the device's arch serves the size: each with its reason.
template <class P>
[[noreturn]] void refuse_size(const typename P::Size& size, const Machine& machine) {
  const Arch* const arch = find_arch(machine.capability);
  std::string reasons;
  for (const Kernel<P>& kernel : kernels_of<P>(*arch)) {
    reasons += cat(reasons.empty() ? "" : "; ", kernel.name, " ", kernel.refuse(size, machine));
  }
  if (reasons.empty()) reasons = "it has none of this family";
  refuse("the product", cat("be one that a kernel of ", arch->name, " serves"),
         cat("M=", size.m, " N=", size.n, " K=", size.k, " (", reasons, ")"));
}

}  // namespace scaled_mm
