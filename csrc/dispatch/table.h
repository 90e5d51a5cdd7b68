// How a line of a tuning table becomes a Kernel. A table is a file of lines
//
//   KERNEL(name, Kind, numbers...)
//
// where Kind is a struct of the arch's folder that holds the numbers and says, as member functions,
// what every kernel of the kind describes, refuses and predicts. A line is those with its own
// numbers.
#pragma once

#include "dispatch/kernel.h"

// The CPU library holds the tables without the kernels.
#ifdef USE_CUDA
#define SCALED_MM_RUN(...) __VA_ARGS__
#else
#define SCALED_MM_RUN(...) nullptr
#endif

namespace scaled_mm {

template <class P, const auto& kTile>
constexpr Kernel<P> table_line(const char* name, void (*run)(const P&, const cuda::Scope&)) {
  using Size = typename P::Size;
  return {
      name, [](const Size& size, const Machine& machine) { return kTile.describe(size, machine); },
      [](const Size& size, const Machine& machine) { return kTile.refuse(size, machine); },
      [](const Size& size, const Machine& machine) { return kTile.predict(size, machine); }, run};
}

}  // namespace scaled_mm
