// What is done to a weight besides multiplying by it.
#pragma once

#include "problems/int8.h"

namespace scaled_mm::cpu {

// Lays panel `panel` of a plain weight out as packed.h draws it, in panel_bytes(k) bytes.
void pack_panel(const Weight& b, int64_t panel, uint8_t* out);

}  // namespace scaled_mm::cpu
