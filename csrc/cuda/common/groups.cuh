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

#include "epilogue/expr.h"

namespace scaled_mm::cuda {

struct Groups {
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

struct GroupTile {
  int expert;  // -1: there is no such tile; the number of experts: its rows are no expert's
  int row;     // the first
  int end;     // of the expert's rows
  bool alone;  // the expert has no other tile
};

// Tile `tile` of at most kRows rows, counted expert by expert. A whole warp asks: each lane counts
// the tiles of neighbouring experts, and the lane that has the tile finds it among its own.
template <int kRows>
__device__ inline GroupTile find_tile(const Groups& groups, int tile, int lane) {
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
  GroupTile found = {};
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

// Which element of an operand belongs to row `row` of D: of one along the columns the expert's; of
// A's scales and zero points those of the row of A.
struct GroupElements {
  const Groups& groups;
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
