// Plays how a warp finds its tile of a grouped product: for random offsets, wrong ones among them,
// every tile that a grid has. Each row must be in one tile, of its expert; tiles that there are no
// rows for must be found to be none.
#include "cuda_runtime.h"

#include <random>

#include "cuda/common/groups.cuh"
#include "problems/groups.h"

namespace {

using namespace scaled_mm;

std::mt19937 random_bits(0);
int below(int end) { return static_cast<int>(random_bits() % static_cast<unsigned>(end)); }

int cases = 0, faults = 0;

void check(const char* what, const std::vector<int32_t>& offsets, int count, bool sorted) {
  constexpr int kRows = 16;
  const int experts = static_cast<int>(offsets.size());
  const cuda::Groups groups{offsets.data(), experts, count, nullptr, count};
  GroupedInt8Problem::Size size;
  size.m = count;
  size.experts = experts;
  std::vector<int> times(count), expert_of(count, experts);
  for (int e = 0; sorted && e < experts; ++e) {
    for (int row = e == 0 ? 0 : offsets[e - 1]; row < offsets[e]; ++row) expert_of[row] = e;
  }
  int wrong = 0, found = 0;
  for (int tile = 0; tile < size.most_tiles(kRows) + 3; ++tile) {
    cuda::GroupTile of[32];
    Block::run(32, [&] {
      const int lane = threadIdx.x;
      of[lane] = cuda::find_tile<kRows>(groups, tile, lane);
    });
    const auto [expert, row, end, alone] = of[0];
    for (const auto& each : of) {
      wrong += each.expert != expert || each.row != row || each.end != end || each.alone != alone;
    }
    if (expert < 0) continue;
    ++found;
    wrong += tile >= size.most_tiles(kRows) && sorted;
    wrong += expert > experts || row < 0 || end > count || row >= end;
    for (int i = row; i < std::min({row + kRows, end, count}); ++i) {
      ++times[i];
      wrong += sorted && expert_of[i] != expert;
    }
    wrong += alone != (end - groups.end(expert - 1) <= kRows);
  }
  for (int i = 0; sorted && i < count; ++i) wrong += times[i] != 1;
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("%s, %d experts, %d rows: %d faults in %d tiles\n", what, experts, count, wrong,
              found);
}

}  // namespace

int main() {
  blockDim = {32, 1, 1};
  for (int i = 0; i < 100; ++i) {
    const int experts = 1 + below(i % 4 == 0 ? 300 : 40), count = below(i % 3 == 0 ? 20 : 600);
    std::vector<int32_t> offsets(experts);
    for (int& end : offsets) end = below(count + 1);
    std::sort(offsets.begin(), offsets.end());
    if (i % 2) offsets.back() = count;  // no row is left over
    check("random", offsets, count, true);
    check("the first expert has all", std::vector<int32_t>(experts, count), count, true);
    for (int& end : offsets) end = static_cast<int32_t>(random_bits()) >> below(32);
    check("wrong offsets", offsets, count, false);
  }
  std::printf("%d cases, %d faults\n", cases, faults);
  return faults != 0;
}
