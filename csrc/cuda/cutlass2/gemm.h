// A CUTLASS 2.x GEMM with one of the library's epilogues: A [M, K] int8 row-major times B [K, N]
// int8 column-major, D [M, N] row-major, int32 accumulators; cp.async, mma.sync. The MMA saturates,
// which no sum of the library reaches (K <= 131071, docs/numerics.md).
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/device/gemm_universal_base.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

#include "cuda/common/device.h"
#include "cuda/cutlass2/lower.h"
#include "problems/int8.h"

namespace scaled_mm::cuda::cutlass2 {

// ArchTag: the oldest architecture that has the instructions. Tile, WarpTile, Instruction:
// GemmShapes.
template <class E, class ArchTag, class Tile, class WarpTile, class Instruction, int kStages>
struct Int8Gemm {
  // Of float32, four at a time: one map of threads serves every dtype of D.
  using ThreadMap =
      cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, WarpTile, float, 4, 1>;
  using Epilogue = StoredTree<E, ThreadMap>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      int8_t, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, 16,     //
      int8_t, cutlass::layout::ColumnMajor, cutlass::ComplexTransform::kNone, 16,  //
      float, cutlass::layout::RowMajor, 4, int32_t, float, cutlass::arch::OpClassTensorOp, ArchTag,
      Tile, WarpTile, Instruction, typename Epilogue::type,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>, kStages,
      cutlass::arch::OpMultiplyAddSaturate>::GemmKernel;
  using Gemm = cutlass::gemm::device::GemmUniversalBase<Kernel>;

  // Rows of A and columns of B begin at multiples of 16 bytes, and K is a multiple of 16.
  static void run(const Int8Problem& p, const Scope& scope) {
    const auto [m, n, k, epilogue, out_dtype] = p.size;
    const int64_t columns = p.size.out_columns();
    const StoreArguments to{{p.d, out_dtype, columns % (4 / epilogue::columns_of<E>) == 0},
                            columns};
    const typename Gemm::Arguments args(
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)}, 1,
        Epilogue::arguments(p.operands, to), p.a.data, p.b.plain.data, nullptr, nullptr, 0, 0, 0, 0,
        p.a.row_stride, p.b.plain.col_stride, 0, 0);
    Gemm gemm;
    must(gemm.initialize(args, nullptr, scope.stream), "initialize");
    must(gemm.run(scope.stream), "launch");
  }

 private:
  static void must(cutlass::Status status, const char* step) {
    if (status == cutlass::Status::kSuccess) return;
    check(cudaGetLastError(), "CUTLASS");
    throw std::runtime_error(std::string("CUTLASS, ") + step + ": " +
                             cutlassGetStatusString(status));
  }
};

}  // namespace scaled_mm::cuda::cutlass2
