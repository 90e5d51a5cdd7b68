// What happens to a D whose rows do not begin at multiples of 16 bytes; without CUDA, for the
// models.
#pragma once

#include <string>

#include "problems/int8.h"
#include "refuse.h"

namespace scaled_mm::cuda {

// That it is written padded and copied (common/alignment.h), in explain's words; empty: it is not.
inline std::string padded_output_text(const Int8Problem::Size& size) {
  const int64_t bytes = size.out_columns() * size.out_bytes();
  if (bytes % 16 == 0) return "";
  return cat("; rows of D of ", bytes,
             " bytes are not 16-byte aligned: D is written padded and copied");
}

}  // namespace scaled_mm::cuda
