#include "cuda/awq_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"

namespace scaled_mm::cuda {
namespace {

// Measured on an H200 (docs/lowbit.md).
constexpr AwqArm kArms[] = {
    {"stream_8", 8, 3.5, 0.52},   {"stream_16", 16, 3.6, 0.66},   {"stream_32", 32, 4.0, 0.45},
    {"stream_64", 64, 4.0, 0.65}, {"stream_128", 128, 5.0, 0.98}, {"dense", 0, 6.0, 0.75},
};
constexpr double kMemoryShare = 0.87;  // of the peak of device memory

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t awq_tiles(const AwqSize& size, int tokens) {
  return ceil_div(size.m, tokens) * ceil_div(size.n, kAwqChannels);
}

bool takes(const AwqArm& arm, const AwqSize& size) { return arm.tokens == 0 || streams(size); }

const AwqArm* find(const char* wanted) {
  std::string names;
  for (const AwqArm& arm : kArms) {
    if (!std::strcmp(arm.name, wanted)) return &arm;
    names += (names.empty() ? "" : ", ") + std::string(arm.name);
  }
  refuse("SCALED_MM_AWQ_ARM", "be one of " + names, wanted);
}

}  // namespace

double awq_weight_bytes(const AwqSize& size) {
  const double weights = double(size.n) * double(size.k);
  const double groups = size.group ? weights / double(size.group) : 0.0;
  return weights / 2 + 2.5 * groups;
}

std::span<const AwqArm> awq_arms() { return kArms; }

bool streams(const AwqSize& size) {
  return size.k > 0 && size.k % kAwqDepth == 0 && size.n % 32 == 0 &&
         (size.group % kAwqDepth == 0 || size.group == kAwqDepth / 2);
}

int awq_split(const AwqSize& size, int tokens, int sms) {
  const int64_t chunks = size.k / kAwqDepth, tiles = awq_tiles(size, tokens);
  // Large clusters find room where two blocks share a multiprocessor; where each needs one to
  // itself they wait for each other. And a GPC has 14 to 18 of them: clusters of more than two
  // leave some empty.
  const int live = awq_live(tokens);
  const auto fits = [&](int64_t split) {
    return split * tiles <= live * (split <= 2 ? sms : 7 * sms / 8) &&
           split * awq_teams(tokens) <= chunks;
  };
  int split = live == 2 ? kMaxAwqSplit : kMaxAwqSplit / 2;
  while (split > 1 && !fits(split)) --split;
  return split;
}

AwqPrediction predict(const AwqArm& arm, const AwqSize& size, const Machine& machine) {
  const double m = double(size.m), weights = double(size.n) * double(size.k);
  const double words = awq_weight_bytes(size);
  const double others = 2 * (m * double(size.k) + m * double(size.n));
  const double rate = kMemoryShare * machine.bytes_per_us;
  AwqPrediction p;
  if (arm.tokens == 0) {
    const double tiles = double(awq_tiles(size, kDenseTokens));
    p.memory = (words + 2 * weights) / rate;
    p.busy = arm.chunk_us * double(ceil_div(size.k, kAwqDepth)) * std::ceil(tiles / machine.sms);
    p.us = arm.fixed_us + p.memory + std::max(p.busy, (2 * weights + others) / rate);
  } else {
    const int split = awq_split(size, arm.tokens, machine.sms);
    const double blocks = double(awq_tiles(size, arm.tokens)) * split;
    p.memory = (words + others) / rate;
    p.busy = arm.chunk_us * double(ceil_div(size.k / kAwqDepth, split)) *
             std::ceil(blocks / (awq_live(arm.tokens) * machine.sms));
    p.us = arm.fixed_us + std::sqrt(std::hypot(p.memory * p.memory, p.busy * p.busy));
  }
  return p;
}

const AwqArm& pick_awq(const AwqSize& size, const Machine& machine) {
  if (const char* forced = std::getenv("SCALED_MM_AWQ_ARM"); forced && *forced) {
    const AwqArm* arm = find(forced);
    if (takes(*arm, size)) return *arm;
  }
  const AwqArm* best = nullptr;
  double least = INFINITY;
  for (const AwqArm& arm : kArms) {
    if (!takes(arm, size)) continue;
    const double us = predict(arm, size, machine).us;
    if (us < least) least = us, best = &arm;
  }
  return *best;
}

}  // namespace scaled_mm::cuda
