// The whole epilogue as a visitor tree: the expression (lower.h), its activation, and its rounding
// to D's dtype (end.h).
//
// Include after CUTLASS's collective builders.
#pragma once

#include "cuda/cutlass3/lower.h"

namespace scaled_mm::cuda::cutlass3 {

// E with its activation or gate, if it has one.
template <class E, class Tile, class C>
struct ActivatedTree {
  using type = typename Tree<E, Tile, C>::type;
  static typename type::Arguments arguments(const EpilogueOperand* operands, const Destination&) {
    return Tree<E, Tile, C>::arguments(operands);
  }
};
template <class E, class Tile, class C>
  requires(E::form != Form::none)
struct ActivatedTree<E, Tile, C> {
  template <template <class> class Function>
  using Node = Sm90Compute<Function, float, float, cutlass::FloatRoundStyle::round_to_nearest>;
  using Root = std::conditional_t<E::form == Form::gated, Node<Gate>, Node<Activate>>;
  using Inner = Tree<epilogue::Body<E>, Tile, C>;
  using type = Sm90EVT<Root, typename Inner::type>;
  static typename type::Arguments arguments(const EpilogueOperand* operands,
                                            const Destination& to) {
    return {Inner::arguments(operands), {to.function}};
  }
};

// Where D has 16 or 8 bits, their rounding comes next.
template <class E, class Tile, class Out, class C>
struct RoundedTree : ActivatedTree<E, Tile, C> {};
template <class E, class Tile, class Out, class C>
  requires(sizeof(Out) == 2)
struct RoundedTree<E, Tile, Out, C> {
  using Inner = ActivatedTree<E, Tile, C>;
  using Root = Sm90Compute<Narrow, Out, float, cutlass::FloatRoundStyle::round_to_nearest>;
  using type = Sm90EVT<Root, typename Inner::type>;
  static typename type::Arguments arguments(const EpilogueOperand* operands,
                                            const Destination& to) {
    return {Inner::arguments(operands, to), {to.out.dtype}};
  }
};
template <class E, class Tile, class Out, class C>
  requires(sizeof(Out) == 1)
struct RoundedTree<E, Tile, Out, C> {
  using Inner = ActivatedTree<E, Tile, C>;
  using Scale = Tree<epilogue::OutScale, Tile, C>;
  using Azp = Tree<epilogue::OutAzp, Tile, C>;
  using Root = Sm90Compute<Quantise, Out, float, cutlass::FloatRoundStyle::round_to_nearest>;
  using type = Sm90EVT<Root, typename Inner::type, typename Scale::type, typename Azp::type>;
  static typename type::Arguments arguments(const EpilogueOperand* operands,
                                            const Destination& to) {
    return {Inner::arguments(operands, to),
            Scale::arguments(operands),
            Azp::arguments(operands),
            {to.out.dtype, to.symmetric}};
  }
};

// What CUTLASS stores has as many columns as there are sums. Of a gate's D, which has half as many,
// an element is stored as two of half as many bits.
template <class Out>
struct HalfOf;
template <>
struct HalfOf<float> {
  using type = uint16_t;
};
template <>
struct HalfOf<uint16_t> {
  using type = uint8_t;
};
template <>
struct HalfOf<uint8_t> {
  using type = cutlass::float_e2m1_t;  // of 4 bits the one that TMA knows
};
template <class E, class Out>
struct StoredAs {
  using type = Out;
};
template <class E, class Out>
  requires(E::form == Form::gated)
struct StoredAs<E, Out> : HalfOf<Out> {};

// The whole epilogue.
template <class E, class Tile, class Out, class C>
struct WholeTree : RoundedTree<E, Tile, Out, C> {};
template <class E, class Tile, class Out, class C>
  requires(E::form == Form::gated)
struct WholeTree<E, Tile, Out, C> {
  using Inner = RoundedTree<E, Tile, Out, C>;
  using Half = typename HalfOf<Out>::type;
  using Root = Sm90Compute<Halve<Half>::template Function, Half, Out,
                           cutlass::FloatRoundStyle::round_to_nearest>;
  using type = Sm90EVT<Root, typename Inner::type>;
  static typename type::Arguments arguments(const EpilogueOperand* operands,
                                            const Destination& to) {
    return {Inner::arguments(operands, to), {}};
  }
};

// E: the epilogue. Tile: the block's tile of sums. Out, C: the storage types of D and of a
// residual. The tree, but that it waits for the kernel before, which may have written operands.
template <class E, class Tile, class Out, class C = uint16_t>
struct Visitor : WholeTree<E, Tile, Out, C>::type {
  using Root = typename WholeTree<E, Tile, Out, C>::type;
  using Root::Root;

  static typename Root::Arguments arguments(const EpilogueOperand* operands,
                                            const Destination& to) {
    return WholeTree<E, Tile, Out, C>::arguments(operands, to);
  }

  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const ConsumerStoreArgs<Args...>& args) {
    cutlass::arch::wait_on_dependent_grids();
    return Root::template get_consumer_store_callbacks<kReferenceSrc>(args);
  }
};

}  // namespace scaled_mm::cuda::cutlass3
