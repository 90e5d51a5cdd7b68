// Kernels that have been compiled and have not run on a GPU yet.
#pragma once

#include "dispatch/setting.h"
#include "refuse.h"

namespace scaled_mm::cuda {

inline const Setting untried("SCALED_MM_UNTRIED");

// Whether they may: with SCALED_MM_UNTRIED=on, which the tests set.
inline bool runs_untried() { return untried.get() && *untried.get() == "on"; }

// They refuse else. A call of this goes when the tests of its op have passed on a GPU.
inline void must_be_tried(const char* argument, const char* op) {
  if (runs_untried()) return;
  refuse(argument,
         cat("be on the CPU, as ", op, "'s CUDA kernels have not run on a GPU yet (",
             untried.variable(), "=on lets them)"),
         "a CUDA tensor");
}

}  // namespace scaled_mm::cuda
