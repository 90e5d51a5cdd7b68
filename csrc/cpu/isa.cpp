#include <cstdlib>
#include <string>
#include <vector>

#include "check.h"
#include "cpu/kernels.h"

namespace scaled_mm::cpu {
namespace {

// Best first. A line here and one isa_*.cpp is all that an instruction set takes.
// clang-format off
constexpr const Kernels* kAll[] = {
#if defined(__x86_64__) && defined(__linux__)
    &amx_int8_kernels,
#endif
#if defined(__x86_64__)
    &avx512_vnni_kernels,
    &avx_vnni_kernels,
    &avx2_kernels,
#endif
    &portable_kernels,
};
// clang-format on

// Those that this machine runs.
const std::vector<const Kernels*>& running() {
  static const std::vector<const Kernels*> found = [] {
    std::vector<const Kernels*> kernels;
    for (const Kernels* k : kAll) {
      if (k->available()) kernels.push_back(k);
    }
    return kernels;
  }();
  return found;
}

std::string names() {
  std::string text;
  for (const Kernels* k : running()) text += (text.empty() ? "" : ", ") + std::string(k->name);
  return text;
}

}  // namespace

const Kernels& kernels() {
  const char* forced = std::getenv("SCALED_MM_CPU_ISA");
  if (!forced || !*forced) return *running().front();
  for (const Kernels* k : running()) {
    if (std::string(forced) == k->name) return *k;
  }
  refuse("SCALED_MM_CPU_ISA", "be one that this machine runs (" + names() + ")", forced);
}

}  // namespace scaled_mm::cpu

// For `scaled-mm info` and the tests, by ctypes: all that run here, best first.
extern "C" __attribute__((visibility("default"))) const char* scaled_mm_cpu_isas() {
  static const std::string text = scaled_mm::cpu::names();
  return text.c_str();
}
