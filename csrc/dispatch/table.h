// How a line of a tuning table becomes a Kernel. A table is a file of lines
//
//   KERNEL(name, Kind, numbers...)
//
// where Kind is a struct of the arch's folder that holds the numbers and says, as member functions,
// what every kernel of the kind describes, refuses and predicts. A line is those with its own
// numbers. A kind with members `fixed_us` and `rate` that predicts by `prediction_of` (predict.h)
// of them can be tuned: a prediction for a GPU with numbers of its own is made with those instead.
#pragma once

#include "dispatch/kernel.h"

// The CPU library holds the tables without the kernels.
#ifdef USE_CUDA
#define SCALED_MM_RUN(...) __VA_ARGS__
#else
#define SCALED_MM_RUN(...) nullptr
#endif

namespace scaled_mm {

template <class Tile>
constexpr std::optional<Fit> fit_of(const Tile& tile) {
  if constexpr (requires { tile.fixed_us, tile.rate; }) return Fit{tile.fixed_us, tile.rate};
  return std::nullopt;
}

template <class Tile>
Tile fitted(Tile tile, const Fit* fit) {
  if constexpr (requires { tile.fixed_us, tile.rate; }) {
    if (fit) {
      tile.fixed_us = static_cast<decltype(tile.fixed_us)>(fit->fixed_us);
      tile.rate = static_cast<decltype(tile.rate)>(fit->rate);
    }
  }
  return tile;
}

template <class P, const auto& kTile>
constexpr Kernel<P> table_line(const char* name, void (*run)(const P&, const cuda::Scope&)) {
  using Size = typename P::Size;
  return {name,
          [](const Size& size, const Machine& machine) { return kTile.describe(size, machine); },
          [](const Size& size, const Machine& machine) { return kTile.refuse(size, machine); },
          [](const Size& size, const Machine& machine, const Fit* fit) {
            return fitted(kTile, fit).predict(size, machine);
          },
          fit_of(kTile),
          run};
}

}  // namespace scaled_mm
