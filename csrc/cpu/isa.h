// What an instruction set provides, and which one runs. Each isa_*.cpp fills one InstructionSet;
// isa.cpp lists them, best first. The choice depends on the machine alone, not on a problem, and
// holds for all ops: so these are no lines of dispatch/kernel.h.
#pragma once

#include <cstdint>

#include "cpu/tiling.h"
#include "dispatch/setting.h"
#include "problems/groups.h"
#include "problems/k_scales.h"
#include "problems/int8.h"
#include "problems/lowbit.h"
#include "problems/produce.h"
#include "problems/quantize.h"

namespace scaled_mm::cpu {

// The columns of B that a task of the int8 product computes. A multiple of the panel width
// (packed.h).
inline constexpr int kColBlock = 64;

// Those of a product whose scales change along K: of a block, and of a cache line of words.
inline constexpr int kKScalesCols = 128;
inline constexpr int64_t kSpanRows = 1024;  // of K, at most, that it walks at a time

// The columns of a task of a lowbit product: of 4 bits a cache line of each row's words.
inline constexpr int kLowbitCols = 128;

// The range of some elements of x: what a scale is made from.
struct Range {
  float lo = 0.0f;  // min(0, min x), or 0 for a symmetric quantiser
  float hi = 0.0f;  // max(0, max x), or max |x|
  bool finite = true;
};

struct QParams {
  float scale;
  int32_t azp;
};

struct InstructionSet {
  const char* name;
  bool (*available)();
  int tile_rows;      // rows that are computed at a time, at most
  int a_value_bytes;  // bytes that a value of A takes while it is multiplied

  // Runs tasks [begin, end) of the product.
  void (*gemm)(const Int8Problem& p, const Tiling& tiling, int64_t begin, int64_t end);
  // The same of the epilogue alone, over sums that stand in memory (Int8Problem::acc).
  void (*finish)(const Int8Problem& p, const Tiling& tiling, int64_t begin, int64_t end);
  // Quantises rows [begin, end), by the scales given or by each row's own, which it writes.
  // Rows are multiplied by `smooth` [cols] first, where it is given.
  void (*quantize)(const QuantizeProblem& p, const float* smooth, int64_t begin, int64_t end);
  // For one scale per tensor: the range of rows [begin, end), and what the whole range makes.
  Range (*range)(const QuantizeProblem& p, const float* smooth, int64_t begin, int64_t end);
  QParams (*qparams)(const Range& range, bool symmetric);
  // Produces and quantises rows [begin, end).
  void (*produce)(const ProduceProblem& p, int64_t begin, int64_t end);

  // Writes rows [begin, end) of the dequantised weight.
  void (*lowbit_dequantize)(const LowbitProblem& p, int64_t begin, int64_t end);
  // Writes rows [begin, end) of X', K columns each: x in the weight's order, pre-scaled.
  void (*lowbit_prepare)(const LowbitProblem& p, uint16_t* to, int64_t begin, int64_t end);
  // Runs tasks [begin, end) of the product, numbered row block by row block; x is X' already.
  void (*lowbit_gemm)(const LowbitProblem& p, const Tiling& tiling, int64_t begin, int64_t end);

  // Runs tasks [begin, end) of a product whose scales change along K.
  void (*k_scales_gemm)(const KScalesProblem& p, const Tiling& tiling, int64_t begin, int64_t end);

  // Sums the parts of tokens [begin, end).
  void (*combine)(const CombinedTokens& p, int64_t begin, int64_t end);
};

// The instruction set in use: SCALED_MM_CPU_ISA, or the best that this machine runs. Throws
// std::invalid_argument where the variable names none that it runs.
const InstructionSet& instruction_set();
Setting& forced_isa();

// "avx2 portable": those that this machine runs, best first.
std::string list_isas();

extern const InstructionSet amx_int8_isa, avx512_bf16_isa, avx512_vnni_isa, avx_vnni_isa, avx2_isa,
    portable_isa;

}  // namespace scaled_mm::cpu
