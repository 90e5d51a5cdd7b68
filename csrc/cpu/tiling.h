// How a product is cut into tasks, and how the tasks are run.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>

#include "integers.h"

namespace scaled_mm::cpu {

// Blocks of rows times blocks of columns, numbered row block by row block. A task owns its part of
// D alone; nothing is summed across tasks.
struct Tiling {
  int64_t block_rows = 0;
  int64_t row_blocks = 0;
  int64_t col_blocks = 0;
  int64_t tasks() const { return row_blocks * col_blocks; }
};

// Blocks of at most `most` rows. Small problems are cut finer, so that every thread has work, but
// not below `least` rows.
inline Tiling cut_rows(int64_t m, int64_t col_blocks, int64_t least, int64_t most) {
  const int64_t wanted = ceil_div(4 * int64_t{torch::stable::get_num_threads()}, col_blocks);
  Tiling t;
  t.col_blocks = col_blocks;
  t.row_blocks = std::max(ceil_div(m, most), std::min(wanted, ceil_div(m, least)));
  t.block_rows = ceil_div(m, t.row_blocks);
  t.row_blocks = ceil_div(m, t.block_rows);
  return t;
}

// run(begin, end) over 0 .. count in pieces of at least `grain`, on torch's threads. What is one
// piece runs here: asking torch takes as long as a small product.
template <class Run>
void for_each_piece(int64_t count, int64_t grain, const Run& run) {
  if (count > grain) return torch::stable::parallel_for(0, count, grain, run);
  if (count > 0) run(0, count);
}

// run(begin, end) over all tasks, on torch's threads. `products` are those of a task: a thread
// takes enough tasks that starting it pays, which costs as much as about 2^18 products.
template <class Run>
void run_tasks(const Tiling& tiling, int64_t products, const Run& run) {
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 18) / std::max<int64_t>(products, 1));
  for_each_piece(tiling.tasks(), grain, run);
}

}  // namespace scaled_mm::cpu
