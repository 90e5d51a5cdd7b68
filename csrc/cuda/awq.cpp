// awq_dequantize and awq_gemm on CUDA: problem -> operands that the kernels can read -> arm.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include "cuda/awq.h"
#include "cuda/relayout.h"
#include "namespace.h"

namespace scaled_mm::cuda {
namespace {

// Rows [rows, cols], elements side by side, that begin at multiples of 16 bytes: x itself, or a
// copy that `keep` keeps.
template <class T>
void align_rows(Matrix<const T>& x, int64_t rows, int64_t cols, const Tensor& like,
                cudaStream_t stream, std::vector<Tensor>& keep) {
  constexpr int64_t kSize = sizeof(T);
  if (reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
      (rows == 1 || (kSize * x.row_stride % 16 == 0 && x.row_stride >= cols))) {
    if (rows == 1) x.row_stride = (kSize * cols + 15) / 16 * 16 / kSize;
    return;
  }
  const int64_t stride = (kSize * cols + 15) / 16 * 16;
  const Tensor& copy = keep.emplace_back(new_empty(like, {rows * stride}, ScalarType::Char));
  auto* to = static_cast<int8_t*>(copy.mutable_data_ptr());
  relayout({reinterpret_cast<const int8_t*>(x.data), kSize * x.row_stride, 1}, rows, kSize * cols,
           to, stride, stream);
  x = {reinterpret_cast<const T*>(to), stride / kSize, 1};
}

Tensor awq_dequantize(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros) {
  Checked<AwqProblem> checked = check_awq_dequantize(qweight, scales, qzeros);
  AwqWeight& w = checked.problem.w;
  const Tensor& d = checked.outputs[0];
  if (w.k == 0 || w.n == 0) return d;
  const Scope scope(d.get_device_index());
  align_rows(w.scales, w.k / w.group, w.n, d, scope.stream, checked.inputs);
  dequantize(w, checked.problem.d, false, scope.stream);
  return d;
}

// The product straight from the words.
void stream_words(AwqProblem& p, const AwqArm& arm, const Scope& scope, const Tensor& like,
                  std::vector<Tensor>& keep) {
  align_rows(p.w.q, p.w.k, p.w.n / 8, like, scope.stream, keep);
  align_rows(p.w.zeros, p.w.k / p.w.group, p.w.n / 8, like, scope.stream, keep);
  const AwqPlan plan = plan_awq(arm, {p.m, p.w.n, p.w.k, p.w.group}, scope.device.sms);
  float* partials = nullptr;
  if (const int64_t count = plan.partials() * arm.tokens * awq_channels(arm.tokens)) {
    const Tensor& room = keep.emplace_back(new_empty(like, {count}, ScalarType::Float));
    partials = static_cast<float*>(room.mutable_data_ptr());
  }
  sm90::awq_stream(p, arm.tokens, plan, partials, scope.device, scope.stream);
}

void dequantize_and_multiply(AwqProblem& p, const Scope& scope, const Tensor& like,
                             std::vector<Tensor>& keep) {
  const Tensor& dense = keep.emplace_back(new_empty(like, {p.w.k, p.w.n}, p.w.dtype));
  auto* w = static_cast<uint16_t*>(dense.mutable_data_ptr());
  constexpr int64_t kL2Share = 40'000'000;  // bytes that stay in L2 until they are read
  dequantize(p.w, w, 2 * p.w.k * p.w.n <= kL2Share, scope.stream);
  const float* bias = nullptr;
  if (p.bias.data) {
    const Tensor& wide = keep.emplace_back(new_empty(like, {p.w.n}, ScalarType::Float));
    auto* to = static_cast<float*>(wide.mutable_data_ptr());
    widen_bias(p.bias, p.w.n, to, scope.stream);
    bias = to;
  }
  sm90::dense_gemm(p, w, bias, scope.device, scope.stream);
}

Tensor awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales, const Tensor& qzeros,
                const std::optional<Tensor>& bias) {
  Checked<AwqProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias);
  AwqProblem& p = checked.problem;
  std::vector<Tensor>& keep = checked.inputs;
  const Tensor& d = checked.outputs[0];
  if (p.m == 0 || p.w.n == 0) return d;
  must_fit("x", "rows", p.m);
  must_fit("qweight", "columns, 8 to a word,", p.w.n);
  must_fit("qweight", "rows", p.w.k);
  const Scope scope(d.get_device_index());
  if (p.w.k == 0) {
    fill_with_bias(p, scope.stream);
    return d;
  }
  if (p.x.col_stride != 1 && p.w.k > 1) {
    const Tensor& copy = keep.emplace_back(torch::stable::contiguous(x));
    p.x = {static_cast<const uint16_t*>(copy.const_data_ptr()), p.w.k, 1};
  }
  align_rows(p.x, p.m, p.w.k, d, scope.stream, keep);
  align_rows(p.w.scales, p.w.k / p.w.group, p.w.n, d, scope.stream, keep);
  const AwqArm& arm = pick_awq({p.m, p.w.n, p.w.k, p.w.group}, scope.device);
  if (arm.tokens > 0) {
    stream_words(p, arm, scope, d, keep);
  } else {
    dequantize_and_multiply(p, scope, d, keep);
  }
  return d;
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("awq_dequantize", TORCH_BOX(&scaled_mm::cuda::awq_dequantize));
  ops.impl("awq_gemm", TORCH_BOX(&scaled_mm::cuda::awq_gemm));
}
