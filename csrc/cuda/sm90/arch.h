// Hopper: the kinds of its kernels and their tables. No CUDA here: the CPU library reads the same.
#pragma once

#include "dispatch/kernel.h"

namespace scaled_mm::cuda::sm90 {

constexpr bool serves(int capability) { return capability == 90; }

// The widest swizzle, up to `most`, for which CUTLASS's padding of a grid of clusters costs at most
// 2 %.
int choose_swizzle(int most, int64_t across, int64_t along);

// --- int8 ----------------------------------------------------------------------------------------

namespace int8 {

// Streams the weight past a few tokens (int8_stream.cuh).
struct Stream {
  int tile_m;  // of D: tokens
  int tile_n;  // of D: channels
  // measured:
  float fixed_us;  // of a call, whatever its size
  float rate;  // how fast it is where tensor cores or L2 bind, relative to the model's constants

  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};

enum class Schedule { pingpong, cooperative };
using enum Schedule;

// A persistent CUTLASS kernel: its blocks go from tile to tile.
struct Persistent {
  int tile_m;
  int tile_n;
  int tile_k;     // bytes of K in a stage
  int cluster_m;  // blocks that share loads
  int cluster_n;
  Schedule schedule;
  // measured, as above:
  float fixed_us;
  float rate;

  constexpr int sums() const {  // of a thread
    return tile_m * tile_n / (schedule == pingpong ? 128 : 256);
  }
  // Of the bands of clusters in which the kernel visits its tiles.
  int band_width(const Int8Problem::Size& size) const;
  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm90/int8.table"
#undef KERNEL

// One file is compiled for each line; it instantiates the line's.
template <const Stream& kTile>
void run(const Int8Problem& p, const Scope& scope);
template <const Persistent& kTile>
void run(const Int8Problem& p, const Scope& scope);

// Whether a persistent kernel has such an epilogue: a residual or a function wants registers beside
// the sums.
constexpr bool ends(const Persistent& tile, bool has_more) {
  return !has_more || tile.sums() <= 128;
}

inline constexpr int kChunk = 128;  // bytes of K in a stage of a streaming kernel
inline constexpr int kMaxSplit = 3;
inline constexpr int kMaxStages = 32;  // of a ring
// Of a settled weight, sent for before the kernel may read what others write. A kernel alone gains
// by more; behind a short quantiser, loads of tokens then queue up behind those of the weight.
inline constexpr int kEarlyChunks = 6;

// In slices of K, kMaxSplit at most.
StreamPlan plan_stream(const Stream& tile, const Int8Problem::Size& size, const Machine& machine,
                       bool settled = false);  // Weight::settled

LinePlan plan_line(const char* name, const Int8Problem::Size& size, const Machine& machine,
                   bool settled);

}  // namespace int8

// --- lowbit --------------------------------------------------------------------------------------

namespace lowbit {

// Straight from the words (lowbit_stream.cuh).
struct Stream {
  int tokens;  // of a tile
  // measured (docs/lowbit.md):
  double fixed_us;         // of a call, whatever its size
  double chunk_us;         // of kDepth rows of a tile, with a block on every multiprocessor
  double pair_factor = 1;  // by how much two blocks on each make that longer
  double pair_us = 0;      // and the call
  double rate = 1;         // how much faster its chunks and sums are, where that was fitted

  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

// From a weight packed in units (lowbit_packed.cuh).
struct Packed {
  int bits;        // of a value
  int tokens;      // of a tile
  int panels;      // of kUnitChannels channels, of each warpgroup
  int warpgroups;  // that multiply
  int live;        // blocks that a multiprocessor holds
  int rows;        // of a stage: kUnitRows or half of them
  // measured, as above; a chunk has kUnitRows rows:
  double fixed_us;
  double chunk_us;
  double pair_factor = 1;
  double rate = 1;

  constexpr int channels() const { return kUnitChannels * panels * warpgroups; }
  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

// W dequantised to memory, then a CUTLASS product with it.
struct Dense {
  int tile_m;
  int tile_n;
  double fixed_us;
  double chunk_us;
  double rate = 1;  // as above

  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm90/lowbit.table"
#undef KERNEL

template <const Stream& kTile>
void run(const LowbitProblem& p, const Scope& scope);
template <const Packed& kTile>
void run(const LowbitProblem& p, const Scope& scope);
template <const Dense& kTile>
void run(const LowbitProblem& p, const Scope& scope);

inline constexpr int kDepth = 64;  // rows of W in a stage of the streaming kernels
inline constexpr int kWarps = 8;   // that multiply

// Blocks of a streaming kernel that a multiprocessor holds: as many as the registers for their sums
// allow.
constexpr int live_blocks(int tokens) { return tokens <= 32 ? 2 : 1; }

// A block has all of a tile's tokens in each of its warps, and 64, 32 or 16 channels: a lane so
// many pairs. Registers for sums bound tokens times channels; and the fewer channels, the fewer
// slices of K it takes to give every multiprocessor something to do.
constexpr int lane_pairs(int tokens) { return tokens <= 8 ? 4 : tokens <= 128 ? 2 : 1; }
constexpr int tile_channels(int tokens) { return 16 * kWarps * lane_pairs(tokens); }

// How a streaming kernel shares a product out over its blocks, all of which live at the same time:
// rounds of whole tiles first; the tiles left are cut along K into slices, whose sums go to memory
// and are added up afterwards. Blocks take work tiles in turn, every tile's first slice, then every
// tile's second, so that neighbours in a row of words are read at the same time.
struct Plan {
  int blocks;
  int tiles;   // of D
  int whole;   // tiles that are not cut
  int slices;  // of the others
  int chunks;  // of a tile: kDepth rows of K
  constexpr int cut() const { return tiles - whole; }
  constexpr int64_t work_tiles() const { return whole + int64_t{cut()} * slices; }
  constexpr int64_t partials() const { return int64_t{cut()} * slices; }  // tiles of sums in memory
};
Plan plan_stream(const Stream& tile, const LowbitProblem::Size& size, int sms);

// How a kernel for packed weights shares a product out: rounds of whole tiles; and of the tiles
// left either
//   each in `slices` blocks, a cluster, which have a slice of K each and add up their sums in
//   shared memory (then there are no whole tiles), or all of their units in one row, tile after
//   tile, cut into equal shares for all blocks: sums of parts of tiles go to memory and are added
//   up afterwards.
struct PackedPlan {
  int blocks;
  int tiles;       // of D
  int whole;       // tiles that are not cut
  int chunks;      // of a tile: kUnitRows rows of K
  int slices = 1;  // blocks of a cluster
  constexpr int cut() const { return tiles - whole; }
  constexpr bool has_shares() const { return cut() > 0 && slices == 1; }
  constexpr int units() const { return cut() * chunks; }
  // A share's first unit. The first shares are one longer than the others, where they must.
  constexpr int begin(int block) const {
    const int longer = units() % blocks;
    return block * (units() / blocks) + (block < longer ? block : longer);
  }
  constexpr int owner(int unit) const {
    const int least = units() / blocks, longer = units() % blocks, split = longer * (least + 1);
    return unit < split ? unit / (least + 1) : longer + (unit - split) / least;
  }
  // Parts of tiles in memory. A block's parts and a tile's parts lie side by side, for one of the
  // two is another from part to part.
  constexpr int slots() const { return has_shares() ? blocks + cut() : 0; }
  constexpr int slot(int block, int tile) const { return block + tile - whole; }
};
PackedPlan plan_packed(const Packed& tile, const LowbitProblem::Size& size, int sms);

}  // namespace lowbit

// --- grouped -------------------------------------------------------------------------------------

namespace grouped {

// int8_stream.cuh over the rows of several experts.
struct Stream {
  int tile_m;  // of D: tokens of one expert
  int tile_n;  // of D: channels

  std::string describe(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedInt8Problem::Size& size, const Machine& machine) const;
};

inline constexpr int kMaxExperts = 1024;  // of a persistent kernel

// Pairs of blocks that go from tile to tile (grouped_persistent.cuh), for many rows an expert.
struct Persistent {
  int tile_m;  // of D: tokens of one expert; by 128 channels
  float fixed_us;
  float rate;

  std::string describe(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedInt8Problem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm90/grouped.table"
#undef KERNEL

template <const Stream& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope);
template <const Persistent& kTile>
void run(const GroupedInt8Problem& p, const Scope& scope);

// As many tiles of tokens as there can be.
StreamPlan plan_stream(const Stream& tile, const GroupedInt8Problem::Size& size,
                       const Machine& machine);

}  // namespace grouped

// --- grouped lowbit ------------------------------------------------------------------------------

namespace grouped_lowbit {

// lowbit_packed.cuh over the rows of several experts (grouped_packed.cuh).
struct Packed {
  const lowbit::Packed& of;  // the line of lowbit.table with its tile

  std::string describe(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
};

#define KERNEL(name, Kind, ...) inline constexpr Kind name{__VA_ARGS__};
#include "cuda/sm90/grouped_lowbit.table"
#undef KERNEL

template <const Packed& kTile>
void run(const GroupedLowbitProblem& p, const Scope& scope);

inline constexpr int kMostExperts = 2048;  // whose offsets a block keeps

}  // namespace grouped_lowbit

extern const Arch arch;

}  // namespace scaled_mm::cuda::sm90
