// The registry as a table and a visitor, and the choice: which epilogue a call's operands and
// activation select. Nothing chooses again after that.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include "epilogue/epilogues.h"
#include "refuse.h"

namespace scaled_mm::epilogue {

// An epilogue's identity.
enum class Id : uint8_t {
#define EPILOGUE(name) name,
#include "epilogue/registry.def"
#undef EPILOGUE
};

struct Entry {
  Id id;
  const char* name;
  Form form;
  bool has_ending;
  bool has_residual;
  constexpr int columns() const { return columns_of(form); }  // of B, for each column of D
};

inline constexpr Entry kRegistry[] = {
#define EPILOGUE(name) {Id::name, #name, name::form, has_ending<name>, has_residual<name>},
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
#define EPILOGUE(name) \
  case Id::name: return use(Type<name>{});
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

// The epilogue that reads the operands given. What check_scaled_mm asks of them besides: a
// quantised D has out_scale, and out_azp where it is int8.
inline Id choose(OperandSet given, const Activation& activation) {
  const auto has = [&](Operand operand) { return (given & bit(operand)) != 0; };
  const auto apart = [&](Operand one, OperandSet others) {
    if (!has(one) || !(given & others)) return;
    const char* const name = kOperandNames[static_cast<int>(one)];
    refuse(name, cat("not be given together with ", names(given & others)), "both");
  };
  apart(Operand::azp_with_adj, bit(Operand::azp) | bit(Operand::azp_adj));
  apart(Operand::residual, bit(Operand::out_scale));
  if (has(Operand::azp) != has(Operand::azp_adj)) {
    const bool lacks_azp = has(Operand::azp_adj);
    const char* const there = lacks_azp ? "azp_adj" : "azp";
    refuse(lacks_azp ? "azp" : "azp_adj", cat("be given together with ", there),
           cat(there, " alone"));
  }
  if (activation.form != Form::none && has(Operand::residual)) {
    refuse("residual", cat("not be given together with activation='", activation.name, "'"),
           "both");
  }
  if (activation.form == Form::gated) return Id::ScaledEpilogueGated;
  if (activation.form == Form::activated) return Id::ScaledEpilogueActivated;
  if (has(Operand::out_scale)) return Id::ScaledEpilogueActivated;  // by no function
  if (has(Operand::residual)) return Id::ScaledEpilogueResidual;
  const bool azp = has(Operand::azp) || has(Operand::azp_with_adj);
  return azp ? Id::ScaledEpilogueAzp : Id::ScaledEpilogue;
}

}  // namespace scaled_mm::epilogue
