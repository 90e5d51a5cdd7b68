// Which kernel an int4 product gets. Plain C++ without CUDA, for `scaled-mm explain` too.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/config.h"

namespace scaled_mm::cuda {

inline constexpr int kAwqDepth = 64;  // rows of W in a stage of the streaming arms
inline constexpr int kDenseTokens = 128, kDenseChannels = 256;  // of a tile of the dense arm

struct AwqSize {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t group;  // rows of W that share scales and zero points
  bool operator==(const AwqSize&) const = default;
};

// What a weight takes in memory: words, scales and zero points.
double awq_weight_bytes(const AwqSize& size);

// One way to do it: straight from the words, so many tokens to a tile; or (0 tokens) W dequantised
// to memory and a dense product with it.
struct AwqArm {
  const char* name;
  int tokens;
  // measured (docs/lowbit.md):
  double fixed_us;         // of a call, whatever its size
  double chunk_us;         // of kAwqDepth rows of a tile, with a block on every multiprocessor
  double pair_factor = 1;  // by how much two blocks on each make that longer
  double pair_us = 0;      // and the call
};

std::span<const AwqArm> awq_arms();

// Whether the streaming arms take the shape: whole stages, of one group or two, and 16-byte rows.
bool streams(const AwqSize& size);

// Blocks of a streaming arm that a multiprocessor holds: as many as the registers for their sums
// allow.
constexpr int awq_live(int tokens) { return tokens <= 32 ? 2 : 1; }

// A block has all of a tile's tokens in each of its warps, and 64, 32 or 16 channels: a lane so
// many pairs. Registers for sums bound tokens times channels; and the fewer channels, the fewer
// slices of K it takes to give every multiprocessor something to do.
inline constexpr int kAwqWarps = 8;
constexpr int awq_pairs(int tokens) { return tokens <= 8 ? 4 : tokens <= 128 ? 2 : 1; }
constexpr int awq_channels(int tokens) { return 16 * kAwqWarps * awq_pairs(tokens); }

// How a streaming arm shares a product out over its blocks, all of which live at the same time:
// rounds of whole tiles first; the tiles left are cut along K into slices, whose sums go to memory
// and are added up afterwards. Blocks take pieces in turn, every tile's first slice, then every
// tile's second, so that neighbours in a row of words are read at the same time.
struct AwqPlan {
  int blocks;
  int tiles;   // of D
  int whole;   // tiles that are not cut
  int slices;  // of the others
  int chunks;  // of a tile: kAwqDepth rows of K
  constexpr int cut() const { return tiles - whole; }
  constexpr int64_t pieces() const { return whole + int64_t{cut()} * slices; }
  constexpr int64_t partials() const { return int64_t{cut()} * slices; }  // tiles of sums in memory
};
AwqPlan plan_awq(const AwqArm& arm, const AwqSize& size, int sms);

struct AwqPrediction {
  double memory;  // reading and writing device memory
  double busy;    // dequantising and multiplying
  double us;
};
AwqPrediction predict(const AwqArm& arm, const AwqSize& size, const Machine& machine);

// The arm to run: SCALED_MM_AWQ_ARM when set and it takes the shape, else the least prediction.
// Throws std::invalid_argument when the variable names no arm.
const AwqArm& pick_awq(const AwqSize& size, const Machine& machine);

}  // namespace scaled_mm::cuda
