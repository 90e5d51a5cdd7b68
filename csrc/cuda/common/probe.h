#pragma once

namespace scaled_mm::cuda {

// Whether the library's common kernels were compiled for a device: as machine code, or as PTX that
// its driver compiles. A folder's `serves` says what could run there, this says what was built.
bool runs_common_code(int device);

}  // namespace scaled_mm::cuda
