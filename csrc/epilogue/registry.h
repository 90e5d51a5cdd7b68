// The registry as a table and a visitor, and the choice: which epilogue a call's operands and
// activation select. Nothing chooses again after that.
#pragma once

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

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
  constexpr OperandSet both = Azp::reads | AzpAdj::reads;
  const auto has = [&](OperandSet operands) { return (given & operands) != 0; };
  const auto check = [&](bool right, OperandSet argument, const char* rule, const char* end = "") {
    constexpr OperandSet scales = ScaleA::reads | ScaleB::reads;
    if (!right) refuse(names(argument), cat("be given ", rule, end), names(given & ~scales));
  };
  check(!has(AzpWithAdj::reads) || !has(both), AzpWithAdj::reads, "without azp and azp_adj");
  check(has(Azp::reads) || !has(AzpAdj::reads), Azp::reads, "together with azp_adj");
  check(has(AzpAdj::reads) || !has(Azp::reads), AzpAdj::reads, "together with azp");
  check(!has(Residual::reads) || !has(OutScale::reads), Residual::reads, "without out_scale");
  if (has(Residual::reads) && activation.form != Form::none) {
    check(false, Residual::reads, "without activation='", cat(activation.name, "'").c_str());
  }
  if (activation.form == Form::gated) return Id::ScaledEpilogueGated;
  if (activation.form == Form::activated) return Id::ScaledEpilogueActivated;
  if (has(OutScale::reads)) return Id::ScaledEpilogueActivated;  // by no function
  if (has(Residual::reads)) return Id::ScaledEpilogueResidual;
  return has(both | AzpWithAdj::reads) ? Id::ScaledEpilogueAzp : Id::ScaledEpilogue;
}

}  // namespace scaled_mm::epilogue
