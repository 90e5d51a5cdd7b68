// What either library tells of itself and lets be set, for Python's _library.py: registered by
// cpu/library.cpp for the CPU key and by cuda/library.cpp for the CUDA key.
#pragma once

#include <torch/csrc/stable/library.h>

#include <sstream>

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

// "NAME NAME ...": the kernels of an arch and a family: int8, lowbit, grouped, grouped_lowbit or
// k_scales.
inline std::string list_kernels(std::string arch_name, std::string family) {
  std::string text;
  const auto add = [&](const auto& kernels) {
    for (const auto& kernel : kernels) text += (text.empty() ? "" : " ") + std::string(kernel.name);
  };
  for (const Arch* arch : archs()) {
    if (arch_name != arch->name) continue;
    if (family == "int8") add(arch->int8);
    if (family == "lowbit") add(arch->lowbit);
    if (family == "grouped") add(arch->grouped);
    if (family == "grouped_lowbit") add(arch->grouped_lowbit);
    if (family == "k_scales") add(kernels_of<KScalesProblem>(*arch));
  }
  return text;
}

// What the tables and the models say, in 64 bits: another value where a kernel, its numbers or a
// model changed, so that what was measured with the ones before can be told from it.
inline std::string fingerprint(std::string arch_name) {
  uint64_t hash = 0xcbf29ce484222325u;
  const auto add = [&](const std::string& text) {  // FNV-1a
    for (const unsigned char c : text) hash = (hash ^ c) * 0x100000001b3u;
  };
  const auto add_all = [&](const auto& kernels, const auto& sizes, const Machine& machine) {
    for (const auto& kernel : kernels) {
      add(kernel.name);
      for (const auto& size : sizes) {
        add(kernel.describe(size, machine));
        if (!kernel.refuse(size, machine).empty()) continue;
        const Prediction p = kernel.predict(size, machine, nullptr);
        add(cat('/', p.us, '/', p.memory, '/', p.busy, '/', p.waves, '/', p.least));
      }
    }
  };
  for (const Arch* arch : archs()) {
    if (arch_name != arch->name) continue;
    int capability = 0;
    while (capability < 1000 && find_arch(capability) != arch) ++capability;
    const Machine machine = machine_of(
        {.name = "fingerprint", .capability = capability, .sms = 132, .bytes_per_us = 4e6});
    const Int8Problem::Size int8[] = {{.m = 1, .n = 4096, .k = 4096},
                                      {.m = 100, .n = 14336, .k = 4096},
                                      {.m = 3000, .n = 6144, .k = 8192}};
    const LowbitProblem::Size lowbit[] = {{.m = 1, .n = 4096, .k = 4096, .group = 128},
                                          {.m = 100, .n = 14336, .k = 4096, .group = 64},
                                          {.m = 3000, .n = 6144, .k = 8192, .group = 128}};
    const KScalesProblem::Size k_scales[] = {
        {.m = 1, .n = 4096, .k = 4096, .group = 128},
        {.m = 100, .n = 14336, .k = 4096, .group = 32},
        {.m = 3000, .n = 6144, .k = 8192, .group = 8192},
        {.m = 1000, .n = 6144, .k = 8192, .group = 128, .in_blocks = true}};
    add_all(arch->int8, int8, machine);
    add_all(arch->lowbit, lowbit, machine);
    add_all(kernels_of<KScalesProblem>(*arch), k_scales, machine);
  }
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

// Sets SCALED_MM_KERNEL for this library; empty: nothing is forced. Returns the value before.
inline std::string force_kernels(std::string names) { return forced_kernels().exchange(names); }

// What both libraries register, each for its key.
inline void register_kernels(auto& ops) {
  ops.impl("_archs", TORCH_BOX(&list_archs));
  ops.impl("_arch_of", TORCH_BOX(&arch_of));
  ops.impl("_kernels", TORCH_BOX(&list_kernels));
  ops.impl("_force_kernels", TORCH_BOX(&force_kernels));
  ops.impl("_tune", TORCH_BOX(&tune));
  ops.impl("_untune", TORCH_BOX(&untune));
}

}  // namespace scaled_mm
