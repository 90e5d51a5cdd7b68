// Plays tiles of products with scales along K: units and blocks, groups of every kind, slices,
// zero points. Each sum over groups must have the bits of docs/numerics.md, section 8.
#include "cuda_runtime.h"

#include <cstring>
#include <random>

#include "cuda/common/k_scales_tile.cuh"

namespace {

using namespace scaled_mm;

std::mt19937 random_bits(0);
int below(int end) { return static_cast<int>(random_bits() % static_cast<unsigned>(end)); }
int cases = 0, faults = 0;
float number() { return static_cast<float>(below(1 << 20) - (1 << 19)) / 777777.0f; }

struct Product {
  int m, n, k, group;
  bool blocks, azp;
  std::vector<int8_t> a, b;      // [M, K], [N, K]; of 4 bits values less their zero points
  std::vector<uint8_t> q, z;     // [K, N], [K / G, N]
  std::vector<uint16_t> scales;  // bfloat16 [K / G, N]
  std::vector<float> row_scales, block_scales;
  std::vector<int32_t> zero_points;

  Product(int m, int n, int k, int group, bool blocks, bool azp)
      : m(m), n(n), k(k), group(group), blocks(blocks), azp(azp), a(m * k), b(n * k) {
    for (int8_t& x : a) x = static_cast<int8_t>(random_bits());
    const int groups = ceil_div(k, group), across = ceil_div(n, 128);
    for (int i = 0; i < m; ++i) zero_points.push_back(static_cast<int32_t>(random_bits()));
    for (int i = 0; i < m * groups; ++i) row_scales.push_back(number());
    for (int i = 0; i < groups * across; ++i) block_scales.push_back(number());
    for (int i = 0; i < groups * n; ++i) {
      z.push_back(static_cast<uint8_t>(below(16)));
      scales.push_back(bfloat16_bits(number()));
    }
    for (int i = 0; i < k * n; ++i) q.push_back(static_cast<uint8_t>(below(16)));
    for (int i = 0; i < k; ++i) {
      for (int j = 0; j < n; ++j) {
        const int value = q[i * n + j] - z[i / group * n + j];
        b[j * k + i] = static_cast<int8_t>(blocks ? random_bits() : value);
      }
    }
  }

  float scale(int row, int column, int g) const {
    if (!blocks) return std::bit_cast<float>(uint32_t{scales[g * n + column]} << 16);
    return row_scales[row * ceil_div(k, group) + g] *
           block_scales[g * ceil_div(n, 128) + column / 128];
  }
  float expected(int row, int column) const {
    float sum = -0.0f, chain = -0.0f;
    for (int first = 0, g = 0; first < k; first += group, ++g) {
      uint32_t t = 0;
      for (int i = first; i < std::min(first + group, k); ++i) {
        const uint32_t value = static_cast<uint32_t>(int32_t{b[column * k + i]});
        t += static_cast<uint32_t>(int32_t{a[row * k + i]}) * value;
        if (azp) t -= static_cast<uint32_t>(zero_points[row]) * value;
      }
      chain = std::fma(scale(row, column, g), static_cast<float>(static_cast<int32_t>(t)), chain);
      const int next = first + group;
      if (next >= k || next / 1024 != first / 1024) sum += chain, chain = -0.0f;
    }
    return sum;
  }

  // As docs/lowbit.md has units.
  std::vector<uint8_t> units() const {
    const int sets = unit_sets(k, group), size = unit_bytes(4, ZeroPoint::integer, sets);
    const int panels = ceil_div(n, 64);
    std::vector<uint8_t> all(ceil_div(k, 128) * panels * size + 16);
    auto* const begin =
        reinterpret_cast<uint8_t*>((reinterpret_cast<uintptr_t>(all.data()) + 15) / 16 * 16);
    const auto put = [&](uint8_t* at, int nibble, int value) {
      at[nibble / 2] = static_cast<uint8_t>(at[nibble / 2] | value << nibble % 2 * 4);
    };
    for (int row = 0; row < k; ++row) {
      for (int column = 0; column < n; ++column) {
        uint8_t* const unit = begin + (row / 128 * panels + column / 64) * size;
        const int w = column % 64 / 16, g = column % 16 / 2, h = column % 2;
        const int p = row % 128 / 64, step = row % 64 / 16, i = row % 16 / 8, t = row % 8 / 2;
        uint8_t* const word = unit + 2048 * p + 512 * w + 16 * (4 * g + t) + 4 * step;
        put(word, 2 * i + h + 4 * (row % 2), q[row * n + column]);
        uint8_t* const set = unit + 4096 + row % 128 * sets / 128 * 160;
        const int of = row / group * n + column;
        std::memcpy(set + column % 64 * 2, &scales[of], 2);
        set[128 + column % 64 / 2] =
            static_cast<uint8_t>((set[128 + column % 64 / 2] & (h ? 0x0f : 0xf0)) | z[of] << 4 * h);
      }
    }
    std::rotate(all.begin(), all.begin() + (begin - all.data()), all.end());
    return all;
  }
};

// Bytes at a multiple of 16.
struct Aligned {
  std::vector<uint4> of;
  explicit Aligned(int64_t bytes) : of(bytes / 16 + 1) {}
  template <class T = uint8_t>
  T* data() {
    return reinterpret_cast<T*>(of.data());
  }
};

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
  const int slices = in_slices ? ceil_div(k, 1024) : 1, panels = ceil_div(n, 64);
  std::vector<float> partials(slices * m * n, 77.0f);
  cuda::GroupsParams p{};
  p.tokens = tokens.data<int8_t>(), p.tokens_stride = kPadded;
  p.columns = product.blocks ? k : kPadded;
  p.m = m, p.n = n, p.k = k, p.group = product.group;
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

int main() {
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
