// The proof that an epilogue and its instance (registry.def) are the same function, made by the
// compiler. An instance reads operands that its epilogue does not have. In the instance's type each
// of these is replaced by the neutral value that it will read, the identities below take the
// neutral values away, and what is left must be the epilogue's own type.
//
//   fma(x, y, -0) = x * y     1 * v = v     x - 0 = x
//
// The first holds for every float bit for bit, NaN and -0 included; the others are of integers. One
// operand stands in for another: azp_with_adj takes the place of azp_adj where it is
// given instead, with azp = 1.
//
// Two endings say themselves when they do nothing. Activated is the identity where the call asks
// for no function, which is so for every epilogue of Form::none. Quantised is, where D's dtype has
// not 8 bits, which the check sees to for every call without out_scale.
#pragma once

#include <type_traits>

#include "epilogue/registry.h"

namespace scaled_mm::epilogue {

// The neutral value of an operand, in the place of its leaf.
template <Operand Id>
struct Nothing {};

// The operand whose elements an instance of E reads as `id`.
template <class E>
constexpr Operand source_of(Operand id) {
  const bool stands_in = id == Operand::azp_adj && !(E::accepted & bit(Operand::azp_adj)) &&
                         (E::accepted & bit(Operand::azp_with_adj));
  return stands_in ? Operand::azp_with_adj : id;
}

namespace detail {

// Instance's expression X as E's operands leave it. Optional<L> counts as L.
template <class E, class X>
struct Bind {
  using type = X;
};
template <class E, Operand Id, class T, Axis A, bool ScalarOk>
struct Bind<E, Leaf<Id, T, A, ScalarOk>> {
  static constexpr Operand source = source_of<E>(Id);
  using type = std::conditional_t<(E::accepted & bit(source)) != 0, Leaf<source, T, A, ScalarOk>,
                                  Nothing<Id>>;
};
template <class E, class L>
struct Bind<E, Optional<L>> : Bind<E, L> {};
template <class E, class Op, class... Args>
struct Bind<E, Apply<Op, Args...>> {
  using type = Apply<Op, typename Bind<E, Args>::type...>;
};
template <class E, class X>
struct Bind<E, Activated<X>> {
  using bound = typename Bind<E, X>::type;
  using type = std::conditional_t<E::form == Form::none, bound, Activated<bound>>;
};
template <class E, class X>
struct Bind<E, Gated<X>> {
  using type = Gated<typename Bind<E, X>::type>;
};
template <class E, class X, class Scale>
struct Bind<E, Quantised<X, Scale>> {
  using bound = typename Bind<E, X>::type;
  using type = std::conditional_t<is_quantised<E>, Quantised<bound>, bound>;
};

// The identities, from the leaves up.
template <class X>
struct Reduce {
  using type = X;
};
template <class X>
using Reduced = typename Reduce<X>::type;

template <class Op, class... Args>
struct Rule {
  using type = Apply<Op, Args...>;
};
template <class X, class Y>
struct Rule<Fma, X, Y, Nothing<Operand::bias>> {
  using type = Apply<Mul, X, Y>;
};
template <class V>
struct Rule<Mul, Nothing<Operand::azp>, V> {
  using type = V;
};
template <class X>
struct Rule<Sub, X, Nothing<Operand::azp_adj>> {
  using type = X;
};

template <class Op, class... Args>
struct Reduce<Apply<Op, Args...>> : Rule<Op, Reduced<Args>...> {};
template <class X>
struct Reduce<Activated<X>> {
  using type = Activated<Reduced<X>>;
};
template <class X>
struct Reduce<Gated<X>> {
  using type = Gated<Reduced<X>>;
};
template <class X>
struct Reduce<Quantised<X>> {
  using type = Quantised<Reduced<X>>;
};

}  // namespace detail

template <class E, class Instance>
inline constexpr bool is_same_function =
    std::is_same_v<detail::Reduced<typename detail::Bind<E, Instance>::type>,
                   detail::Reduced<typename detail::Bind<E, E>::type>>;

#define EPILOGUE(name, instance)                  \
  static_assert(is_same_function<name, instance>, \
                #name " must be its instance " #instance " with neutral operands");
#include "epilogue/registry.def"
#undef EPILOGUE

static_assert(!is_same_function<ScaledEpilogueBias, ScaledEpilogue>, "a bias is not nothing");
static_assert(!is_same_function<ScaledEpilogueAzp, ScaledEpilogueBias>, "nor is a zero point");
static_assert(!is_same_function<ScaledEpilogueActivated, ScaledEpilogueBias>, "nor a function");
static_assert(!is_same_function<ScaledEpilogueQuantised, ScaledEpilogueBias>, "nor a quantiser");
static_assert(!is_same_function<ScaledEpilogueActivated, ScaledEpilogueGated>, "nor a gate");

// The operands as the epilogue's instance reads them.
inline void bind_operands(Id id, EpilogueOperand (&operands)[kNumOperands]) {
  with_epilogue(id, [&](auto e) {
    EpilogueOperand bound[kNumOperands];
    for (int i = 0; i < kNumOperands; ++i) {
      bound[i] = operands[static_cast<int>(
          source_of<typename decltype(e)::type>(static_cast<Operand>(i)))];
    }
    for (int i = 0; i < kNumOperands; ++i) operands[i] = bound[i];
  });
}

}  // namespace scaled_mm::epilogue
