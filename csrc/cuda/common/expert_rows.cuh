// The rows of a grouped product: each expert's lie together, and a tile of D has rows of one
// expert.
//
//   offsets   3           3      8             experts 0, 1, 2: 3 rows, none, 5
//   rows      0 1 2  |           3 4 5 6 7
//   tiles     0 0    1           2 2   3 3  4  of 2 rows at most
//
// Rows behind the last offset are no expert's: their tiles come last, and D is 0 there.
//
// Blocks find their tiles themselves: offsets are on the device, and nothing waits for them there.
#pragma once

#include <cstdint>

#include "problems/mixed_groups.h"

namespace scaled_mm::cuda {

struct ExpertRows {
  const int32_t* offsets;  // [experts]: where each expert's rows end
  int experts;
  int count;            // of all rows
  const int32_t* rows;  // [count]: the row of A that each one is; null: row i is row i of A
  int a_rows;           // of A

  // Offsets and rows that name nothing stand for the nearest: to refuse them would take a wait for
  // the device.
  __device__ int end(int expert) const {
    if (expert < 0) return 0;
    return expert < experts ? min(max(offsets[expert], 0), count) : count;
  }
  __device__ int source(int row) const {
    return rows == nullptr ? row : min(max(rows[row], 0), a_rows - 1);
  }
};

inline ExpertRows expert_rows(const GroupedInt8Problem& p) {
  return {p.offsets, static_cast<int>(p.size.experts), static_cast<int>(p.size.m), p.rows,
          static_cast<int>(p.a_rows)};
}
inline ExpertRows expert_rows(const GroupedLowbitProblem& p) {
  return {p.offsets, static_cast<int>(p.experts), static_cast<int>(p.product.m), p.rows,
          static_cast<int>(p.x_rows)};
}

struct ExpertTile {
  int expert;  // -1: there is no such tile; the number of experts: its rows are no expert's
  int row;     // the first
  int end;     // of the expert's rows
  bool alone;  // the expert has no other tile
};

// Tile `tile` of at most kRows rows, counted expert by expert. A whole warp asks: each lane counts
// the tiles of neighbouring experts, and the lane that has the tile finds it among its own.
template <int kRows>
__device__ inline ExpertTile find_tile(const ExpertRows& groups, int tile, int lane) {
  const int all = groups.experts + 1, share = (all + 31) / 32;
  const int first = min(lane * share, all), last = min(first + share, all);
  const auto tiles_of = [](int begin, int end) {
    return (max(end - begin, 0) + kRows - 1) / kRows;
  };
  int mine = 0;
#pragma unroll 4
  for (int expert = first; expert < last; ++expert) {
    mine += tiles_of(groups.end(expert - 1), groups.end(expert));
  }
  int through = mine;  // tiles up to this lane's last
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const int before = __shfl_up_sync(~0u, through, distance);
    if (lane >= distance) through += before;
  }
  const unsigned reached = __ballot_sync(~0u, through > tile);
  if (reached == 0) return {-1, 0, 0, true};
  const int owner = __ffs(static_cast<int>(reached)) - 1;
  ExpertTile found = {};
  if (lane == owner) {
    int left = tile - (through - mine);
    for (int expert = first; expert < last; ++expert) {
      const int begin = groups.end(expert - 1), end = groups.end(expert);
      const int tiles = tiles_of(begin, end);
      if (left < tiles) {
        found = {expert, begin + left * kRows, end, tiles == 1};
        break;
      }
      left -= tiles;
    }
  }
  found.expert = __shfl_sync(~0u, found.expert, owner);
  found.row = __shfl_sync(~0u, found.row, owner);
  found.end = __shfl_sync(~0u, found.end, owner);
  found.alone = __shfl_sync(~0u, static_cast<int>(found.alone), owner) != 0;
  return found;
}

// What find_tile finds, for a block that has several tiles: it reads the offsets once, into
// ints(experts) of shared memory.
template <int kRows>
class TileTable {
 public:
  static constexpr int ints(int experts) { return 2 * (experts + 2); }

  __device__ TileTable(int* memory, int experts)
      : experts_(experts), ends_(memory), tiles_(memory + experts + 2) {}

  // All threads of the block call it.
  __device__ void fill(const ExpertRows& groups, int thread, int threads) {
    for (int i = thread; i < experts_ + 2; i += threads) ends_[i] = groups.end(i - 1);
    __syncthreads();
    if (thread < 32) count_tiles(thread);
    __syncthreads();
  }
  // Of all rows; and of those that are an expert's, which come first.
  __device__ int count() const { return tiles_[experts_ + 1]; }
  __device__ int of_experts() const { return tiles_[experts_]; }
  // tile < count().
  __device__ ExpertTile find(int tile) const {
    int column;
    return find(tile, 1, column);
  }
  // Of a grid that has `columns` tiles along N: an expert's lie together, down the rows first.
  // Tells the column too.
  __device__ ExpertTile find(int tile, int columns, int& column) const {
    int expert = 0, above = experts_ + 1;  // whose first tiles are not behind this one, and behind
    while (above - expert > 1) {
      const int middle = (expert + above) / 2;
      (tiles_[middle] * columns <= tile ? expert : above) = middle;
    }
    const int first = tiles_[expert], across = tiles_[expert + 1] - first;
    const int within = tile - first * columns, row = ends_[expert] + within % across * kRows;
    column = within / across;
    return {expert, row, ends_[expert + 1], across == 1};
  }

 private:
  int experts_;
  int* ends_;   // [experts + 2]: where the rows of the expert before end; at last, all rows
  int* tiles_;  // [experts + 2]: tiles before an expert's; at last, all

  // A lane has neighbouring experts, as in find_tile.
  __device__ void count_tiles(int lane) {
    const int all = experts_ + 1, share = (all + 31) / 32;
    const int first = min(lane * share, all), last = min(first + share, all);
    const auto tiles_of = [&](int expert) {
      return (max(ends_[expert + 1] - ends_[expert], 0) + kRows - 1) / kRows;
    };
    int mine = 0;
    for (int expert = first; expert < last; ++expert) mine += tiles_of(expert);
    int through = mine;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
      const int before = __shfl_up_sync(~0u, through, distance);
      if (lane >= distance) through += before;
    }
    int next = through - mine;
    for (int expert = first; expert < last; ++expert) {
      tiles_[expert] = next;
      next += tiles_of(expert);
    }
    if (lane == 31) tiles_[all] = through;
  }
};

// Which element of an operand belongs to row `row` of D: of one along the columns the expert's; of
// A's scales and zero points those of the row of A.
struct ExpertElements {
  const ExpertRows& groups;
  int expert;
  template <class L>
  __device__ int64_t operator()(L, int64_t row) const {
    if constexpr (L::axis == epilogue::Axis::Row) {
      return expert;
    } else if constexpr (L::id == Operand::scale_a || L::id == Operand::azp) {
      return groups.source(static_cast<int>(row));
    } else {
      return row;
    }
  }
};

}  // namespace scaled_mm::cuda
