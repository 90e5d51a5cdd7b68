// Plays tiles of products with scales along K: units and blocks, groups of every kind, slices,
// zero points. Each sum over groups must have the bits of docs/numerics.md, section 8.
#include "k_scales.h"

#include "cuda/k_scales/tile.cuh"

namespace {

template <class Block>
void play(const Product& product, bool in_slices) {
  const int m = product.m, n = product.n, k = product.k, kPadded = ceil_div(k, 128) * 128;
  const std::vector<uint8_t> packed = product.units();
  Aligned units(packed.size()), tokens(m * kPadded), weight(n * kPadded);
  std::copy(packed.begin(), packed.end(), units.data());
  for (int i = 0; i < m; ++i) {
    for (int at = 0; at < kPadded; ++at) {
      const int column = product.blocks ? at : at / 16 * 16 + cuda::arranged_column(at % 16);
      tokens.data()[i * kPadded + at] = static_cast<uint8_t>(column < k ? product.a[i * k + column]
                                                             : product.blocks ? 77
                                                                              : 0);
    }
  }
  for (int i = 0; i < n * k; ++i) weight.data()[i / k * kPadded + i % k] = product.b[i];

  std::vector<float> d(m * n, 77.0f);
  const int slices = in_slices ? ceil_div(k, product.slice()) : 1, panels = ceil_div(n, 64);
  std::vector<float> partials(slices * m * n, 77.0f);
  cuda::GroupsParams p{};
  p.tokens = tokens.data<int8_t>(), p.tokens_stride = kPadded;
  p.columns = product.blocks ? k : kPadded;
  p.m = m, p.n = n, p.k = k, p.group = product.group, p.slice = product.slice();
  p.token_tiles = ceil_div(m, Block::kTokens);
  p.azp = product.zero_points.data(), p.azp_stride = 1;
  p.units = units.data(), p.panels = panels, p.sets = unit_sets(k, product.group);
  p.dtype = DType::bfloat16;
  p.weight = weight.data<int8_t>(), p.weight_stride = kPadded;
  p.row_scales = {product.row_scales.data(), DType::float32, ceil_div(k, 128), 1};
  p.scales = {product.block_scales.data(), DType::float32, ceil_div(n, 128), 1};
  p.slices = slices;
  p.partials = partials.data();
  typename Block::Shared shared;
  blockDim = {Block::kThreads, 1, 1};
  for (int tile = 0; tile < panels * p.token_tiles; ++tile) {
    for (int slice = 0; slice < slices; ++slice) {
      ::Block::run(Block::kThreads, [&] { cuda::GroupsTile<Block>(p, shared, tile, slice).run(); });
    }
  }
  for (int i = 0; i < m * n; ++i) {
    d[i] = -0.0f;
    for (int s = 0; s < slices; ++s) d[i] += partials[s * m * n + i];
  }
  int wrong = 0;
  for (int i = 0; i < m * n; ++i) {
    wrong +=
        std::bit_cast<uint32_t>(d[i]) != std::bit_cast<uint32_t>(product.expected(i / n, i % n));
  }
  ++cases;
  if (wrong == 0) return;
  ++faults;
  std::printf("M=%d N=%d K=%d G=%d, %s%s, %d slices: %d sums are wrong\n", m, n, k, product.group,
              product.blocks ? "blocks" : "4 bits", product.azp ? " azp" : "", slices, wrong);
}

void check(int m, int n, int k, int group, bool azp) {
  const Product product(m, n, k, group, false, azp);
  for (const bool in_slices : {false, true}) {
    if (in_slices && group == k) continue;
    if (azp) {
      play<cuda::GroupsBlock<cuda::Nibbles128, 16, true>>(product, in_slices);
    } else {
      play<cuda::GroupsBlock<cuda::Nibbles128, 16, false>>(product, in_slices);
    }
  }
}

void check_blocks(int m, int n, int k) {
  const Product product(m, n, k, 128, true, false);
  play<cuda::GroupsBlock<cuda::Bytes128, 16, false>>(product, false);
  play<cuda::GroupsBlock<cuda::Bytes128, 16, false>>(product, true);
}

}  // namespace

void check_arranged() {
  union {
    uint8_t bytes[16];
    uint4 all;
  } columns;
  for (int i = 0; i < 16; ++i) columns.bytes[i] = static_cast<uint8_t>(i);
  columns.all = cuda::arrange_columns(columns.all);
  for (int i = 0; i < 16; ++i) faults += columns.bytes[i] != cuda::arranged_column(i);
}

int main() {
  check_arranged();
  const int groups[][2] = {{1088, 32}, {384, 96},  {1216, 64}, {1280, 128},  {2304, 768},
                           {2112, 96}, {300, 300}, {7, 7},     {1025, 1025}, {3072, 1024}};
  for (const auto& [k, group] : groups) {
    check(1 + below(17), 1 + below(80), k, group, false);
    check(1 + below(17), 1 + below(80), k, group, true);
  }
  play<cuda::GroupsBlock<cuda::Nibbles128, 64, true>>({70, 66, 256, 64, false, true}, false);
  check_blocks(3, 130, 200);
  check_blocks(17, 65, 1300);
  std::printf("%d cases, %d faults\n", cases, faults);
  return faults != 0;
}
