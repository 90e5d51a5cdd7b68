// D = X W + bias, W from packed AWQ words (docs/lowbit.md, "The packed form").
#pragma once

#include <cuda.h>
#include <cutlass/arch/barrier.h>
#include <cutlass/arch/reg_reconfig.h>

#include <algorithm>
#include <cute/arch/copy_sm90_tma.hpp>
#include <cute/arch/mma_sm90.hpp>
#include <type_traits>
#include <utility>

#include "cuda/common/convert.cuh"
#include "cuda/common/formats.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/sm90/wgmma.cuh"

namespace scaled_mm::cuda::sm90::lowbit::packed {

using Full = cutlass::arch::ClusterTransactionBarrier;
using Empty = cutlass::arch::ClusterBarrier;

inline constexpr int kPanel = 64;    // channels of a unit
inline constexpr int kDepth = 128;   // rows of a unit
inline constexpr int kSteps = kDepth / 16;
inline constexpr int kWordBytes = kPanel * kDepth / 2;
constexpr int set_bytes() { return kPanel * 2 + kPanel / 2; }
constexpr int unit_bytes(int sets) { return kWordBytes + sets * set_bytes(); }

struct Plan {
  int blocks;
  int tiles;
  int whole;   // tiles that are not cut, a multiple of blocks
  int chunks;  // of a tile
  constexpr int cut() const { return tiles - whole; }
  int slices;  // of every tile, a cluster: then nothing below counts; or 1
  int share;   // units of every block,
  int longer;  // and one more of the first so many
  constexpr int units() const { return cut() * chunks; }
  constexpr int slots() const { return cut() ? blocks + cut() : 0; }
  constexpr int begin(int block) const { return block * share + (block < longer ? block : longer); }
  constexpr int owner(int unit) const {
    const int split = longer * (share + 1);
    return unit < split ? unit / (share + 1) : longer + (unit - split) / share;
  }
};

struct Params {
  const uint8_t* units;  // [chunks][panels] units
  CUtensorMap tokens;    // X [M, 2 K] bytes, in boxes of kTokens rows x 128
  int m;
  int n;
  int panels;
  int token_tiles;
  Plan plan;
  int stages;
  EpilogueOperand bias;
  uint16_t* d;
  float* partials;  // [slots][tokens][channels]
  int early;
};

// kTokens x (64 kTiles kGroups) channels.
template <int kTokens_, int kTiles_, int kGroups_, int kLive_, int kSets_, int kPending_ = 1,
          int kBatchSteps_ = 2 / kTiles_>
struct Tile {
  static constexpr int kTokens = kTokens_, kTiles = kTiles_, kGroups = kGroups_, kLive = kLive_;
  static constexpr int kSets = kSets_, kPending = kPending_, kBatchSteps = kBatchSteps_;
  static constexpr int kPanels = kTiles * kGroups, kChannels = kPanel * kPanels;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 128;
  static constexpr int kLaunchRegisters = std::min(65536 / kLive / kThreads / 8 * 8, 168);
  static constexpr int kLoaderRegisters = 32;
  static constexpr int kRegisters =
      std::min((kLaunchRegisters * kThreads - kLoaderRegisters * 128) / kConsumers / 8 * 8, 240);
  static constexpr int kUnitBytes = unit_bytes(kSets);
  static constexpr int kTokenBytes = kTokens * 2 * kDepth;
  static constexpr int kMaxStages = 16;
  static constexpr int kExchangeRow = kChannels + 4;  // floats of a token's sums in shared memory
  struct Barriers {
    uint64_t full[kMaxStages];
    uint64_t empty[kMaxStages];
  };
  static constexpr int shared_bytes(int stages) {
    return stages * (kPanels * kUnitBytes + kTokenBytes) + static_cast<int>(sizeof(Barriers));
  }
  static constexpr int stages(int bytes) {
    int stages = kMaxStages;
    while (stages > 2 && shared_bytes(stages) > bytes) --stages;
    return stages;
  }
};

struct Cursor {
  int stage = 0, phase = 0;
  __device__ void advance(int stages) {
    if (++stage == stages) stage = 0, phase ^= 1;
  }
};

struct Place {
  static constexpr int kBand = 16;
  int row, panel;
  template <class Tile>
  static __device__ Place of(const Params& p, int tile) {
    const int channel_tiles = p.plan.tiles / p.token_tiles;
    const int band = tile / (kBand * channel_tiles) * kBand;
    const int width = min(kBand, p.token_tiles - band);
    tile -= band * channel_tiles;
    return {(band + tile % width) * Tile::kTokens, tile / width * Tile::kPanels};
  }
};

// The calling block's work: parts of tiles, one after the other.
struct Work {
  const Plan& plan;
  int unit, end;  // of the share
  int tile, first, last;
  bool is_part;

  __device__ explicit Work(const Plan& p)
      : plan(p), tile(static_cast<int>(blockIdx.x) - static_cast<int>(gridDim.x)) {
    if (plan.slices > 1) {
      unit = static_cast<int>(blockIdx.x) % plan.slices, end = unit + 1;
    } else {
      unit = p.begin(blockIdx.x), end = p.begin(blockIdx.x + 1);
    }
  }
  __device__ bool next() {
    if (plan.slices > 1) {
      if (unit == end) return false;
      tile = static_cast<int>(blockIdx.x) / plan.slices;
      first = plan.chunks * unit / plan.slices, last = plan.chunks * (unit + 1) / plan.slices;
      is_part = true;
      unit = end;
      return true;
    }
    if (tile + static_cast<int>(gridDim.x) < plan.whole) {
      tile += gridDim.x, first = 0, last = plan.chunks, is_part = false;
      return true;
    }
    if (unit >= end) return false;
    const int cut = unit / plan.chunks;
    first = unit - cut * plan.chunks;
    last = min(plan.chunks, first + end - unit);
    unit += last - first;
    tile = plan.whole + cut;
    is_part = last - first < plan.chunks;
    return true;
  }
  __device__ int slot() const { return static_cast<int>(blockIdx.x) + tile - plan.whole; }
};

template <class Tile>
__device__ void load(const Params& p, uint8_t* tokens, uint8_t* words,
                     typename Tile::Barriers& barriers) {
  const auto once = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST);
  const auto often = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_LAST);
  const uint64_t hint = p.token_tiles == 1 ? once : often;
  const auto load_words = [&](int stage, const Place& place, int chunk) {
    uint64_t* full = &barriers.full[stage];
    const int bytes = min(Tile::kPanels, p.panels - place.panel) * Tile::kUnitBytes;
    Full::arrive_and_expect_tx(full, Tile::kTokenBytes + bytes);
    const uint8_t* from =
        p.units + (int64_t{chunk} * p.panels + place.panel) * Tile::kUnitBytes;
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint"
        " [%0], [%1], %2, [%3], %4;"
        :
        : "r"(cute::cast_smem_ptr_to_uint(words + stage * Tile::kPanels * Tile::kUnitBytes)),
          "l"(from), "r"(bytes), "r"(cute::cast_smem_ptr_to_uint(full)), "l"(hint)
        : "memory");
  };
  const auto load_tokens = [&](int stage, const Place& place, int chunk) {
    uint64_t* full = &barriers.full[stage];
    uint8_t* to = tokens + stage * Tile::kTokenBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      cute::SM90_TMA_LOAD_2D::copy(&p.tokens, full, often, to + half * Tile::kTokens * 128,
                                   chunk * 256 + half * 128, place.row);
    }
  };
  // The weight does not depend on the kernel before: as much of it as the ring holds.
  int early = 0;
  if (p.early) {
    Work work(p.plan);
#pragma unroll 1
    while (early < p.stages && work.next()) {
      const Place place = Place::of<Tile>(p, work.tile);
#pragma unroll 1
      for (int chunk = work.first; chunk < work.last && early < p.stages; ++chunk, ++early) {
        load_words(early, place, chunk);
      }
    }
  }
  wait_for_dependencies();
  Work work(p.plan);
  Cursor at{.phase = 1};
#pragma unroll 1
  while (work.next()) {
    const Place place = Place::of<Tile>(p, work.tile);
#pragma unroll 1
    for (int chunk = work.first; chunk < work.last; ++chunk) {
      if (early > 0) {
        --early;
      } else {
        Empty::wait(&barriers.empty[at.stage], at.phase);
        load_words(at.stage, place, chunk);
      }
      load_tokens(at.stage, place, chunk);
      at.advance(p.stages);
    }
  }
}

// What a lane needs of a group for its two channels of a panel.
template <class T>
struct LaneGroup {
  Pair base[2], scale;
  __device__ void read(const uint8_t* set, int warp, int g) {
    scale = *reinterpret_cast<const uint32_t*>(set + 32 * warp + 4 * g);
    base[0] = set[2 * kPanel + 8 * warp + g];
  }
  __device__ void lift() {
    const uint32_t both = __byte_perm(base[0], 0, 0x1010);
    if constexpr (std::is_same_v<T, __half>) {
      base[0] = and_or(both, 0x000f000f, 0x64006400);
      base[1] = and_or(both, 0x00f000f0, 0xd400d400);  // -(64 + z)
    } else {
      base[0] = and_or(both, 0x000f000f, 0x43004300);
      base[1] = and_or(both >> 4, 0x000f000f, 0x43004300);
    }
  }
  __device__ void weights(Pair (&w)[4], uint32_t word) const {
    Nibbles<T>::lift(word, w);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = Pairs<T>::multiply(Nibbles<T>::subtract_base(w[i], base[i % 2], i),
                                Pairs<T>::both(scale, i % 2));
    }
  }
};

template <class T, int kTokens>
__device__ void multiply_add_async(float (&sums)[kTokens / 8][4], const Pair (&w)[4],
                                   uint64_t tokens) {
  using Half = std::conditional_t<std::is_same_v<T, __half>, cute::half_t, cute::bfloat16_t>;
  using Shape = cute::Shape<cute::_64, cute::Int<kTokens>, cute::_16>;
  using Wgmma = decltype(cute::SM90::GMMA::rs_op_selector<Half, Half, float, Shape>());
  float* const d = &sums[0][0];
  [&]<size_t... I>(std::index_sequence<I...>) {
    Wgmma::fma(w[0], w[1], w[2], w[3], tokens, d[I]...);
  }(std::make_index_sequence<kTokens / 2>{});
}

template <class T, class Tile>
__device__ void multiply(float (&sums)[Tile::kTiles][Tile::kTokens / 8][4], const uint8_t* tokens,
                         const uint8_t* words, typename Tile::Barriers& barriers, int stages,
                         int chunk, int last, Cursor& at) {
  constexpr int kTiles = Tile::kTiles, kTokens = Tile::kTokens, kSets = Tile::kSets;
  constexpr int kBatchSteps = Tile::kBatchSteps;
  constexpr int kBatches = kSteps / kBatchSteps, kHalf = kBatches / 2;
  constexpr int kPending = Tile::kPending, kWeightSets = kPending == 1 ? 2 : 4;
  constexpr int kSetSteps = kSteps / kSets, kHalfSets = kSets > 1 ? kSets / 2 : 1;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int all_warps = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int warp = all_warps % 4, group_of_warps = all_warps / 4;
  const int mine = group_of_warps * kTiles * Tile::kUnitBytes;  // the warpgroup's first panel
  Pair w[kWeightSets][kBatchSteps][kTiles][4];
  uint4 now[kTiles], next[kTiles];
  LaneGroup<T> group[kTiles], next_groups[kHalfSets][kTiles];

  const auto wait = [&] {
    Full::wait(&barriers.full[at.stage], at.phase);
    asm volatile("" ::: "memory");
  };
  const auto release = [&](int stage) {
    Empty::arrive(&barriers.empty[stage]);
  };
  const auto read_half = [&](int half) {
    const uint8_t* stage = words + at.stage * Tile::kPanels * Tile::kUnitBytes + mine;
#pragma unroll
    for (int j = 0; j < kTiles; ++j) {
      const uint8_t* unit = stage + j * Tile::kUnitBytes;
      next[j] = *reinterpret_cast<const uint4*>(unit + half * (kWordBytes / 2) + warp * 512 +
                                                lane * 16);
      if (kSets == 1 && half == 1) continue;
#pragma unroll
      for (int s = 0; s < kHalfSets; ++s) {
        next_groups[s][j].read(unit + kWordBytes + (half * kHalfSets + s) * set_bytes(), warp,
                               lane / 4);
      }
    }
  };
  const auto take_half = [&] {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) now[j] = next[j];
  };
  LaneGroup<T> half_groups[kHalfSets][kTiles];
  const auto take_groups = [&](int half) {
    if (kSets == 1 && half == 1) return;
#pragma unroll
    for (int s = 0; s < kHalfSets; ++s) {
#pragma unroll
      for (int j = 0; j < kTiles; ++j) half_groups[s][j] = next_groups[s][j];
    }
  };
  const auto make_weights = [&](int batch) {
#pragma unroll
    for (int i = 0; i < kBatchSteps; ++i) {
      const int step = batch * kBatchSteps + i;
      if (step % kSetSteps == 0) {
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          group[j] = half_groups[step / kSetSteps % kHalfSets][j];
          group[j].lift();
        }
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const uint32_t of[4] = {now[j].x, now[j].y, now[j].z, now[j].w};
        group[j].weights(w[batch % kWeightSets][i][j], of[step % 4]);
      }
    }
  };
  const auto fence = [&] {
    for (auto& of_tile : sums) {
      for (auto& of_tokens : of_tile) {
        for (float& sum : of_tokens) cute::warpgroup_fence_operand(sum);
      }
    }
  };
  const auto of_step = [](uint32_t low) {
    constexpr uint64_t high = uint64_t{1} << 62 | uint64_t{1024 >> 4} << 32;
    return high | low;
  };
  int before = -1;
  const auto multiply_stage = [&](auto is_last) {
    const int stage = at.stage;
    const uint32_t x = __shfl_sync(~0u, static_cast<uint32_t>(descriptor(tokens + stage * Tile::kTokenBytes)), 0);
    fence();
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      cute::warpgroup_arrive();
#pragma unroll
      for (int i = 0; i < kBatchSteps; ++i) {
        const int step = batch * kBatchSteps + i;
#pragma unroll
        for (int j = 0; j < kTiles; ++j) {
          multiply_add_async<T, kTokens>(sums[j], w[batch % kWeightSets][i][j],
                                         of_step(x + step / 4 * (kTokens * 8) + step % 4 * 2));
        }
      }
      cute::warpgroup_commit_batch();
      cute::warpgroup_wait<kPending>();
      if (batch == kPending - 1 && before >= 0) release(before);
      if (is_last && batch == kBatches - 1) break;
      const int following = (batch + 1) % kBatches;
      if (following % kHalf == 0) {
        take_half();
        take_groups(following / kHalf);
      }
      make_weights(following);
      if (following % kHalf == 0 && !(is_last && following == kHalf)) {
        if (following == kHalf) {
          at.advance(stages);
          wait();
          read_half(0);
        } else {
          read_half(1);
        }
      }
    }
    before = stage;
    fence();
  };

  if (chunk >= last) return;
  wait();
  read_half(0);
  take_half();
  take_groups(0);
  make_weights(0);
  read_half(1);
#pragma unroll 1
  for (; chunk + 1 < last; ++chunk) multiply_stage(std::false_type{});
  multiply_stage(std::true_type{});
  cute::warpgroup_wait<0>();
  fence();
  release(before);
  at.advance(stages);
}

template <class T, class Tile>
__device__ void store_sums(const Params& p, const Work& work,
                           const float (&sums)[Tile::kTiles][Tile::kTokens / 8][4]) {
  const Place place = Place::of<Tile>(p, work.tile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = lane % 4;
  const int of_tile = thread / 128 * Tile::kTiles * kPanel + thread / 32 % 4 * 16 + lane / 4 * 2;
  float* const partial = p.partials + int64_t{work.slot()} * (Tile::kTokens * Tile::kChannels);
#pragma unroll
  for (int j = 0; j < Tile::kTiles; ++j) {
    const int in_tile = of_tile + j * kPanel, channel = place.panel * kPanel + in_tile;
    if (channel >= p.n) return;
    float bias[2] = {};
    if (p.bias.data && !work.is_part) {
      bias[0] = load_float(p.bias, 0, channel), bias[1] = load_float(p.bias, 0, channel + 1);
    }
#pragma unroll
    for (int i = 0; i < Tile::kTokens / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = 8 * i + 2 * t + e;
        if (place.row + token >= p.m) continue;
        const float x0 = sums[j][i][e], x1 = sums[j][i][e + 2];
        if (work.is_part) {
          *reinterpret_cast<float2*>(partial + token * Tile::kChannels + in_tile) = {x0, x1};
        } else {
          *reinterpret_cast<uint32_t*>(p.d + int64_t{place.row + token} * p.n + channel) =
              Format<DTypeOf<T>::value>::narrow(x0 + bias[0], x1 + bias[1]);
        }
      }
    }
  }
}

// Adds up the slices' sums of a tile through the cluster's shared memory; each block for its share
// of the tokens, in the order of the slices.
template <class T, class Tile>
__device__ void join_cluster(const Params& p, const Work& work,
                             const float (&sums)[Tile::kTiles][Tile::kTokens / 8][4],
                             float* exchange) {
  const Place place = Place::of<Tile>(p, work.tile);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, t = lane % 4;
  const int of_tile = thread / 128 * Tile::kTiles * kPanel + thread / 32 % 4 * 16 + lane / 4 * 2;
  const int tokens = min(Tile::kTokens, p.m - place.row), slices = p.plan.slices;
  asm volatile("bar.sync 1, %0;" ::"n"(Tile::kConsumers) : "memory");  // the ring is free
#pragma unroll
  for (int j = 0; j < Tile::kTiles; ++j) {
#pragma unroll
    for (int i = 0; i < Tile::kTokens / 8; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        const int token = 8 * i + 2 * t + e;
        if (token >= tokens) continue;
        *reinterpret_cast<float2*>(exchange + token * Tile::kExchangeRow + of_tile + j * kPanel) = {
            sums[j][i][e], sums[j][i][e + 2]};
      }
    }
  }
  cluster_sync();
  constexpr int kQuads = Tile::kChannels / 4;
  const int rank = static_cast<int>(blockIdx.x) % slices;
  const int first = tokens * rank / slices, last = tokens * (rank + 1) / slices;
  const uint32_t base = cute::cast_smem_ptr_to_uint(exchange);
#pragma unroll 2
  for (int i = thread; i < (last - first) * kQuads; i += Tile::kConsumers) {
    const int token = first + i / kQuads, in_tile = i % kQuads * 4;
    const int channel = place.panel * kPanel + in_tile;
    const uint32_t at = base + 4 * (token * Tile::kExchangeRow + in_tile);
    float4 sum = {};
#pragma unroll 4
    for (int s = 0; s < slices; ++s) {
      uint32_t remote;
      float4 x;
      asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(s));
      asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                   : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w)
                   : "r"(remote));
      sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    }
    if (channel >= p.n) continue;
    float x[4] = {sum.x, sum.y, sum.z, sum.w};
    if (p.bias.data) {
#pragma unroll
      for (int c = 0; c < 4; ++c) x[c] += load_float(p.bias, 0, channel + c);
    }
    const uint2 bits = {Format<DTypeOf<T>::value>::narrow(x[0], x[1]),
                        Format<DTypeOf<T>::value>::narrow(x[2], x[3])};
    *reinterpret_cast<uint2*>(p.d + int64_t{place.row + token} * p.n + channel) = bits;
  }
  cluster_sync();  // nobody leaves while others read what it has
}

template <class T, class Tile>
__global__ __launch_bounds__(Tile::kThreads, Tile::kLive) void stream_packed(
    const __grid_constant__ Params p) {
  extern __shared__ __align__(1024) uint8_t shared[];
  uint8_t* const tokens = shared;
  uint8_t* const words = tokens + p.stages * Tile::kTokenBytes;
  auto& barriers = *reinterpret_cast<typename Tile::Barriers*>(
      words + p.stages * Tile::kPanels * Tile::kUnitBytes);
  const int thread = static_cast<int>(threadIdx.x), warp = __shfl_sync(~0u, thread / 32, 0);
  if (thread == Tile::kConsumers) cute::prefetch_tma_descriptor(&p.tokens);
  if (thread == 0) {
    for (int s = 0; s < p.stages; ++s) {
      Full::init(&barriers.full[s], 1);
      Empty::init(&barriers.empty[s], Tile::kConsumers);
    }
    cutlass::arch::fence_barrier_init();
  }
  __syncthreads();
  launch_dependents();
  if (warp >= Tile::kConsumers / 32) {
    cutlass::arch::warpgroup_reg_dealloc<Tile::kLoaderRegisters>();
    if (warp > Tile::kConsumers / 32 || !cute::elect_one_sync()) return;
    load<Tile>(p, tokens, words, barriers);
  } else {
    cutlass::arch::warpgroup_reg_alloc<Tile::kRegisters>();
    wait_for_dependencies();
    Work work(p.plan);
    Cursor at;
#pragma unroll 1
    while (work.next()) {
      float sums[Tile::kTiles][Tile::kTokens / 8][4] = {};
      multiply<T, Tile>(sums, tokens, words, barriers, p.stages, work.first, work.last, at);
      if (p.plan.slices > 1) {
        join_cluster<T, Tile>(p, work, sums, reinterpret_cast<float*>(shared));
      } else {
        store_sums<T, Tile>(p, work, sums);
      }
    }
  }
}

template <class T, class Tile>
__global__ __launch_bounds__(128) void join_shares(const __grid_constant__ Params p) {
  constexpr int kQuads = Tile::kChannels / 4;
  const Plan& plan = p.plan;
  const int tile = static_cast<int>(blockIdx.x);
  const Place place = Place::of<Tile>(p, plan.whole + tile);
  const int thread = static_cast<int>(blockIdx.y * blockDim.x + threadIdx.x);
  const int token = thread / kQuads, in_tile = thread % kQuads * 4;
  const int channel = place.panel * kPanel + in_tile;
  const int first = plan.owner(tile * plan.chunks);
  const int last = plan.owner((tile + 1) * plan.chunks - 1);
  launch_dependents();
  wait_for_dependencies();
  if (first == last || place.row + token >= p.m || channel >= p.n) return;
  const float* from = p.partials + (int64_t{first + tile} * Tile::kTokens + token) * Tile::kChannels + in_tile;
  float4 sum = {};
#pragma unroll 4
  for (int i = first; i <= last; ++i) {
    const float4 x = __ldcg(reinterpret_cast<const float4*>(from));
    sum = {sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w};
    from += Tile::kTokens * Tile::kChannels;
  }
  float x[4] = {sum.x, sum.y, sum.z, sum.w};
  if (p.bias.data) {
#pragma unroll
    for (int c = 0; c < 4; ++c) x[c] += load_float(p.bias, 0, channel + c);
  }
  const uint2 bits = {Format<DTypeOf<T>::value>::narrow(x[0], x[1]),
                      Format<DTypeOf<T>::value>::narrow(x[2], x[3])};
  *reinterpret_cast<uint2*>(p.d + int64_t{place.row + token} * p.n + channel) = bits;
}

}  // namespace scaled_mm::cuda::sm90::lowbit::packed
