// Which kernel an int4 product gets. Plain C++ without CUDA, for `scaled-mm explain` too.
#pragma once

#include <cstdint>
#include <span>

#include "cuda/config.h"

namespace scaled_mm::cuda {

inline constexpr int kAwqDepth = 64;      // rows of W in a stage of the streaming arms
inline constexpr int kAwqChannels = 256;  // of a tile of D, in every arm
inline constexpr int kDenseTokens = 128;  // of a tile of the dense arm

struct AwqSize {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t group;  // rows of W that share scales and zero points
};

// What a weight takes in memory: words, scales and zero points.
double awq_weight_bytes(const AwqSize& size);

// One way to do it: straight from the words, so many tokens to a tile; or (0 tokens) W dequantised
// to memory and a dense product with it.
struct AwqArm {
  const char* name;
  int tokens;
  // measured (docs/lowbit.md):
  double fixed_us;  // of a call, whatever its size
  double chunk_us;  // of 64 rows of a tile, with all multiprocessors at work
};

std::span<const AwqArm> awq_arms();

// Whether the streaming arms take the shape: whole stages, of one group or two, and 16-byte rows.
bool streams(const AwqSize& size);

// Teams of four warps in a block of a streaming arm, and blocks that a multiprocessor holds: as
// many as the registers for their sums allow.
constexpr int awq_teams(int tokens) { return tokens == 32 ? 3 : 2; }
constexpr int awq_live(int tokens) { return tokens <= 16 ? 2 : 1; }

inline constexpr int kMaxAwqSplit = 8;

// Slices of K, one block each: a cluster; at most kMaxAwqSplit.
int awq_split(const AwqSize& size, int tokens, int sms);

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
