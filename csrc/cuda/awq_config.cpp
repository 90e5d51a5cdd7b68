#include "cuda/awq_config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <string>

#include "check.h"
#include "cuda/remember.h"

namespace scaled_mm::cuda {
namespace {

// Measured on an H200 (docs/lowbit.md).
constexpr AwqArm kArms[] = {
    {"stream_8", 8, 4.5, 0.42, 1.60, 2.0},
    {"stream_16", 16, 1.5, 0.34, 1.63, 1.5},
    {"stream_32", 32, 1.5, 0.40, 1.70, 2.0},
    {"stream_64", 64, 1.5, 0.56},
    {"stream_128", 128, 2.0, 0.85},
    {"stream_256", 256, 2.0, 0.80},
    {"dense", 0, 6.0, 0.80},
};
constexpr double kJoinUs = 2.0;          // of adding up partial sums, besides
constexpr double kJoinBytesPerUs = 5e6;  // what they go to L2 and back at
constexpr double kMemoryShare = 0.87;    // of the peak of device memory
constexpr int kMostRounds = 4;           // of slices

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

int64_t awq_tiles(const AwqSize& size, int tokens, int channels) {
  return ceil_div(size.m, tokens) * ceil_div(size.n, channels);
}

bool takes(const AwqArm& arm, const AwqSize& size) { return arm.tokens == 0 || streams(size); }

// What the blocks take for their chunks, and partial sums.
double busy_us(const AwqArm& arm, const AwqSize& size, const AwqPlan& plan, int sms) {
  const auto rounds = [&](int64_t pieces) { return double(ceil_div(pieces, plan.blocks)); };
  const double chunk_us = arm.chunk_us * (plan.blocks > sms ? arm.pair_factor : 1);
  const double whole = rounds(plan.whole) * plan.chunks * chunk_us;
  if (plan.cut() == 0) return whole;
  const double tokens = double(std::min<int64_t>(size.m, arm.tokens));
  const double partials =
      double(plan.partials()) * tokens * awq_channels(arm.tokens) * sizeof(float);
  return whole + kJoinUs + 2 * partials / kJoinBytesPerUs +
         rounds(int64_t{plan.cut()} * plan.slices) * double(ceil_div(plan.chunks, plan.slices)) *
             chunk_us;
}

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

AwqPlan plan_awq(const AwqArm& arm, const AwqSize& size, int sms) {
  const int64_t chunks = size.k / kAwqDepth;
  const int64_t tiles = awq_tiles(size, arm.tokens, awq_channels(arm.tokens));
  AwqPlan best = {};
  double least = INFINITY;
  // So many slices of the tiles that fill no round of `slots` blocks.
  const auto consider = [&](int64_t slots, int64_t slices) {
    AwqPlan plan = {};
    plan.tiles = static_cast<int>(tiles);
    plan.whole = static_cast<int>(slices == 1 ? tiles : tiles / slots * slots);
    plan.slices = static_cast<int>(slices);
    plan.chunks = static_cast<int>(chunks);
    plan.blocks = static_cast<int>(std::clamp<int64_t>(plan.pieces(), 1, slots));
    const double us = busy_us(arm, size, plan, sms) + (plan.blocks > sms ? arm.pair_us : 0);
    if (us < least) least = us, best = plan;
  };
  for (int live = 1; live <= awq_live(arm.tokens); ++live) {
    const int64_t slots = int64_t{live} * sms;
    consider(slots, 1);
    const int64_t left = tiles % slots;
    if (left == 0) continue;
    for (int rounds = 1; rounds <= kMostRounds; ++rounds) {  // as many slices as they have room for
      consider(slots, std::max<int64_t>(1, std::min(rounds * slots / left, chunks)));
    }
  }
  return best;
}

AwqPrediction predict(const AwqArm& arm, const AwqSize& size, const Machine& machine) {
  const double m = double(size.m), weights = double(size.n) * double(size.k);
  const double words = awq_weight_bytes(size);
  const double others = 2 * (m * double(size.k) + m * double(size.n));
  const double rate = kMemoryShare * machine.bytes_per_us;
  AwqPrediction p;
  if (arm.tokens == 0) {
    const double tiles = double(awq_tiles(size, kDenseTokens, kDenseChannels));
    p.memory = (words + 2 * weights) / rate;
    p.busy = arm.chunk_us * double(ceil_div(size.k, kAwqDepth)) * std::ceil(tiles / machine.sms);
    p.us = arm.fixed_us + p.memory + std::max(p.busy, (2 * weights + others) / rate);
  } else {
    const AwqPlan plan = plan_awq(arm, size, machine.sms);
    p.memory = (words + others) / rate;
    p.busy = busy_us(arm, size, plan, machine.sms);
    p.us = arm.fixed_us + std::sqrt(std::hypot(p.memory * p.memory, p.busy * p.busy)) +
           (plan.blocks > machine.sms ? arm.pair_us : 0);
  }
  return p;
}

const AwqArm& pick_awq(const AwqSize& size, const Machine& machine) {
  if (const char* forced = std::getenv("SCALED_MM_AWQ_ARM"); forced && *forced) {
    const AwqArm* arm = find(forced);
    if (takes(*arm, size)) return *arm;
  }
  const auto best = [&] {
    const AwqArm* found = nullptr;
    double least = INFINITY;
    for (const AwqArm& arm : kArms) {
      if (!takes(arm, size)) continue;
      const double us = predict(arm, size, machine).us;
      if (us < least) least = us, found = &arm;
    }
    return found;
  };
  struct Question {
    AwqSize size;
    Machine machine;
    bool operator==(const Question&) const = default;
  };
  return *remember(Question{size, machine}, mix(size.m, size.n, size.k) ^ size.group, best);
}

}  // namespace scaled_mm::cuda
