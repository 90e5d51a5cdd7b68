// A CUTLASS 2.x GEMM with one of the library's epilogues: A [M, K] row-major times B [K, N], D [M,
// N] row-major; mma.sync. int8 with int32 accumulators that wrap, 16-bit floats with float32 ones.
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/device_kernel.h>
#include <cutlass/gemm/kernel/default_gemm_universal_with_visitor.h>

#include "cuda/common/device.h"
#include "cuda/cutlass2/lower.h"

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

// What is multiplied, and by which instruction: kMultistage: those of compute capability 8.0, else
// those of 7.5.
template <class T, bool kMultistage>
struct Multiplied {  // of 16-bit floats
  using Element = T;
  using LayoutB = cutlass::layout::RowMajor;
  using Accumulator = float;
  using Operator = cutlass::arch::OpMultiplyAdd;
  using ArchTag = std::conditional_t<kMultistage, cutlass::arch::Sm80, cutlass::arch::Sm75>;
  using Instruction = cutlass::gemm::GemmShape<16, 8, kMultistage ? 16 : 8>;
};
template <bool kMultistage>
struct Multiplied<int8_t, kMultistage> {
  using Element = int8_t;
  using LayoutB = cutlass::layout::ColumnMajor;
  using Accumulator = int32_t;
  using Operator = WrappingMultiplyAdd;
  using ArchTag = std::conditional_t<kMultistage, cutlass::arch::Sm80, cutlass::arch::Sm75>;
  using Instruction = std::conditional_t<kMultistage, cutlass::gemm::GemmShape<16, 8, 32>,
                                         cutlass::gemm::GemmShape<8, 8, 16>>;
};

struct GemmArguments {
  int64_t m;
  int64_t n;
  int64_t k;  // a multiple of 16 bytes, and not 0
  const void* a;
  int64_t lda;  // elements between rows; those and the first begin at multiples of 16 bytes
  const void* b;
  int64_t ldb;  // elements between columns of int8, rows of floats; as above
  const EpilogueOperand (&operands)[kNumOperands];
  DType out_dtype;
  void* d;         // without gaps
  int slices = 1;  // of K, at most; if more than one, slice s writes its D to d + s M N
};

// Tile, WarpTile: GemmShapes. kStages: of the ring in shared memory; 2 before compute capability
// 8.0, which has no cp.async. kSwizzle: width of the bands in which tiles are visited.
template <class E, class Of, class Tile, class WarpTile, int kStages, int kSwizzle>
struct Gemm {
  static constexpr int kVector = 16 / sizeof(typename Of::Element);
  // Of float32, four at a time: one map of threads serves every dtype of D.
  using ThreadMap =
      cutlass::epilogue::threadblock::OutputTileThreadLayout<Tile, WarpTile, float, 4, 1>;
  using Epilogue = StoredTree<E, ThreadMap>;
  using Kernel = typename cutlass::gemm::kernel::DefaultGemmWithVisitor<
      typename Of::Element, cutlass::layout::RowMajor, cutlass::ComplexTransform::kNone, kVector,
      typename Of::Element, typename Of::LayoutB, cutlass::ComplexTransform::kNone, kVector, float,
      cutlass::layout::RowMajor, 4, typename Of::Accumulator, float, cutlass::arch::OpClassTensorOp,
      typename Of::ArchTag, Tile, WarpTile, typename Of::Instruction, typename Epilogue::type,
      cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<kSwizzle>, kStages,
      typename Of::Operator>::GemmKernel;
  static constexpr int kSharedBytes = sizeof(typename Kernel::SharedStorage);

  // Returns the number of slices that K was cut into.
  static int run(const GemmArguments& args, const Scope& scope) {
    const int64_t columns = args.n / epilogue::columns_of<E>;
    const StoreArguments to{{args.d, args.out_dtype, columns % (4 / epilogue::columns_of<E>) == 0},
                            columns,
                            args.slices > 1 ? args.m * columns : 0};
    const typename Kernel::Arguments all(
        cutlass::gemm::GemmUniversalMode::kGemm,
        {static_cast<int>(args.m), static_cast<int>(args.n), static_cast<int>(args.k)}, args.slices,
        Epilogue::arguments(args.operands, to), args.a, args.b, nullptr, nullptr, 0, 0, 0, 0,
        args.lda, args.ldb, 0, 0);
    // Not by CUTLASS's device::GemmUniversalBase, which prepares a semaphore for slices.
    const typename Kernel::Params params(all, scope.device.sms, 1);
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
