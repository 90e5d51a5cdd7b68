// Plays a warp's rotation of 2048 columns: the bits of butterflies one after the other, each group
// once, and shared memory's banks.
#include "cuda_runtime.h"

#include <random>
#include <set>

#include "cuda/quantize/rotate_slots.cuh"

namespace {

using namespace scaled_mm;
constexpr int kColumns = 2048;
int cases = 0, faults = 0;

// The most of these lanes' addresses, in units of the banks' width, that share a unit.
int ways(const std::vector<int>& at, int units) {
  std::map<int, std::set<int>> lanes;
  int most = 0;
  for (int each : at) lanes[each % units].insert(each);
  for (const auto& [unit, of] : lanes) most = std::max(most, static_cast<int>(of.size()));
  return most;
}

template <int kBlock>
void check() {
  std::mt19937 random(kBlock);
  std::vector<float> x(kColumns), wanted, got(kColumns), times(kColumns);
  for (float& each : x) each = static_cast<float>(random()) * 0x1p-20f - 2048.0f;
  wanted = x;
  for (int stride = 1; stride < kBlock; stride *= 2) {
    for (int i = 0; i < kColumns; ++i) {
      if (i & stride) continue;
      const float sum = wanted[i] + wanted[i + stride];
      wanted[i + stride] = wanted[i] - wanted[i + stride];
      wanted[i] = sum;
    }
  }
  std::vector<int> read[cuda::kSlots], written[cuda::kSlots];
  for (int i = 0; i < cuda::kSlots; ++i) read[i].resize(32), written[i].resize(32);
  Block::run(32, [&] {
    const int lane = threadIdx.x;
    const cuda::Slots<kBlock> slots(lane);
    float v[cuda::kSlots][kSumGroup];
    for (int i = 0; i < cuda::kSlots; ++i) {
      read[i][lane] = slots.first()(i);
      for (int e = 0; e < kSumGroup; ++e) v[i][e] = x[read[i][lane] * kSumGroup + e];
    }
    slots.rotate(v);
    for (int i = 0; i < cuda::kSlots; ++i) {
      written[i][lane] = slots.last()(i);
      for (int e = 0; e < kSumGroup; ++e) {
        got[written[i][lane] * kSumGroup + e] = v[i][e];
        ++times[written[i][lane] * kSumGroup + e];
      }
    }
  });
  int wrong = 0;
  for (int i = 0; i < kColumns; ++i) {
    wrong += times[i] != 1 || got[i] != wanted[i] * rotation_factor(kBlock);
  }
  for (int i = 0; i < cuda::kSlots; ++i) {  // 16 bytes of eight lanes, 8 of sixteen
    for (int lane = 0; lane < 32; lane += 8) {
      wrong += ways({&read[i][lane], &read[i][lane] + 8}, 8) > (kBlock == 512 ? 2 : 1);
    }
    for (int lane = 0; lane < 32; lane += 16) {
      wrong += ways({&written[i][lane], &written[i][lane] + 16}, 16) > (kBlock > 64 ? 2 : 1);
    }
  }
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("blocks of %d: %d faults\n", kBlock, wrong);
}

}  // namespace

int main() {
  check<16>(), check<32>(), check<64>(), check<128>(), check<256>(), check<512>();
  std::printf("%d cases, %d faults\n", cases, faults);
}
