#include "cuda/config.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "archs.h"
#include "check.h"
#include "cuda/remember.h"

namespace scaled_mm::cuda {
namespace {

constexpr Arch kArchs[] = {
#define ARCH(name) {#name, name::serves, name::kRows},
    SCALED_MM_ARCHS
#undef ARCH
};

int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

int find_row(const Arch& arch, const char* wanted) {
  std::string names;
  for (size_t i = 0; i < arch.rows.size(); ++i) {
    if (!std::strcmp(arch.rows[i].name, wanted)) return static_cast<int>(i);
    names += (i ? ", " : "") + std::string(arch.rows[i].name);
  }
  refuse("SCALED_MM_CUDA_ROW", "be one of " + names, wanted);
}

// What a device does at best, in the units of predict. Measured on an H200 (docs/tuning.md).
constexpr double kMemoryShare = 0.87;      // of the peak of device memory
constexpr double kL2BytesPerUs = 59.2e3;   // from L2, for each multiprocessor when all of them read
constexpr double kLoneBytesPerUs = 110e3;  // from L2, for a multiprocessor that has it to itself
constexpr double kProductsPerUs = 5.34e6;  // int8 multiply-adds of a multiprocessor
constexpr double kSecondWaveUs = 3.0;      // blocks that start when others have ended
constexpr double kExposedEpilogueUs = 2.5;  // of a tile, where no other tile's products hide it

int64_t tiles(const Config& config, int64_t m, int64_t n) {
  const int64_t across = ceil_div(m, config.tile_m * config.cluster_m) * config.cluster_m;
  return across * ceil_div(n, config.tile_n * config.cluster_n) * config.cluster_n;
}

}  // namespace

std::span<const Arch> archs() { return kArchs; }

std::string arch_names() {
  std::string names;
  for (const Arch& arch : kArchs) names += (names.empty() ? "" : ", ") + std::string(arch.name);
  return names;
}

const Arch* find_arch(int capability) {
  for (const Arch& arch : kArchs) {
    if (arch.serves(capability)) return &arch;
  }
  return nullptr;
}

StreamPlan plan_stream(const Config& config, const Size& size, const Machine& machine) {
  StreamPlan plan;
  plan.token_tiles = static_cast<int>(ceil_div(size.m, config.tile_m));
  const int64_t whole = tiles(config, size.m, size.n);
  // As many slices as find a multiprocessor for each block. Clusters of three do not fill a GPC, so
  // some multiprocessors stay empty; clusters of four and more left too many.
  plan.split = 7 * kMaxSplit * whole <= 6 * machine.sms ? kMaxSplit
               : 2 * whole <= machine.sms               ? 2
                                                        : 1;
  plan.blocks = whole * plan.split;
  // Two blocks to a multiprocessor when there are many, so that one loads while the other ends;
  // unless their rings would be too short.
  plan.paired = plan.blocks > machine.sms && config.tile_m + config.tile_n <= 256;
  return plan;
}

int choose_swizzle(const Config& config, int64_t m, int64_t n) {
  const int64_t across = ceil_div(m, config.tile_m * config.cluster_m);
  const int64_t along = ceil_div(n, config.tile_n * config.cluster_n);
  const auto padded = [](int64_t x, int64_t y) { return ceil_div(x, y) * y; };
  int swizzle = config.swizzle;
  while (swizzle > 1 &&
         50 * padded(across, swizzle) * padded(along, swizzle) > 51 * across * along) {
    swizzle /= 2;
  }
  return swizzle;
}

// Device memory runs beside whatever else binds: tensor cores, L2 for all, L2 for the
// multiprocessor that has most to do. The two add up like the sides of a very flat triangle.
Prediction predict(const Config& config, const Size& size, const Machine& machine) {
  const auto [m, n, k, out_bytes] = size;
  const double bytes = double(n) * k + double(m) * k + double(m) * n * out_bytes;
  const double memory = bytes / (kMemoryShare * machine.bytes_per_us);

  const bool streams = config.kernel == Kernel::stream;
  const StreamPlan plan = streams ? plan_stream(config, size, machine) : StreamPlan{};
  const int split = streams ? plan.split : 1;
  const double blocks = double(tiles(config, m, n)) * split;
  const double rows = ceil_div(ceil_div(k, config.tile_k), split) * config.tile_k;  // of K, a block
  const double rounds = std::ceil(blocks / machine.sms);
  // A block's loads, those that its cluster shares counted once.
  const double loads =
      (double(config.tile_m) / config.cluster_n + double(config.tile_n) / config.cluster_m) * rows;
  const double products = rounds * config.tile_m * config.tile_n * rows / kProductsPerUs;
  const double l2 = blocks * loads / (kL2BytesPerUs * machine.sms);
  const double lone = streams ? rounds * loads / kLoneBytesPerUs : 0.0;
  Prediction p{memory, std::max({products, l2, lone}), 0.0, 0.0};
  if (streams && rounds > 1) p.waves = kSecondWaveUs * (plan.paired ? 1 : rounds - 1);
  if (config.schedule == Schedule::cooperative) p.waves = kExposedEpilogueUs * rounds;
  const double busy = p.busy / config.rate;
  p.us = config.fixed_us + std::sqrt(std::hypot(memory * memory, busy * busy)) + p.waves;
  return p;
}

int pick(const Arch& arch, const Size& size, const Machine& machine) {
  const auto runs = [&](const Row& row) {
    return size.k > 0 || row.config.kernel == Kernel::stream;
  };
  if (const char* forced = std::getenv("SCALED_MM_CUDA_ROW"); forced && *forced) {
    const int row = find_row(arch, forced);
    if (runs(arch.rows[row])) return row;
  }
  const auto best = [&] {
    int found = 0;
    double least = INFINITY;
    for (size_t i = 0; i < arch.rows.size(); ++i) {
      if (!runs(arch.rows[i])) continue;
      const double us = predict(arch.rows[i].config, size, machine).us;
      if (us < least) least = us, found = static_cast<int>(i);
    }
    return found;
  };
  struct Question {
    const Arch* arch;
    Size size;
    Machine machine;
    bool operator==(const Question&) const = default;
  };
  return remember(Question{&arch, size, machine}, mix(size.m, size.n, size.k) ^ size.out_bytes,
                  best);
}

}  // namespace scaled_mm::cuda
