// D = epilogue(A B) around a mainloop of CUTLASS 2.x: A [M, K] row-major, B [K, N], D [M, N]
// row-major. int8 with int32 accumulators that wrap, 16-bit floats with float32 ones.
//
// CUTLASS's own epilogues go through shared memory in steps that wait for all threads, and load
// operands first then. Here every warp goes by itself, and a tile's operands are loaded into shared
// memory while the first stages are on their way (docs/mma_sync.md).
#pragma once

#include <cutlass/cutlass.h>

#include <cutlass/gemm/threadblock/default_mma.h>
#include <cutlass/gemm/threadblock/default_mma_core_sm75.h>
#include <cutlass/gemm/threadblock/default_mma_core_sm80.h>

#include "cuda/common/device.h"
#include "cuda/common/expert_rows.cuh"
#include "cuda/common/launch.cuh"
#include "cuda/cutlass2/multiplied.h"
#include "cuda/cutlass2/rows.h"
#include "cuda/epilogue/finish.cuh"
#include "cuda/lowbit/end.cuh"
#include "integers.h"

namespace scaled_mm::cuda::cutlass2 {

struct GemmArguments {
  int64_t m;
  int64_t n;
  int64_t k;  // a multiple of 16 bytes, and not 0
  const void* a;
  int64_t lda;  // elements between rows; those and the first begin at multiples of 16 bytes
  const void* b;
  int64_t ldb;  // elements between columns of int8, rows of floats; as above
  const EpilogueOperand (&operands)[kNumOperands];
  Destination to;
  int slices = 1;      // of K, at most; if more than one, slice s writes its D to to.out.d + s M N
  LowbitEnd end = {};  // of 16-bit floats, in place of `to`
};

template <class Mma>
struct GemmParams {
  int m, n, k;
  int tiles_m, tiles_n;
  int slice;  // elements of K that a slice has, a multiple of the tile's
  typename Mma::IteratorA::Params a_params;
  typename Mma::IteratorB::Params b_params;
  typename Mma::IteratorA::Pointer a;
  typename Mma::IteratorB::Pointer b;
  EpilogueOperand operands[kNumOperands];
  Destination to;
  int64_t slice_elements;  // from D of a slice to that of the next
  LowbitEnd end;
};

template <class Default, bool kRowsAlongK>
struct Mainloop {
  using type = typename Default::ThreadblockMma;
};
template <class Default>
struct Mainloop<Default, true> {
  using type = MultistageOfRows<Default>;
};

// Tile, WarpTile: GemmShapes. kStages: of the ring in shared memory; 2 before compute capability
// 8.0, which has no cp.async. kSwizzle: width of the bands in which tiles are visited.
template <class E_, class Of, class Tile_, class WarpTile_, int kStages, int kSwizzle_>
struct Gemm {
  using E = E_;
  using Tile = Tile_;
  using WarpTile = WarpTile_;
  using Element = typename Of::Element;
  using Instruction = typename Of::Instruction;
  static constexpr int kSwizzle = kSwizzle_, kVector = 16 / sizeof(Element);
  using Default = cutlass::gemm::threadblock::DefaultMma<
      Element, cutlass::layout::RowMajor, kVector, Element, typename Of::LayoutB, kVector,
      typename Of::Accumulator, cutlass::layout::RowMajor, cutlass::arch::OpClassTensorOp,
      typename Of::ArchTag, Tile, WarpTile, Instruction, kStages, typename Of::Operator>;
  // Of stages of 64 bytes a thread copies less, and CUTLASS's own are as fast or ahead.
  using Mma = typename Mainloop<Default, Of::kRowsAlongK && Tile::kK == 128>::type;
  using Params = GemmParams<Mma>;
  using Operands = StagedOperands<typename Lower<epilogue::Body<E>>::List, Tile::kM, Tile::kN>;
  struct Shared {
    typename Mma::SharedStorage ring;
    Operands operands;
  };
  static constexpr int kWarpsM = Tile::kM / WarpTile::kM;
  static constexpr int kThreads = 32 * kWarpsM * (Tile::kN / WarpTile::kN);

  // Returns the number of slices that K was cut into.
  static int run(const GemmArguments& args, const Scope& scope);
  // Of experts' rows, in at most so many tiles along M; their weights lie one below the other.
  static void run_grouped(const GemmArguments& args, const ExpertRows& groups, int64_t tiles_m,
                          const Scope& scope);

 private:
  static Params params_of(const GemmArguments& args);
};

// Of a table's line.
template <const auto& kTile, class E, class Of>
using GemmOf = Gemm<E, Of, cutlass::gemm::GemmShape<kTile.tile_m, kTile.tile_n, kTile.tile_k>,
                    cutlass::gemm::GemmShape<kTile.warp_m, kTile.warp_n, kTile.tile_k>,
                    kTile.stages, kTile.swizzle>;

// Tiles of D have rows of one expert: as many as there may be, of whatever routing.
template <class Gemm>
struct GroupedParams : Gemm::Params {
  ExpertRows groups;
  int64_t expert_stride;  // from an expert's B to the next one's
};

// --- the epilogue --------------------------------------------------------------------------------

// The sums of a warp on their way from the registers that multiplied to lanes that have four
// neighbours of a row each, and all of them the same columns in every row.
template <class Gemm>
struct WarpSums {
  using Acc = typename Gemm::Mma::FragmentC::Element;
  static constexpr int kCols = Gemm::WarpTile::kN;
  static constexpr int kPitch = kCols + 8;  // stores of two and loads of four find all banks
  // As many rows at a time as the ring, which is free by then, has room for.
  static constexpr int kBytes = Gemm::kThreads / 32 * kPitch * 4;  // of a row of every warp
  static constexpr int kRoom = sizeof(typename Gemm::Mma::SharedStorage) / kBytes;
  static constexpr int kRows = kRoom >= Gemm::WarpTile::kM       ? Gemm::WarpTile::kM
                               : kRoom >= Gemm::WarpTile::kM / 2 ? Gemm::WarpTile::kM / 2
                                                                 : 16;
  static_assert(kRoom >= kRows && kCols % 4 == 0 && kRows % 8 == 0);

  Acc of[kRows][kPitch];

  // Of row i, where D has 8 bits: it lies behind the row's sums.
  __device__ Quantizer& quantizer(int i) {
    static_assert(sizeof(Quantizer) <= (kPitch - kCols) * sizeof(Acc));
    return *reinterpret_cast<Quantizer*>(&of[i][kCols]);
  }

  // Rows [first, first + kRows) of the warp's tile.
  __device__ void put(const typename Gemm::Mma::FragmentC& sums, int first, int lane) {
    constexpr int kHeight = Gemm::Instruction::kM / 8;  // rows of a fragment that a lane has
    constexpr int kDown = Gemm::WarpTile::kM / Gemm::Instruction::kM;
    static_assert(Gemm::Instruction::kN == 8);
    struct alignas(8) Two {
      Acc x, y;
    };
#pragma unroll
    for (int i = 0; i < kRows / 8; ++i) {
      const int down = (first / 8 + i) / kHeight, height = (first / 8 + i) % kHeight;
#pragma unroll
      for (int j = 0; j < kCols / 8; ++j) {
        const int at = ((j * kDown + down) * kHeight + height) * 2;
        *reinterpret_cast<Two*>(&of[8 * i + lane / 4][8 * j + lane % 4 * 2]) = {sums[at],
                                                                                sums[at + 1]};
      }
    }
  }
};

// Where a warp's rows of a slab are in D, and a lane's four columns of each.
struct SlabPlace {
  int tile_row, tile_col;
  int row, col;  // of the tile
  int rows;      // that are there
  int inside;    // columns of D from the lane's first on
};

// The rows of a slab to D.
template <class Gemm>
__device__ __forceinline__ void store_rows(const typename Gemm::Params& p,
                                           const typename Gemm::Operands& operands,
                                           WarpSums<Gemm>& slab, const Destination& to,
                                           const SlabPlace& at, int lane) {
  using E = typename Gemm::E;
  using Acc = typename WarpSums<Gemm>::Acc;
  constexpr int kQuads = WarpSums<Gemm>::kCols / 4, kStep = 32 / kQuads;  // rows at a time
  static_assert(32 % kQuads == 0);
  constexpr bool kHasMatrix = Lower<E>::List::has_full;
  // Rows that end together; of a matrix, that are on their way together.
  constexpr int kAhead = kHasMatrix ? 8 : epilogue::has_ending<E> ? 4 : 1;
#pragma unroll(kAhead > 1 ? 1 : 2)
  for (int begin = lane / kQuads; begin < at.rows; begin += kAhead * kStep) {
    float matrix[kAhead][4];
    if constexpr (kHasMatrix) {
      load_rows<epilogue::Residual>(p.operands[static_cast<int>(Operand::residual)],
                                    at.tile_row + at.row + begin, at.rows - begin, kStep,
                                    at.tile_col + at.col, at.inside, matrix);
    }
    const int channel = at.tile_col + at.col;
    if constexpr (epilogue::has_ending<E> && !kHasMatrix) {
      float value[kAhead * 4];
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {  // D may end before the last, the slab does not
        const int i = begin + r * kStep;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          value[4 * r + e] = Lower<E>::at(slab.of[i][lane % kQuads * 4 + e], [&](auto leaf) {
            return operands.at(leaf, at.row + i, at.col + e);
          });
        }
      }
      finish_rows<E>(to, at.tile_row + at.row + begin, at.rows - begin, kStep, channel, at.inside,
                     value,
                     [&](int r) -> const Quantizer& { return slab.quantizer(begin + r * kStep); });
    } else {
#pragma unroll
      for (int r = 0; r < kAhead; ++r) {
        const int i = begin + r * kStep;
        if (i >= at.rows) break;
        const int token = at.tile_row + at.row + i;
        Acc four[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) four[e] = slab.of[i][lane % kQuads * 4 + e];
        const auto get = [&](auto leaf, int e) {
          using L = decltype(leaf);
          if constexpr (L::axis == epilogue::Axis::Full) {
            static_assert(L::id == Operand::residual);
            return matrix[r][e];
          } else {
            return operands.at(leaf, at.row + i, at.col + e);
          }
        };
        if constexpr (std::is_same_v<Acc, float>) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            four[e] = Lower<E>::at(four[e], [&](auto leaf) { return get(leaf, e); });
          }
          constexpr DType kDType = std::is_same_v<typename Gemm::Element, cutlass::half_t>
                                       ? DType::float16
                                       : DType::bfloat16;
          store_ended<kDType>(p.end, token, channel, four);
        } else {
          finish_four<E>(to, four, token, channel, at.inside, get);
        }
      }
    }
  }
}

// A warp's sums to D, whose rows end before row `end_row`.
template <class Gemm>
__device__ void store_sums(const typename Gemm::Params& p, typename Gemm::Shared& shared,
                           const typename Gemm::Mma::FragmentC& sums, const Destination& to,
                           int tile_row, int end_row, int tile_col, int warp, int lane) {
  using E = typename Gemm::E;
  using Slab = WarpSums<Gemm>;
  auto& slab = reinterpret_cast<Slab*>(&shared.ring)[warp];
  const int col = warp / Gemm::kWarpsM * Gemm::WarpTile::kN + lane % (Slab::kCols / 4) * 4;
#pragma unroll
  for (int first = 0; first < Gemm::WarpTile::kM; first += Slab::kRows) {
    if (first > 0) __syncwarp();
    const int row = warp % Gemm::kWarpsM * Gemm::WarpTile::kM + first;
    const SlabPlace at{tile_row,
                       tile_col,
                       row,
                       col,
                       min(Slab::kRows, end_row - tile_row - row),
                       p.n - tile_col - col};
    if constexpr (epilogue::is_quantised<E>) {
      for (int i = lane; i < at.rows && is_8_bit(to.out.dtype); i += 32) {
        slab.quantizer(i) = given_quantizer(
            [&](auto leaf, int) {
              constexpr int kId = static_cast<int>(decltype(leaf)::id);
              return load_operand<decltype(leaf)>(p.operands[kId], tile_row + row + i, 0);
            },
            to.symmetric);
      }
    }
    slab.put(sums, first, lane);
    __syncwarp();
    if (at.inside <= 0) continue;
    store_rows<Gemm>(p, shared.operands, slab, to, at, lane);
  }
}

// --- the kernel ----------------------------------------------------------------------------------

// Rows [row, end_row) of A, as far as the tile goes, times the tile's columns of b from `col` on,
// over [begin, end) of K. element(leaf, row): the number that a row of D has in an operand.
template <class Gemm, class Element = SameRow>
__device__ void multiply_tile(const typename Gemm::Params& p, const Destination& to,
                              typename Gemm::Mma::IteratorB::Pointer b, int row, int end_row,
                              int col, int begin, int end, const Element& element = {}) {
  using Mma = typename Gemm::Mma;
  extern __shared__ __align__(128) uint8_t memory[];
  auto& shared = *reinterpret_cast<typename Gemm::Shared*>(memory);
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int warp = __shfl_sync(~0u, thread / 32, 0);
  typename Mma::IteratorA from_a(p.a_params, p.a, {end_row, end}, thread, {row, begin});
  typename Mma::IteratorB from_b(p.b_params, b, {end, p.n}, thread, {begin, col});
  int steps = (end - begin + Mma::Shape::kK - 1) / Mma::Shape::kK;
  Mma mma(shared.ring, thread, warp, lane);
  mma.prologue(from_a, from_b, steps);
  shared.operands.load(p.operands, row, col, end_row, p.n, thread, Gemm::kThreads, element);
  mma.gmem_wait();
  typename Mma::FragmentC sums;
  sums.clear();
  mma.gemm_iters(steps, sums, from_a, from_b);
  __syncthreads();  // the ring is free: Turing's mainloop reads ahead to its end
  store_sums<Gemm>(p, shared, sums, to, row, end_row, col, warp, lane);
}

template <class Gemm>
__global__ __launch_bounds__(Gemm::kThreads,
                             1) void multiply(const __grid_constant__ typename Gemm::Params p) {
  // Bands of kSwizzle columns of tiles, down all of D: neighbours in time share operands in L2.
  const int tile = static_cast<int>(blockIdx.x), band = tile / (Gemm::kSwizzle * p.tiles_m);
  const int width = min(Gemm::kSwizzle, p.tiles_n - band * Gemm::kSwizzle);
  const int in_band = tile - band * Gemm::kSwizzle * p.tiles_m;
  const int row = in_band / width * Gemm::Tile::kM;
  const int col = (band * Gemm::kSwizzle + in_band % width) * Gemm::Tile::kN;
  const int begin = static_cast<int>(blockIdx.y) * p.slice, end = min(p.k, begin + p.slice);
  Destination to = p.to;  // of the slice of K
  if constexpr (std::is_same_v<typename Gemm::E, epilogue::Acc>) {
    to.out.d = static_cast<int32_t*>(to.out.d) + blockIdx.y * p.slice_elements;
  }
  multiply_tile<Gemm>(p, to, p.b, row, p.m, col, begin, end);
}

// An expert's tiles lie together, down its rows first: they share the weight's columns in L2.
template <class Gemm>
__global__ __launch_bounds__(Gemm::kThreads, 1) void multiply_grouped(
    const __grid_constant__ GroupedParams<Gemm> p) {
  const int thread = static_cast<int>(threadIdx.x), tile = static_cast<int>(blockIdx.x);
  const int col = tile / p.tiles_m * Gemm::Tile::kN;
  const ExpertTile place = find_tile<Gemm::Tile::kM>(p.groups, tile % p.tiles_m, thread % 32);
  if (place.expert < 0) return;
  if (place.expert == p.groups.experts) {
    return clear<typename Gemm::E>(p.to, place.row, min(place.row + Gemm::Tile::kM, place.end), col,
                                   min(Gemm::Tile::kN, p.n - col), thread, Gemm::kThreads);
  }
  multiply_tile<Gemm>(p, p.to, p.b + place.expert * p.expert_stride, place.row, place.end, col, 0,
                      p.k, ExpertElements{p.groups, place.expert});
}

template <class E, class Of, class Tile, class WarpTile, int kStages, int kSwizzle>
auto Gemm<E, Of, Tile, WarpTile, kStages, kSwizzle>::params_of(const GemmArguments& args)
    -> Params {
  const int64_t slice = round_up(ceil_div(args.k, int64_t{args.slices}), int64_t{Tile::kK});
  Params params{
      .m = static_cast<int>(args.m),
      .n = static_cast<int>(args.n),
      .k = static_cast<int>(args.k),
      .tiles_m = static_cast<int>(ceil_div(args.m, int64_t{Tile::kM})),
      .tiles_n = static_cast<int>(ceil_div(args.n, int64_t{Tile::kN})),
      .slice = static_cast<int>(slice),
      .a_params = typename Mma::IteratorA::Params(cutlass::layout::RowMajor(args.lda)),
      .b_params = typename Mma::IteratorB::Params(typename Of::LayoutB(args.ldb)),
      .a = static_cast<typename Mma::IteratorA::Pointer>(const_cast<void*>(args.a)),
      .b = static_cast<typename Mma::IteratorB::Pointer>(const_cast<void*>(args.b)),
      .operands = {},
      .to = args.to,
      .slice_elements = slice < args.k ? args.m * args.n : 0,
      .end = args.end,
  };
  std::copy(std::begin(args.operands), std::end(args.operands), params.operands);
  return params;
}

template <class E, class Of, class Tile, class WarpTile, int kStages, int kSwizzle>
int Gemm<E, Of, Tile, WarpTile, kStages, kSwizzle>::run(const GemmArguments& args,
                                                        const Scope& scope) {
  constexpr auto kKernel = multiply<Gemm>;
  const Params params = params_of(args);
  const int slices = static_cast<int>(ceil_div(args.k, int64_t{params.slice}));
  allow_all_shared_memory<kKernel>(scope.device);
  const dim3 grid(static_cast<unsigned>(int64_t{params.tiles_m} * params.tiles_n),
                  static_cast<unsigned>(slices));
  kKernel<<<grid, kThreads, sizeof(Shared), scope.stream>>>(params);
  check(cudaGetLastError(), "CUTLASS, launch");
  return slices;
}

template <class E, class Of, class Tile, class WarpTile, int kStages, int kSwizzle>
void Gemm<E, Of, Tile, WarpTile, kStages, kSwizzle>::run_grouped(const GemmArguments& args,
                                                                 const ExpertRows& groups,
                                                                 int64_t tiles_m,
                                                                 const Scope& scope) {
  constexpr auto kKernel = multiply_grouped<Gemm>;
  GroupedParams<Gemm> params{params_of(args), groups, args.n * args.ldb};
  params.tiles_m = static_cast<int>(tiles_m);
  allow_all_shared_memory<kKernel>(scope.device);
  const int64_t blocks = int64_t{params.tiles_m} * params.tiles_n;
  kKernel<<<static_cast<unsigned>(blocks), kThreads, sizeof(Shared), scope.stream>>>(params);
  check(cudaGetLastError(), "CUTLASS, launch");
}

}  // namespace scaled_mm::cuda::cutlass2
