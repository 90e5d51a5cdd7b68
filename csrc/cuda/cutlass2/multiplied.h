// What CUTLASS 2.x multiplies for us, and by which instruction (mma.sync).
#pragma once

#include <cutlass/cutlass.h>
#include <cutlass/gemm/warp/default_mma_tensor_op.h>

#include <cstdint>
#include <type_traits>

namespace scaled_mm::cuda::cutlass2 {

// The operation of an MMA whose int32 sums wrap modulo 2^32. CUTLASS has only the one that
// saturates.
struct WrappingMultiplyAdd {};

}  // namespace scaled_mm::cuda::cutlass2

namespace cutlass::arch {

using scaled_mm::cuda::cutlass2::WrappingMultiplyAdd;

// What CUTLASS asks such an MMA, of A row-major and B column-major.
template <class Shape_, class ArchTag_>
struct WrappingMma {
  using Shape = Shape_;
  using ElementA = int8_t;
  using LayoutA = layout::RowMajor;
  using FragmentA = Array<int8_t, Shape::kM * Shape::kK / 32>;
  using ElementB = int8_t;
  using LayoutB = layout::ColumnMajor;
  using FragmentB = Array<int8_t, Shape::kK * Shape::kN / 32>;
  using ElementC = int;
  using LayoutC = layout::RowMajor;
  using FragmentC = Array<int, Shape::kM * Shape::kN / 32>;
  using Operator = WrappingMultiplyAdd;
  using ArchTag = ArchTag_;
};

template <>
struct Mma<gemm::GemmShape<16, 8, 32>, 32, int8_t, layout::RowMajor, int8_t, layout::ColumnMajor,
           int, layout::RowMajor, WrappingMultiplyAdd>
    : WrappingMma<gemm::GemmShape<16, 8, 32>, Sm80> {
  CUTLASS_DEVICE void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b,
                                 const FragmentC& c) const {
    const auto* const x = reinterpret_cast<const uint32_t*>(&a);
    const auto* const y = reinterpret_cast<const uint32_t*>(&b);
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%10, %11, %12, %13};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(c[0]), "r"(c[1]),
          "r"(c[2]), "r"(c[3]));
  }
};

template <>
struct Mma<gemm::GemmShape<8, 8, 16>, 32, int8_t, layout::RowMajor, int8_t, layout::ColumnMajor,
           int, layout::RowMajor, WrappingMultiplyAdd>
    : WrappingMma<gemm::GemmShape<8, 8, 16>, Sm75> {
  CUTLASS_DEVICE void operator()(FragmentC& d, const FragmentA& a, const FragmentB& b,
                                 const FragmentC& c) const {
    asm("mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%2}, {%3}, {%4, %5};"
        : "=r"(d[0]), "=r"(d[1])
        : "r"(reinterpret_cast<const uint32_t&>(a)), "r"(reinterpret_cast<const uint32_t&>(b)),
          "r"(c[0]), "r"(c[1]));
  }
};

}  // namespace cutlass::arch

namespace scaled_mm::cuda::cutlass2 {

// What is multiplied, and by which instruction. kMultistage: those of compute capability 8.0, else
// those of 7.5.
template <class T, bool kMultistage>
struct Multiplied {  // of 16-bit floats
  using Element = T;
  using LayoutB = cutlass::layout::RowMajor;
  using Accumulator = float;
  using Operator = cutlass::arch::OpMultiplyAdd;
  using ArchTag = std::conditional_t<kMultistage, cutlass::arch::Sm80, cutlass::arch::Sm75>;
  using Instruction = cutlass::gemm::GemmShape<16, 8, kMultistage ? 16 : 8>;
  static constexpr bool kRowsAlongK = false;
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
  static constexpr bool kRowsAlongK = kMultistage;  // both operands, read by rows.h
};

}  // namespace scaled_mm::cuda::cutlass2
