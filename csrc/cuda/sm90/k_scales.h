// Hopper's kernels for products with scales along K. No CUDA here: the CPU library reads the same.
#pragma once

#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda::sm90::k_scales {

// A product is cut into tiles of D, and a tile along K into pieces of whole slices; into single
// chunks where all of K is one group, whose parts are integers.
struct Pieces {
  int chunks;               // of kUnitRows rows, of a tile
  int depth;                // chunks of a piece
  lowbit::PackedPlan plan;  // its chunks are pieces
};

// Streams a weight of 4 bits past tokens of int8 (w4a8.cuh).
struct Units {
  int tokens;       // of a tile
  int warpgroups;   // that multiply: kUnitChannels channels each, or a share of K
  bool along_k;     // the latter
  double fixed_us;  // of a call, whatever its size
  double chunk_us;  // of kUnitRows rows of a tile, with a block on every multiprocessor; of those
                    // of each warpgroup, where they share out K
  double group_us;  // of a chunk whose groups' sums go on to floats, on top
  double rate = 1;  // how much faster its chunks are, where that was fitted

  constexpr int channels() const { return along_k ? kUnitChannels : kUnitChannels * warpgroups; }
  // Whether warps have registers for sums of groups beside those of the tile.
  constexpr bool takes_groups() const { return along_k || tokens * warpgroups <= 256; }
  // Of K, of a cluster that has a tile; 1 where there is none.
  constexpr int ranges(const lowbit::PackedPlan& plan) const {
    return plan.slices * (along_k ? warpgroups : 1);
  }
  // How many parts' sums a range keeps until the cluster adds them up, and whether there is room.
  int parts(const KScalesProblem::Size& size, const Pieces& pieces) const;
  bool fits(const KScalesProblem::Size& size, const Pieces& pieces) const;
  std::string describe(const KScalesProblem::Size& size, const Machine& machine) const;
  std::string refuse(const KScalesProblem::Size& size, const Machine& machine) const;
  Prediction predict(const KScalesProblem::Size& size, const Machine& machine) const;
};

// Int8 in blocks (blocks.cuh): tiles of 128 tokens x 128 channels.
struct Blocks {
  // As above; a chunk is 128 rows of K.
  double fixed_us;
  double chunk_us;
  double rate = 1;

  std::string describe(const KScalesProblem::Size& size, const Machine& machine) const;
  std::string refuse(const KScalesProblem::Size& size, const Machine& machine) const;
  Prediction predict(const KScalesProblem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm90/k_scales.table"
#undef KERNEL

template <const Units& kTile>
void run(const KScalesProblem& p, const Scope& scope);
template <const Blocks& kTile>
void run(const KScalesProblem& p, const Scope& scope);

Pieces plan_pieces(const Units& tile, const KScalesProblem::Size& size, int sms);

}  // namespace scaled_mm::cuda::sm90::k_scales
