// What an instruction set provides, and which one runs. Each isa_*.cpp fills one Kernels table;
// isa.cpp lists them, best first, and picks.
#pragma once

#include <cstdint>

#include "awq_problem.h"
#include "problem.h"

namespace scaled_mm::cpu {

// How a product is cut into tasks: blocks of rows times blocks of columns, numbered row block by
// row block. A task owns its part of D alone; nothing is summed across tasks.
struct Tiling {
  int64_t block_rows = 0;
  int64_t row_blocks = 0;
  int64_t col_blocks = 0;  // of kColBlock columns
  int64_t tasks() const { return row_blocks * col_blocks; }
};

// The columns that a task computes. A multiple of the panel width (packed.h).
inline constexpr int kColBlock = 64;

// The same for awq_gemm, whose tasks are blocks of kAwqCols columns.
struct AwqTiling {
  int64_t block_rows = 0;
  int64_t row_blocks = 0;
  int64_t col_blocks = 0;
  int64_t tasks() const { return row_blocks * col_blocks; }
};

// 16 words of a row of the packed weight: a cache line.
inline constexpr int kAwqCols = 128;

// Index of an epilogue in registry.def; kRaw is int8_mm's.
inline constexpr int kRaw = -1;

// The range of some elements of x: what a scale is made from.
struct Range {
  float lo = 0.0f;  // min(0, min x), or 0 for a symmetric quantiser
  float hi = 0.0f;  // max(0, max x), or max |x|
  bool finite = true;
};

struct Quantizer {
  float scale;
  int32_t azp;
};

struct Kernels {
  const char* name;
  bool (*available)();
  int tile_rows;      // rows that are computed at a time, at most
  int a_value_bytes;  // bytes that a value of A takes while it is multiplied

  // Runs tasks [begin, end) of the product.
  void (*gemm)(const Problem& p, const Tiling& tiling, int epilogue, int64_t begin, int64_t end);
  // Quantises rows [begin, end), by the scales given or by each row's own, which it writes.
  void (*quantize)(const QuantizeProblem& p, int64_t begin, int64_t end);
  // For one scale per tensor: the range of rows [begin, end), and what the whole range makes.
  Range (*range)(const QuantizeProblem& p, int64_t begin, int64_t end);
  Quantizer (*quantizer)(const Range& range, bool symmetric);

  // Writes rows [begin, end) of the dequantised weight.
  void (*awq_dequantize)(const AwqProblem& p, int64_t begin, int64_t end);
  // Runs tasks [begin, end) of the product, numbered row block by row block.
  void (*awq_gemm)(const AwqProblem& p, const AwqTiling& tiling, int64_t begin, int64_t end);
};

// The instruction set in use: SCALED_MM_CPU_ISA, or the best that this machine runs.
const Kernels& kernels();

extern const Kernels amx_int8_kernels, avx512_vnni_kernels, avx_vnni_kernels, avx2_kernels,
    portable_kernels;

}  // namespace scaled_mm::cpu
