#include "cuda/config.h"

#include <algorithm>
#include <cstdlib>

namespace scaled_mm::cuda {

namespace {
int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }
int env(const char* name, int other) {
  const char* value = std::getenv(name);
  return value ? std::atoi(value) : other;
}
}  // namespace

StreamPlan plan_stream(const Config& config, int64_t m, int64_t n, int64_t k, int sms) {
  StreamPlan plan;
  plan.chunks = static_cast<int>(ceil_div(k, config.tile_k));
  plan.token_tiles = static_cast<int>(ceil_div(m, config.tile_m));
  const int64_t tiles = plan.token_tiles * ceil_div(n, config.tile_n);
  plan.split = 1;
  while (plan.split < 8 && tiles * plan.split * 2 <= 2 * sms) plan.split *= 2;
  plan.split = env("SPLIT", plan.split);
  plan.blocks = tiles * plan.split;
  const int stage = (config.tile_m + config.tile_n) * config.tile_k;
  const int budget = env("SMEM", 110) * 1024;
  plan.stages = std::clamp(budget / stage, 2, 32);
  return plan;
}

int choose_swizzle(const Config& config, int64_t m, int64_t n) {
  const int64_t across = ceil_div(m, config.tile_m * config.cluster_m);
  const int64_t along = ceil_div(n, config.tile_n * config.cluster_n);
  int swizzle = config.swizzle;
  const auto padded = [](int64_t x, int64_t y) { return ceil_div(x, y) * y; };
  while (swizzle > 1 && 50 * padded(across, swizzle) * padded(along, swizzle) > 51 * across * along) {
    swizzle /= 2;
  }
  return swizzle;
}

}  // namespace scaled_mm::cuda
