// _widen on the CPU: what cuda/common/convert.cuh does with bits, said plainly.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/headeronly/util/BFloat16.h>
#include <torch/headeronly/util/Half.h>

#include "ops/namespace.h"
#include "problems/widen.h"

namespace scaled_mm::cpu {
namespace {

using torch::headeronly::BFloat16;
using torch::headeronly::Half;

// Two's complement with its top bit flipped is the value with 128 added.
template <class T>
void widen_words(const WidenProblem& p, int64_t begin, int64_t end) {
  const int bits = static_cast<int>(p.bits), lanes = 32 / bits;
  const uint32_t flipped = p.is_signed && bits == 8 ? 0x80808080 : 0;
  const int added = p.is_signed ? 1 << (bits - 1) : 0;
  for (int64_t i = begin; i < end; ++i) {
    for (int lane = 0; lane < lanes; ++lane) {
      const uint32_t stored = (p.words[i] ^ flipped) >> bits * lane & ((1u << bits) - 1);
      p.d[i * lanes + lane] = T(static_cast<float>(static_cast<int>(stored) - added)).x;
    }
  }
}

Tensor widen(const Tensor& words, int64_t bits, bool is_signed, ScalarType dtype) {
  const Checked<WidenProblem> checked = check_widen(words, bits, is_signed, dtype);
  const WidenProblem& p = checked.problem;
  const auto run = p.dtype == DType::float16 ? widen_words<Half> : widen_words<BFloat16>;
  torch::stable::parallel_for(0, p.count, 1 << 14,
                              [&](int64_t begin, int64_t end) { run(p, begin, end); });
  return checked.outputs[0];
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("_widen", TORCH_BOX(&scaled_mm::cpu::widen));
}
