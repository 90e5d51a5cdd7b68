// The registry as a table and a visitor, and the choice: which epilogue a call's operands and
// activation select. Nothing chooses again after that.
#pragma once

#include <algorithm>
#include <bit>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "epilogue/epilogues.h"
#include "refuse.h"

namespace scaled_mm::epilogue {

// An epilogue's identity.
enum class Id : uint8_t {
#define EPILOGUE(name, instance) name,
#include "epilogue/registry.def"
#undef EPILOGUE
};

struct Entry {
  Id id;
  const char* name;
  OperandSet required;
  OperandSet accepted;
  Form form;
  bool has_ending;
  constexpr int columns() const { return columns_of(form); }  // of B, for each column of D
};

inline constexpr Entry kRegistry[] = {
#define EPILOGUE(name, instance) \
  {Id::name, #name, name::required, name::accepted, name::form, has_ending<name>},
#include "epilogue/registry.def"
#undef EPILOGUE
};
constexpr const Entry& entry(Id id) { return kRegistry[static_cast<int>(id)]; }

template <class E>
struct Type {
  using type = E;
};

// use(Type<E>) with the epilogue's own type.
template <class Use>
constexpr decltype(auto) with_epilogue(Id id, Use&& use) {
  switch (id) {
#define EPILOGUE(name, instance) \
  case Id::name: return use(Type<name>{});
#include "epilogue/registry.def"
#undef EPILOGUE
  }
  __builtin_unreachable();
}

// use(Type<E>) with the type that CUDA kernels are compiled for.
template <class Use>
constexpr decltype(auto) with_instance(Id id, Use&& use) {
  switch (id) {
#define EPILOGUE(name, instance) \
  case Id::name: return use(Type<instance>{});
#include "epilogue/registry.def"
#undef EPILOGUE
  }
  __builtin_unreachable();
}

// The activation of that name; null where there is none.
inline const Activation* find_activation(std::string_view name) {
  const auto* const end = std::end(kActivations);
  const auto* const found = std::find_if(std::begin(kActivations), end,
                                         [&](const Activation& each) { return each.name == name; });
  return found == end ? nullptr : found;
}

// The activation that a call wants, of one of the forms up to `most`.
inline Activation check_activation(const std::optional<std::string>& wanted, Form most) {
  if (!wanted) return kActivations[0];
  std::string names;
  for (const Activation& each : kActivations) {
    if (each.form == Form::none || each.form > most) continue;
    if (*wanted == each.name) return each;
    names += (names.empty() ? "" : ", ") + std::string(each.name);
  }
  refuse("activation", "be None or one of " + names, *wanted);
}

inline std::string names(OperandSet operands) {
  std::string text;
  for (int i = 0; i < kNumOperands; ++i) {
    if (operands >> i & 1) text += (text.empty() ? "" : ", ") + std::string(kOperandNames[i]);
  }
  return text;
}

// The epilogue of the activation's form that needs nothing but the operands given and reads them
// all. When there is none, the refusal tells what the nearest one would have: it has room for most
// of the operands, then lacks the fewest.
inline Id choose(OperandSet given, const Activation& activation) {
  constexpr OperandSet scales = ScaledEpilogue::required;
  const Entry* nearest = nullptr;
  int least = 0;
  for (const Entry& entry : kRegistry) {
    if (entry.form != activation.form || entry.accepted == 0) continue;  // 0: int8_mm's
    const OperandSet unread = given & ~entry.accepted, lacking = entry.required & ~given;
    if (!unread && !lacking) return entry.id;
    const int distance = kNumOperands * std::popcount(unread) + std::popcount(lacking);
    if (!nearest || distance < least) {
      nearest = &entry;
      least = distance;
    }
  }
  const OperandSet unread = given & ~nearest->accepted, lacking = nearest->required & ~given;
  std::string others = names(given & ~unread & ~scales);
  if (activation.form != Form::none) {
    others += (others.empty() ? "" : ", ") + cat("activation='", activation.name, "'");
  }
  const std::string which = cat(" with ", others, " (", nearest->name, ")");
  if (unread) refuse(names(unread), "not be given together" + which, names(given & ~scales));
  refuse(names(lacking), "be given together" + which, others + " alone");
}

}  // namespace scaled_mm::epilogue
