// What is done to a weight besides multiplying by it.
#pragma once

#include "cpu/buffer.h"
#include "problem.h"

namespace scaled_mm::cpu {

// Lays b out as packed.h draws it; `packed` has packed_weight_bytes(k, n) bytes.
void pack(const Weight& b, uint8_t* packed);

// Kernels read a packed weight, or a plain one whose columns lie contiguously in memory (the
// transpose of a [N, K] weight). Any other is packed on the fly: b then points to the result, which
// lives as long as the buffer.
Buffer<uint8_t> pack_unless_streamable(Weight& b);

}  // namespace scaled_mm::cpu
