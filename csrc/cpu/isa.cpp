#include <string>
#include <vector>

#include "cpu/isa.h"
#include "refuse.h"

namespace scaled_mm::cpu {
namespace {

// Best first. A line here and one isa_*.cpp is all that an instruction set takes.
// clang-format off
constexpr const InstructionSet* kAll[] = {
#if defined(__x86_64__) && defined(__linux__)
    &amx_int8_isa,
#endif
#if defined(__x86_64__)
    &avx512_bf16_isa,
    &avx512_vnni_isa,
    &avx_vnni_isa,
    &avx2_isa,
#endif
    &portable_isa,
};
// clang-format on

// Those that this machine runs.
const std::vector<const InstructionSet*>& running() {
  static const std::vector<const InstructionSet*> found = [] {
    std::vector<const InstructionSet*> available;
    for (const InstructionSet* isa : kAll) {
      if (isa->available()) available.push_back(isa);
    }
    return available;
  }();
  return found;
}

std::string names(const char* separator) {
  std::string text;
  for (const InstructionSet* isa : running()) {
    text += (text.empty() ? "" : separator) + std::string(isa->name);
  }
  return text;
}

}  // namespace

Setting& forced_isa() {
  static Setting setting("SCALED_MM_CPU_ISA");
  return setting;
}
// Read while the library is loaded.
[[maybe_unused]] static const Setting& at_load = forced_isa();

const InstructionSet& instruction_set() {
  const std::string* const forced = forced_isa().get();
  if (!forced) return *running().front();
  for (const InstructionSet* isa : running()) {
    if (*forced == isa->name) return *isa;
  }
  refuse(forced_isa().variable(), "be one that this machine runs (" + names(", ") + ")", *forced);
}

std::string list_isas() { return names(" "); }

}  // namespace scaled_mm::cpu
