// Lines of an int8.table whose tiles go through shared memory. setup.py compiles this for a few
// lines at a time, behind arch.h of their folder, with SCALED_MM_KERNEL_NAMES(X) defined as X(name)
// of each.
#include "cuda/common/relayout.h"
#include "cuda/cutlass2/gemm.h"
#include "cuda/int8.h"
#include "cuda/mma_sync/model.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::mma_sync {

// A copy of rows [rows, cols], elements side by side, with zeros up to a multiple of 16, and at
// least 16 of them in all.
inline Matrix<const int8_t> zero_padded(const int8_t* from, int64_t row_stride, int64_t rows,
                                        int64_t cols, const Scope& scope) {
  const int64_t stride = packed_stride(cols);
  auto* const copy = scope.allocate<int8_t>(rows * stride);
  relayout({from, row_stride, 1}, rows, cols, copy, stride, scope.stream);
  return {copy, stride, 1};
}

// p, with K a multiple of 16: CUTLASS 2.x reads whole vectors of 16 bytes, and at least one. And
// with strides that rows.h can multiply by.
inline Int8Problem with_whole_vectors(const Int8Problem& p, const Scope& scope) {
  const auto [m, n, k, epilogue, out_dtype, function] = p.size;
  const int64_t stride = std::max(p.a.row_stride, p.b.plain.col_stride);
  if (k % 16 == 0 && k > 0 && stride <= cutlass2::kMostRowStride) return p;
  Int8Problem padded = p;
  padded.size.k = packed_stride(k);
  padded.a = zero_padded(p.a.data, p.a.row_stride, m, k, scope);
  const auto columns = zero_padded(p.b.plain.data, p.b.plain.col_stride, n, k, scope);
  padded.b.plain = {columns.data, 1, columns.row_stride};
  return padded;
}

template <const auto& kTile, const Gpus& kGpus, class E>
int launch(const Int8Problem& p, const Destination& to, int slices, const Scope& scope) {
  using Tile = cutlass::gemm::GemmShape<kTile.tile_m, kTile.tile_n, kTile.tile_k>;
  using WarpTile = cutlass::gemm::GemmShape<kTile.warp_m, kTile.warp_n, kTile.tile_k>;
  using Gemm = cutlass2::Gemm<E, cutlass2::Multiplied<int8_t, kGpus.multistage>, Tile, WarpTile,
                              kTile.stages, kTile.swizzle>;
  static_assert(sizeof(typename Gemm::Shared) <= block_bytes(kTile));
  return Gemm::run({.m = p.size.m,
                    .n = p.size.n,
                    .k = p.size.k,
                    .a = p.a.data,
                    .lda = p.a.row_stride,
                    .b = p.b.plain.data,
                    .ldb = p.b.plain.col_stride,
                    .operands = p.operands,
                    .to = to,
                    .slices = slices},
                   scope);
}

template <const auto& kTile, const Gpus& kGpus>
void run_multistage(const Int8Problem& p, const Scope& scope) {
  static_assert(ring_bytes(kTile) > 0 && kTile.stages >= 2);
  static_assert(kGpus.multistage || kTile.stages == 2);
  const Int8Problem whole = with_whole_vectors(p, scope);
  const int slices = slices_of(kTile, whole.size, scope.device);
  if (slices > 1) {
    auto* const partials = scope.allocate<int32_t>(slices * p.size.m * p.size.n);
    const Destination to{{partials, {}, p.size.n % 4 == 0}, p.size.n, Function::none, true};
    const int made = launch<kTile, kGpus, epilogue::Acc>(whole, to, slices, scope);
    return finish_partials(partials, made, p, scope);
  }
  epilogue::with_epilogue(p.size.epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    launch<kTile, kGpus, E>(whole, destination<E>(p), 1, scope);
  });
}

}  // namespace scaled_mm::cuda::mma_sync

namespace scaled_mm::cuda::SCALED_MM_ARCH::int8 {

template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  mma_sync::run_multistage<kTile, kGpus>(p, scope);
}

#define INSTANTIATE(name) template void run<name>(const Int8Problem&, const Scope&);
SCALED_MM_KERNEL_NAMES(INSTANTIATE)
#undef INSTANTIATE

}  // namespace scaled_mm::cuda::SCALED_MM_ARCH::int8
