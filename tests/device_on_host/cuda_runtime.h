// Stands for CUDA's header.
#pragma once

#include "block.h"

using cudaStream_t = void*;
