#include <cstdlib>
#include <string>

#include "check.h"
#include "cpu/kernels.h"

namespace scaled_mm::cpu {
namespace {

// Best first. A line here and one isa_*.cpp is all that an instruction set takes.
constexpr const Kernels* kAll[] = {
#if defined(__x86_64__)
#if defined(__linux__)
    &amx_int8_kernels,
#endif
    &avx512_vnni_kernels,
    &avx_vnni_kernels,
    &avx2_kernels,
#endif
    &portable_kernels,
};

std::string names(bool (*wanted)(const Kernels&)) {
  std::string text;
  for (const Kernels* k : kAll) {
    if (wanted(*k)) text += (text.empty() ? "" : ", ") + std::string(k->name);
  }
  return text;
}

const Kernels& best() {
  static const Kernels* found = [] {
    const Kernels* const* k = kAll;
    while (!(*k)->available()) ++k;
    return *k;
  }();
  return *found;
}

}  // namespace

const Kernels& kernels() {
  const char* forced = std::getenv("SCALED_MM_CPU_ISA");
  if (!forced || !*forced) return best();
  for (const Kernels* k : kAll) {
    if (std::string(forced) == k->name && k->available()) return *k;
  }
  refuse("SCALED_MM_CPU_ISA",
         "be one that this machine runs (" +
             names([](const Kernels& k) { return k.available(); }) + ")",
         forced);
}

}  // namespace scaled_mm::cpu

// For `scaled-mm info` and the tests, by ctypes: what runs now, and all that could.
extern "C" {
__attribute__((visibility("default"))) const char* scaled_mm_cpu_isas() {
  static const std::string text = scaled_mm::cpu::names(
      [](const scaled_mm::cpu::Kernels& k) { return k.available(); });
  return text.c_str();
}
}
