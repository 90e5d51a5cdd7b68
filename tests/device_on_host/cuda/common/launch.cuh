// Of the real header, what kernels call.
#pragma once

namespace scaled_mm::cuda {

inline void launch_dependents() {}
inline void wait_for_dependencies() {}

}  // namespace scaled_mm::cuda
