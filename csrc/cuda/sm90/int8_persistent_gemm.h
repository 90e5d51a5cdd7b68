// The CUTLASS kernel of a persistent line of int8.table.
#pragma once

// wgmma of 160 and 224 columns:
#define CUTE_SM90_EXTENDED_MMA_SHAPES_ENABLED
// The kernel waits for the one before where it reads:
#define CUTLASS_ENABLE_GDC_FOR_SM90 1

#include "cuda/cutlass3/gemm.h"
#include "cuda/sm90/arch.h"

namespace scaled_mm::cuda::sm90::int8 {

template <const Persistent& kTile, class E, class Out, class C = uint16_t>
using PersistentGemm = cutlass3::Gemm<
    int8_t, cutlass::layout::RowMajor, int8_t, cutlass::layout::ColumnMajor, int32_t, Out, E,
    cute::Shape<cute::Int<kTile.tile_m>, cute::Int<kTile.tile_n>, cute::Int<kTile.tile_k>>,
    cute::Shape<cute::Int<kTile.cluster_m>, cute::Int<kTile.cluster_n>, cute::_1>,
    kTile.schedule == pingpong, C>;

}  // namespace scaled_mm::cuda::sm90::int8
