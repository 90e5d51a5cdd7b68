// The registry as a table, and the choice: which epilogue serves the operands of a call.
#pragma once

#include <bit>
#include <string>

#include "check.h"
#include "epilogue/epilogues.h"

namespace scaled_mm::epilogue {

struct Entry {
  const char* name;
  OperandSet required;
  OperandSet accepted;
};

inline constexpr Entry kRegistry[] = {
#define EPILOGUE(name) {#name, name::required, name::accepted},
#include "epilogue/registry.def"
#undef EPILOGUE
};

inline std::string names(OperandSet operands) {
  std::string text;
  for (int i = 0; i < kNumOperands; ++i) {
    if (operands >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kOperandNames[i]);
  }
  return text;
}

// The first epilogue that needs nothing but the operands given and reads them all. When there is
// none, the refusal tells what the nearest one would have: it has room for most of the operands,
// then lacks the fewest.
inline int choose(OperandSet given) {
  constexpr OperandSet scales = ScaledEpilogue::required;
  const Entry* nearest = nullptr;
  int least = 0;
  for (const Entry& entry : kRegistry) {
    const OperandSet unread = given & ~entry.accepted, lacking = entry.required & ~given;
    if (!unread && !lacking) return static_cast<int>(&entry - kRegistry);
    const int distance = kNumOperands * std::popcount(unread) + std::popcount(lacking);
    if (!nearest || distance < least) {
      nearest = &entry;
      least = distance;
    }
  }
  const OperandSet unread = given & ~nearest->accepted, lacking = nearest->required & ~given;
  const std::string others = names(given & ~unread & ~scales);
  const std::string which = cat(" with ", others, " (", nearest->name, ")");
  if (unread) refuse(names(unread), "not be given together" + which, names(given & ~scales));
  refuse(names(lacking), "be given together" + which, others + " alone");
}

}  // namespace scaled_mm::epilogue
