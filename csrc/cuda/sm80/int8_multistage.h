// A line of int8.table. setup.py compiles this once for every line, with SCALED_MM_KERNEL_NAME
// defined as its name.
#include "cuda/common/relayout.h"
#include "cuda/cutlass2/gemm.h"
#include "cuda/sm80/arch.h"
#include "epilogue/registry.h"

namespace scaled_mm::cuda::sm80::int8 {
namespace {

// A copy of rows [rows, cols], elements side by side, with zeros up to a multiple of 16, and at
// least 16 of them in all.
Matrix<const int8_t> zero_padded(const int8_t* from, int64_t row_stride, int64_t rows, int64_t cols,
                                 const Scope& scope) {
  const int64_t stride = packed_stride(cols);
  auto* const copy = scope.allocate<int8_t>(rows * stride);
  relayout({from, row_stride, 1}, rows, cols, copy, stride, scope.stream);
  return {copy, stride, 1};
}

}  // namespace

template <const Multistage& kTile>
void run(const Int8Problem& p, const Scope& scope) {
  using Tile = cutlass::gemm::GemmShape<kTile.tile_m, kTile.tile_n, kTile.tile_k>;
  using WarpTile = cutlass::gemm::GemmShape<kTile.warp_m, kTile.warp_n, kTile.tile_k>;
  using Instruction = cutlass::gemm::GemmShape<16, 8, 32>;
  Int8Problem padded = p;
  const auto [m, n, k, epilogue, out_dtype] = p.size;
  if (k % 16 || k == 0) {  // CUTLASS 2.x reads whole vectors of 16 bytes, and at least one
    padded.size.k = packed_stride(k);
    padded.a = zero_padded(p.a.data, p.a.row_stride, m, k, scope);
    const auto columns = zero_padded(p.b.plain.data, p.b.plain.col_stride, n, k, scope);
    padded.b.plain = {columns.data, 1, columns.row_stride};
  }
  epilogue::with_instance(epilogue, [&](auto e) {
    using E = typename decltype(e)::type;
    cutlass2::Int8Gemm<E, cutlass::arch::Sm80, Tile, WarpTile, Instruction, kTile.stages>::run(
        padded, scope);
  });
}

template void run<SCALED_MM_KERNEL_NAME>(const Int8Problem&, const Scope&);

}  // namespace scaled_mm::cuda::sm80::int8
