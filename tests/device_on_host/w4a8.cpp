// Plays Hopper's kernels for products with scales along K, whole blocks of them: loads, products,
// parts of tiles and what adds them up. D must be the sums over groups.
#include "k_scales.h"

#include "hopper.h"

#include "cuda/sm90/k_scales_model.cpp"
#include "cuda/sm90/blocks.cuh"
#include "cuda/sm90/w4a8.cuh"

namespace {

using namespace scaled_mm::cuda::sm90;
using k_scales::Grouping;
using k_scales::Units;

constexpr Units kUnits8{8, 4, false, 1, 1, 1}, kUnits16{16, 2, false, 1, 1, 1},
    kUnits64{64, 4, false, 1, 1, 1}, kUnits128{128, 2, false, 1, 1, 1},
    kAlongK8{8, 4, true, 1, 1, 1}, kAlongK32{32, 3, true, 1, 1, 1};

void take_shared(int bytes) {
  static std::vector<uint8_t> memory[2];
  for (int i = 0; i < 2; ++i) {
    memory[i].resize(bytes + 1024);
    const auto at = reinterpret_cast<uintptr_t>(memory[i].data());
    played_memory[i] = reinterpret_cast<uint8_t*>((at + 1023) / 1024 * 1024);
  }
}

int count_wrong(const Product& product, const std::vector<float>& d) {
  int wrong = 0;
  for (int i = 0; i < product.m * product.n; ++i) {
    const float expected = product.expected(i / product.n, i % product.n);
    wrong += std::bit_cast<uint32_t>(d[i]) != std::bit_cast<uint32_t>(expected);
  }
  ++cases, faults += wrong > 0;
  return wrong;
}

cuda::GroupsEnd end_in(std::vector<float>& d, int n) {
  cuda::GroupsEnd end{epilogue::Id::ScaledEpilogue, n, {}, {}};
  end.to = {{d.data(), DType::float32, n % 4 == 0}, n, Function::none, true};
  return end;
}

template <const Units& kTile, Grouping kGroups>
void play(const Product& product, bool arranged, int sms) {
  using Played = k_scales::Block<kTile, kGroups>;
  const int m = product.m, n = product.n, k = product.k, stride = (k + 127) / 128 * 128;
  const std::vector<uint8_t> packed = product.units();
  Aligned units(packed.size()), tokens(m * stride);
  std::copy(packed.begin(), packed.end(), units.data());
  for (int i = 0; i < m * stride; ++i) {
    const int at = i % stride;
    const int column = arranged ? at / 16 * 16 + cuda::arranged_column(at % 16) : at;
    tokens.data()[i] = static_cast<uint8_t>(column < k ? product.a[i / stride * k + column] : 0);
  }
  KScalesProblem::Size size;
  size.m = m, size.n = n, size.k = k, size.group = product.group;
  std::vector<float> d(m * n, 77.0f);
  k_scales::Params p{};
  p.units = units.data(), p.panels = ceil_div(n, 64), p.sets = unit_sets(k, product.group);
  p.dtype = DType::bfloat16;
  const int box = std::min(m, Played::kTokens);
  p.tokens = {tokens.data<int8_t>(), m, arranged ? stride : k, stride, box};
  p.box_bytes = box * kUnitRows;
  p.arranged = arranged;
  p.m = m, p.n = n, p.k = k, p.group = product.group, p.slice = product.slice();
  p.token_tiles = ceil_div(m, Played::kTokens);
  p.pieces = k_scales::plan_pieces(kTile, size, sms);
  p.parts = kTile.parts(size, p.pieces);
  p.stages = 3;
  p.azp = product.azp ? product.zero_points.data() : nullptr, p.azp_stride = 1;
  p.end = end_in(d, n);
  const auto& plan = p.pieces.plan;
  const int slots = kGroups == Grouping::one ? plan.slots() : plan.units();
  std::vector<uint32_t> partials(slots * Played::kTokens * Played::kChannels + 4, 0x7fc00000);
  Aligned sums(4 * partials.size());
  p.partials = sums.data<uint32_t>();

  take_shared(Played::shared_bytes(3, p.parts));
  gridDim = {plan.blocks, 1, 1};
  for (int block = 0; block < plan.blocks; block += plan.slices) {
    blockIdx = {block, 0, 0}, blockDim = {Played::kThreads, 1, 1};
    played_barriers.clear();
    const auto body = [&] { k_scales::multiply_units<Played>(p, played_shared); };
    ::Block::run(Played::kThreads, body, plan.slices);
  }
  if (plan.has_shares()) {
    const int quads = std::min(m, Played::kTokens) * (Played::kChannels / 4);
    blockDim = {128, 1, 1};
    for (int cut = 0; cut < plan.cut(); ++cut) {
      for (int y = 0; y < ceil_div(quads, 128); ++y) {
        blockIdx = {cut, y, 0};
        for (threadIdx.x = 0; threadIdx.x < 128; ++threadIdx.x) {
          k_scales::reduce_parts<kGroups>(p, Played::kTokens, Played::kChannels);
        }
      }
    }
  }
  blockIdx = {};
  const int wrong = count_wrong(product, d);
  if (wrong == 0) return;
  std::printf(
      "M=%d N=%d K=%d G=%d%s%s, tiles of %d, %d blocks in %d, %d of %d cut in %d: %d wrong\n", m, n,
      k, product.group, product.azp ? " azp" : "", arranged ? " arranged" : "", Played::kTokens,
      plan.blocks, plan.slices, plan.cut(), plan.tiles, plan.chunks, wrong);
}

template <const Units& kTile>
void check(int m, int n, int k, int group, bool azp, bool arranged, int sms) {
  const Product product(m, n, k, group, false, azp);
  if (group == k) return play<kTile, Grouping::one>(product, arranged, sms);
  if (group % 128 == 0) return play<kTile, Grouping::of_chunks>(product, arranged, sms);
  play<kTile, Grouping::of_steps>(product, arranged, sms);
}

void check_blocks(int m, int n, int k, int clusters) {
  using Tile = k_scales::BlocksTile;
  const Product product(m, n, k, 128, true, false);
  const int stride = (k + 127) / 128 * 128;
  Aligned tokens(m * stride), weight(n * stride);
  for (int i = 0; i < m * k; ++i) tokens.data<int8_t>()[i / k * stride + i % k] = product.a[i];
  for (int i = 0; i < n * k; ++i) weight.data<int8_t>()[i / k * stride + i % k] = product.b[i];
  std::vector<float> d(m * n, 77.0f);
  k_scales::BlocksParams p{};
  p.cluster = k_scales::cluster_of(m);
  p.tokens = {tokens.data<int8_t>(), m, k, stride, 128};
  p.weight = {weight.data<int8_t>(), n, k, stride, 128 / p.cluster};
  p.m = m, p.n = n, p.chunks = ceil_div(k, 128), p.slice = product.slice() / 128;
  p.token_tiles = ceil_div(m, 128 * p.cluster);
  p.tiles = p.token_tiles * ceil_div(n, 128), p.stages = 3;
  p.row_scales = {product.row_scales.data(), DType::float32, p.chunks, 1};
  p.scales = {product.block_scales.data(), DType::float32, ceil_div(n, 128), 1};
  p.end = end_in(d, n);
  take_shared(Tile::shared_bytes(3));
  gridDim = {clusters * p.cluster, 1, 1}, blockDim = {Tile::kThreads, 1, 1};
  for (blockIdx.x = 0; blockIdx.x < gridDim.x; blockIdx.x += p.cluster) {
    played_barriers.clear();
    ::Block::run(Tile::kThreads, [&] { k_scales::multiply_blocks(p, played_shared); }, p.cluster);
  }
  if (const int wrong = count_wrong(product, d)) {
    std::printf("M=%d N=%d K=%d in blocks: %d wrong\n", m, n, k, wrong);
  }
}

}  // namespace

int main() {
  check_blocks(130, 150, 1500, 2);
  check_blocks(600, 300, 2100, 2);
  check_blocks(3, 257, 200, 1);
  const int groups[][2] = {{1088, 32},  {384, 96},  {1216, 64}, {1280, 128},  {3072, 128},
                           {2112, 96},  {300, 300}, {7, 7},     {1025, 1025}, {4096, 2048},
                           {1152, 128}, {96, 32},   {2304, 768}};
  for (const auto& [k, group] : groups) {
    check<kAlongK8>(1 + below(12), 1 + below(130), k, group, below(2), below(2), 20);
    if (k < 2000) {
      check<kAlongK32>(1 + below(40), 1 + below(70), k, group, below(2), below(2), 1 + below(2));
    }
    for (int sms : {2, 20}) {
      check<kUnits16>(1 + below(40), 1 + below(400), k, group, below(2), below(2), sms);
      check<kUnits8>(1 + below(20), 1 + below(700), k, group, below(2), below(2), sms);
    }
  }
  check<kUnits128>(150, 140, 1152, 128, true, true, 3);
  check<kUnits128>(130, 200, 2304, 128, false, true, 1);
  check<kUnits128>(40, 300, 600, 600, true, true, 2);
  check<kUnits128>(40, 100, 288, 32, true, true, 1);
  check<kUnits64>(70, 300, 1152, 128, true, false, 2);
  check<kUnits64>(70, 130, 160, 32, false, false, 1);
  std::printf("%d cases, %d faults\n", cases, faults);
  return faults != 0;
}
