// Plays how a warp finds its tile of a grouped product: for random offsets, wrong ones among them,
// every tile that a grid has, by itself and by a block's table. Each row must be in one tile, of
// its expert; tiles that there are no rows for must be found to be none. And how tokens are sorted
// by their experts, and what those make of a token is added up.
#include "cuda_runtime.h"

#include <random>

#include "cuda/common/expert_rows.cuh"
#include "cuda/experts.cuh"
#include "problems/groups.h"

namespace {

using namespace scaled_mm;

std::mt19937 random_bits(0);
int below(int end) { return static_cast<int>(random_bits() % static_cast<unsigned>(end)); }

int cases = 0, faults = 0;

void check(const char* what, const std::vector<int32_t>& offsets, int count, bool sorted) {
  constexpr int kRows = 16;
  const int experts = static_cast<int>(offsets.size());
  const cuda::ExpertRows groups{offsets.data(), experts, count, nullptr, count};
  GroupedInt8Problem::Size size;
  size.m = count;
  size.experts = experts;
  std::vector<int> times(count), expert_of(count, experts);
  for (int e = 0; sorted && e < experts; ++e) {
    for (int row = e == 0 ? 0 : offsets[e - 1]; row < offsets[e]; ++row) expert_of[row] = e;
  }
  int wrong = 0, found = 0, theirs = 0;
  std::vector<int> memory(cuda::TileTable<kRows>::ints(experts));
  cuda::TileTable<kRows> table(memory.data(), experts);
  blockDim = {64, 1, 1};
  Block::run(64, [&] { table.fill(groups, threadIdx.x, 64); });
  blockDim = {32, 1, 1};
  for (int tile = 0; tile < size.most_tiles(kRows) + 3; ++tile) {
    cuda::ExpertTile of[32];
    Block::run(32, [&] {
      const int lane = threadIdx.x;
      of[lane] = cuda::find_tile<kRows>(groups, tile, lane);
    });
    const auto [expert, row, end, alone] = of[0];
    wrong += (tile < table.count()) != (expert >= 0);
    if (expert >= 0) {
      const cuda::ExpertTile again = table.find(tile);
      wrong += again.expert != expert || again.row != row || again.end != end;
      wrong += again.alone != alone;
      theirs += expert < experts;
    }
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
  const int columns = 1 + below(3);
  std::vector<int> columns_of(count);
  for (int tile = 0; tile < table.count() * columns; ++tile) {
    int column = -1;
    const cuda::ExpertTile at = table.find(tile, columns, column);
    wrong += column < 0 || column >= columns || at.row < 0 || at.row >= at.end;
    for (int i = at.row; i < std::min({at.row + kRows, at.end, count}); ++i) {
      columns_of[i] += 1 << 4 * column;
    }
  }
  for (int i = 0; sorted && i < count; ++i) {
    wrong += times[i] != 1;
    wrong += columns_of[i] != 0x111 % (1 << 4 * columns);
  }
  wrong += sorted && (table.count() != found || table.of_experts() != theirs);
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("%s, %d experts, %d rows: %d faults in %d tiles\n", what, experts, count, wrong,
              found);
}

// experts_of: some name none.
template <class T>
void check_sort(int tokens, int top_k, int experts) {
  const int count = tokens * top_k;
  std::vector<T> of(count);
  for (T& e : of) e = static_cast<T>(below(experts + 2) - 1);
  std::vector<int32_t> rows(count, -1), places(count, -1), offsets(experts, -1), expected(count);
  blockDim = {cuda::kSortThreads, 1, 1};
  for (blockIdx.x = 0; blockIdx.x <= experts; ++blockIdx.x) {
    Block::run(cuda::kSortThreads, [&] {
      cuda::sort_experts(of.data(), count, experts, top_k,
                         {rows.data(), offsets.data(), places.data()});
    });
  }
  blockIdx.x = 0;
  const auto key = [&](int i) { return of[i] < 0 || of[i] >= experts ? experts : int(of[i]); };
  for (int i = 0; i < count; ++i) expected[i] = i;
  std::stable_sort(expected.begin(), expected.end(), [&](int i, int j) { return key(i) < key(j); });
  int wrong = 0;
  for (int i = 0; i < count; ++i) {
    wrong += rows[i] != expected[i] / top_k || places[expected[i]] != i;
  }
  for (int e = 0; e < experts; ++e) {
    wrong += offsets[e] !=
             std::count_if(expected.begin(), expected.end(), [&](int i) { return key(i) <= e; });
  }
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("%d tokens of %d experts among %d are sorted wrongly\n", tokens, top_k, experts);
}

void check_combine(int64_t tokens, int64_t columns, int top_k) {
  std::vector<float> y(tokens * top_k * columns), weights(tokens * top_k), d(tokens * columns);
  std::vector<int32_t> places(tokens * top_k);
  const auto number = [] { return static_cast<float>(below(1 << 20)) / 777.0f; };
  for (float& x : y) x = number();
  for (float& x : weights) x = number();
  for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
  std::shuffle(places.begin(), places.end(), random_bits);
  blockDim = {32, 1, 1}, gridDim = {2, 1, 1};
  for (blockIdx.x = 0; blockIdx.x < 2; ++blockIdx.x) {
    Block::run(32, [&] {
      cuda::combine_experts({.y = {y.data(), DType::float32, columns, 1},
                             .weights = {weights.data(), DType::float32, top_k, 1},
                             .places = places.data(),
                             .rows = tokens * top_k,
                             .tokens = tokens,
                             .columns = columns,
                             .top_k = top_k,
                             .d = d.data(),
                             .dtype = DType::float32});
    });
  }
  blockIdx.x = 0;
  int wrong = 0;
  for (int64_t i = 0; i < tokens * columns; ++i) {
    float sum = 0;
    for (int64_t j = i / columns * top_k; j < (i / columns + 1) * top_k; ++j) {
      const float part = y[places[j] * columns + i % columns] * weights[j];
      sum = j % top_k == 0 ? part : sum + part;
    }
    wrong += sum != d[i];
  }
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("%d of %d elements are added up wrongly\n", wrong, int(tokens * columns));
}

}  // namespace

int main() {
  check_sort<int64_t>(1, 2, 8);
  check_sort<int64_t>(300, 8, 5);
  check_sort<int32_t>(513, 4, 3);
  check_sort<int32_t>(2, 1, 40);
  check_combine(1, 8, 2);
  check_combine(17, 33, 8);
  check_combine(3, 24, 6);
  check_combine(5, 64, 1);
  blockDim = {32, 1, 1};
  for (int i = 0; i < 40; ++i) {
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
