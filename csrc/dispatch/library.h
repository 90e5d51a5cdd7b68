// What either library tells of itself and lets be set, for Python's _library.py: registered by
// cpu/library.cpp for the CPU key and by cuda/library.cpp for the CUDA key.
#pragma once

#include "dispatch/choose.h"

namespace scaled_mm {

// "sm80 sm90": the architectures whose tables the library holds.
inline std::string list_archs() {
  std::string text;
  for (const Arch* arch : archs()) text += (text.empty() ? "" : " ") + std::string(arch->name);
  return text;
}

// The arch that serves a capability; empty: none.
inline std::string arch_of(int64_t capability) {
  const Arch* const arch = find_arch(static_cast<int>(capability));
  return arch ? arch->name : "";
}

// "NAME NAME ...": the kernels of an arch and a family, int8 or lowbit.
inline std::string list_kernels(std::string arch_name, std::string family) {
  std::string text;
  const auto add = [&](const auto& kernels) {
    for (const auto& kernel : kernels) text += (text.empty() ? "" : " ") + std::string(kernel.name);
  };
  for (const Arch* arch : archs()) {
    if (arch_name != arch->name) continue;
    if (family == "int8") add(arch->int8);
    if (family == "lowbit") add(arch->lowbit);
  }
  return text;
}

// Sets SCALED_MM_KERNEL for this library; empty: nothing is forced. Returns the value before.
inline std::string force_kernels(std::string names) { return forced_kernels().exchange(names); }

}  // namespace scaled_mm
