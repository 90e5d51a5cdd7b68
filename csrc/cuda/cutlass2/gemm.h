// A CUTLASS 2.x GEMM with one of the library's epilogues: A [M, K] int8 row-major times B [K, N]
// int8 column-major, D [M, N] row-major, int32 accumulators that wrap; mma.sync.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

#include "cuda/common/device.h"
#include "cuda/cutlass2/lower.h"
#include "problems/int8.h"

namespace scaled_mm::cuda::cutlass2 {

// The operation of an MMA whose int32 sums wrap modulo 2^32. CUTLASS has only the one that
// saturates.
struct WrappingMultiplyAdd {};

}  // namespace scaled_mm::cuda::cutlass2

namespace cutlass::arch {

using scaled_mm::cuda::cutlass2::WrappingMultiplyAdd;

template <>
struct Mma<gemm::GemmShape<16, 8, 32>, 32, int8_t, layout::RowMajor, int8_t, layout::ColumnMajor,
           int, layout::RowMajor, WrappingMultiplyAdd> {
  using Shape = gemm::GemmShape<16, 8, 32>;
  using ElementA = int8_t;
  using LayoutA = layout::RowMajor;
  using FragmentA = Array<int8_t, 16>;
  using ElementB = int8_t;
  using LayoutB = layout::ColumnMajor;
  using FragmentB = Array<int8_t, 8>;
  using ElementC = int;
  using LayoutC = layout::RowMajor;
  using FragmentC = Array<int, 4>;
  using Operator = WrappingMultiplyAdd;
  using ArchTag = Sm80;

  CUTLASS_DEVICE void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b,
                                 const FragmentC& c) const {
    const auto* const x = reinterpret_cast<const uint32_t*>(&a);
    const auto* const y = reinterpret_cast<const uint32_t*>(&b);
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  }
};

template <>
struct Mma<gemm::GemmShape<8, 8, 16>, 32, int8_t, layout::RowMajor, int8_t, layout::ColumnMajor,
           int, layout::RowMajor, WrappingMultiplyAdd> {
  using Shape = gemm::GemmShape<8, 8, 16>;
  using ElementA = int8_t;
  using LayoutA = layout::RowMajor;
  using FragmentA = Array<int8_t, 4>;
  using ElementB = int8_t;
  using LayoutB = layout::ColumnMajor;
  using FragmentB = Array<int8_t, 4>;
  using ElementC = int;
  using LayoutC = layout::RowMajor;
  using FragmentC = Array<int, 2>;
  using Operator = WrappingMultiplyAdd;
  using ArchTag = Sm75;

  CUTLASS_DEVICE void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b,
                                 const FragmentC& c) const {
    asm volatile("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
                 : "=r"(d[0]), "=r"(d[1])
                 : "r"(reinterpret_cast<const uint32_t&>(a)),
                   "r"(reinterpret_cast<const uint32_t&>(b)), "r"(c[0]), "r"(c[1]));
  }
};

}  // namespace cutlass::arch

namespace scaled_mm::cuda::cutlass2 {

// ArchTag: the oldest architecture that has the instructions. Tile, WarpTile, Instruction:
// GemmShapes. kStages: of the ring in shared memory; 2 before 8.0, which has no cp.async. kSwizzle:
// width of the bands in which tiles are visited.
template <class E, class ArchTag, class Tile, class WarpTile, class Instruction, int kStages,
          int kSwizzle>
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
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<kSwizzle>, kStages,
      WrappingMultiplyAdd>::GemmKernel;
  static constexpr int kSharedBytes = sizeof(typename Kernel::SharedStorage);

  // Rows of A and columns of B begin at multiples of 16 bytes, and K is a multiple of 16. Returns
  // the number of slices that K was cut into, at most `slices`; where that is given as more than
  // one, slice s writes its sums to d + s M N.
  static int run(const Int8Problem& p, void* d, int slices, const Scope& scope) {
    const auto [m, n, k, epilogue, out_dtype] = p.size;
    const int64_t columns = n / epilogue::columns_of<E>;
    const StoreArguments to{{d, out_dtype, columns % (4 / epilogue::columns_of<E>) == 0},
                            columns,
                            slices > 1 ? m * columns : 0};
    const typename Kernel::Arguments args(
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(m), static_cast<int>(n), static_cast<int>(k)}, slices,
        Epilogue::arguments(p.operands, to), p.a.data, p.b.plain.data, nullptr, nullptr, 0, 0, 0, 0,
        p.a.row_stride, p.b.plain.col_stride, 0, 0);
    // Not by CUTLASS's device::GemmUniversalBase, which prepares a semaphore for slices.
    const typename Kernel::Params params(args, scope.device.sms, 1);
    static OncePerDevice once;
    once(scope.device.index, [] {
      check(cudaFuncSetAttribute(cutlass::Kernel2<Kernel>,
                                 cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes),
            "cudaFuncSetAttribute");
    });
    cutlass::Kernel2<Kernel>
        <<<params.get_grid_dims(), Kernel::kThreadCount, kSharedBytes, scope.stream>>>(params);
    check(cudaGetLastError(), "CUTLASS, launch");
    return params.grid_tiled_shape.k();
  }
};

}  // namespace scaled_mm::cuda::cutlass2
