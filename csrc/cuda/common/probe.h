#pragma once

namespace scaled_mm::cuda {

// The virtual architecture, such as 90, that the library's common kernels were compiled for, as far
// as the device runs them: as machine code, or as PTX that its driver compiles. 0: it does not. A
// folder's `serves` says what could run there, this says what was built.
int common_code(int device);

}  // namespace scaled_mm::cuda
