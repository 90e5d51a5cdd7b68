// The products of all experts as one line of work, which is shared out among threads.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cpu/tiling.h"
#include "refuse.h"

namespace scaled_mm::cpu {

// Nothing is read beyond an operand, whatever the numbers are.
inline void check_offsets(const int32_t* offsets, int64_t experts, int64_t rows) {
  int32_t last = 0;
  for (int64_t e = 0; e < experts; ++e) {
    if (offsets[e] < last || offsets[e] > rows) {
      refuse("offsets", cat("rise from 0 to at most the ", rows, " rows"),
             cat(offsets[e], " behind ", last));
    }
    last = offsets[e];
  }
}
// `rows` of `count` elements, or none.
inline void check_rows(const int32_t* rows, int64_t count, int64_t there, const char* of) {
  for (int64_t row = 0; rows && row < count; ++row) {
    if (rows[row] < 0 || rows[row] >= there) {
      refuse("rows", cat("name rows 0..", there - 1, " of ", of), cat(rows[row]));
    }
  }
}

template <class P>
class ExpertsWork {
 public:
  void add(const P& product, const Tiling& tiling) {
    const int64_t cost = tiling.block_rows + kRowsOfAWeight;
    line_.push_back({product, tiling, length_, cost});
    length_ += cost * tiling.tasks();
  }
  // gemm(product, tiling, first task, last task), on torch's threads. `products`: of a row of a
  // task.
  template <class Gemm>
  void run(int64_t products, const Gemm& gemm) const {
    const int64_t grain = (int64_t{1} << 18) / std::max<int64_t>(products, 1);
    for_each_piece(length_, std::max<int64_t>(1, grain),
                   [&](int64_t begin, int64_t end) { run_stretch(begin, end, gemm); });
  }

 private:
  // Reading a task's part of the weight takes about as long as multiplying so many rows by it.
  static constexpr int64_t kRowsOfAWeight = 8;

  // An expert's tasks lie at `begin`, `begin` + cost and so on of the line of all work.
  struct Work {
    P product;
    Tiling tiling;
    int64_t begin, cost;
  };

  // Each thread takes a stretch of the line, and runs the tasks that begin in it.
  template <class Gemm>
  void run_stretch(int64_t begin, int64_t end, const Gemm& gemm) const {
    for (const Work& work : line_) {
      const auto tasks_before = [&](int64_t place) {
        const int64_t tasks = ceil_div(std::max<int64_t>(place - work.begin, 0), work.cost);
        return std::min(tasks, work.tiling.tasks());
      };
      const int64_t first = tasks_before(begin), last = tasks_before(end);
      if (first < last) gemm(work.product, work.tiling, first, last);
    }
  }

  std::vector<Work> line_;
  int64_t length_ = 0;
};

}  // namespace scaled_mm::cpu
