// quantize_int8 and produce_int8 on the CPU: the arithmetic is in quantize_rows.h and
// produce_rows.h, here are threads.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <tuple>

#include "cpu/buffer.h"
#include "cpu/isa.h"
#include "cpu/packed.h"
#include "ops/namespace.h"
#include "ops/linear.h"

namespace scaled_mm::cpu {

void multiply(Checked<Int8Problem>& checked);  // int8.cpp
namespace {

// Rows that one thread should take at least: about 2^14 elements.
int64_t grain(const QuantizeProblem& p) {
  return std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(p.cols, 1));
}

// The range of the whole tensor: each piece of rows its own, then all of them together.
Range whole_range(const QuantizeProblem& p, const float* smooth, const InstructionSet& isa) {
  const int64_t step = grain(p), pieces = ceil_div(p.rows, step);
  std::vector<Range> ranges(static_cast<size_t>(pieces));
  torch::stable::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ranges[i] = isa.range(p, smooth, i * step, std::min((i + 1) * step, p.rows));
    }
  });
  Range whole;
  for (const Range& range : ranges) {
    whole.lo = std::min(whole.lo, range.lo);
    whole.hi = std::max(whole.hi, range.hi);
    whole.finite &= range.finite;
  }
  return whole;
}

void run(QuantizeProblem p, const float* smooth = nullptr) {
  const InstructionSet& isa = instruction_set();
  if (!p.given && !p.per_token) {  // one scale for all: make it, and go on as if it were given
    const QParams all = isa.qparams(whole_range(p, smooth, isa), p.symmetric);
    *p.scale = all.scale;
    if (p.azp) *p.azp = all.azp;
    p.given = true;
  }
  for_each_piece(p.rows, grain(p),
                 [&](int64_t begin, int64_t end) { isa.quantize(p, smooth, begin, end); });
}

std::tuple<Tensor, Tensor, std::optional<Tensor>> quantize_int8(const Tensor& x, bool symmetric,
                                                                bool per_token, int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize(x, symmetric, per_token, rotate);
  run(checked.problem);
  std::optional<Tensor> azp;
  if (!symmetric) azp = checked.outputs[2];
  return {checked.outputs[0], checked.outputs[1], azp};
}

std::tuple<Tensor, Tensor> quantize_weight_int8(const Tensor& w, bool per_channel, int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize_weight(w, per_channel, rotate);
  run(checked.problem);
  return {checked.outputs[0], checked.outputs[1]};
}

Tensor quantize_int8_static(const Tensor& x, const Tensor& scale, std::optional<Tensor> azp,
                            int64_t rotate) {
  const Checked<QuantizeProblem> checked = check_quantize_static(x, scale, azp, rotate);
  run(checked.problem);
  return checked.outputs[0];
}

void produce(const ProduceProblem& p, const Tensor&) {
  const InstructionSet& isa = instruction_set();
  for_each_piece(p.rows, grain(p), [&](int64_t begin, int64_t end) { isa.produce(p, begin, end); });
}

void linear(LinearProblem& p, const Tensor& x) {
  Buffer<char, 8192> scratch(static_cast<size_t>(p.scratch_bytes()));
  p.place(scratch.data());
  p.activation.producer == Producer::none ? run(p.activation, p.activation.smooth)
                                          : produce(p.activation, x);
  multiply(p.product);
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("quantize_int8", TORCH_BOX(&scaled_mm::cpu::quantize_int8));
  ops.impl("quantize_weight_int8", TORCH_BOX(&scaled_mm::cpu::quantize_weight_int8));
  ops.impl("quantize_int8_static", TORCH_BOX(&scaled_mm::cpu::quantize_int8_static));
  ops.impl("scaled_linear", TORCH_BOX(&scaled_mm::scaled_linear<scaled_mm::cpu::linear>));
  ops.impl("produce_int8", TORCH_BOX(&scaled_mm::produce_int8<scaled_mm::cpu::produce>));
}
