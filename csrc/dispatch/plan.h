// How an int8 kernel cuts a product. A compiled epilogue's library is told it (cuda/compiled.h):
// plain numbers alone.
#pragma once

#include <cstdint>

namespace scaled_mm {

struct StreamPlan {
  int token_tiles = 1;  // tiles of D along M
  int split = 1;        // slices of K, one block each: a cluster
  int64_t blocks = 0;
  bool paired = false;  // two blocks live on a multiprocessor at a time
  int early = 0;  // chunks of a slice's weight that are sent for before the kernel before has ended
};

// Of a line of int8.table.
struct LinePlan {
  bool streams = false;
  StreamPlan stream = {};  // of a line that streams
  int swizzle = 1;         // of one that is persistent: the width of its bands
};

}  // namespace scaled_mm
