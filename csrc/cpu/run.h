// What ops of several files run.
#pragma once

#include "problems/int8.h"

namespace scaled_mm::cpu {

// The product of a checked problem (int8.cpp).
void multiply(Checked<Int8Problem>& checked);

}  // namespace scaled_mm::cpu
