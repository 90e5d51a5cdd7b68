// Products of several experts on the CPU: one expert after the other.
#include <torch/csrc/stable/library.h>

#include <algorithm>
#include <cstring>

#include "cpu/isa.h"
#include "ops/grouped.h"
#include "ops/namespace.h"

namespace scaled_mm::cpu {

void multiply(Checked<Int8Problem>& checked);  // int8.cpp

namespace {

// The rows of x that `rows` names, one behind the other; numbers that name none stand for the
// nearest.
template <class T>
Matrix<const T> gathered(const Matrix<const T>& x, int64_t columns, const GroupedInt8Problem& p,
                         const Tensor& like, std::vector<Tensor>& copies) {
  const int64_t bytes = p.size.m * columns * static_cast<int64_t>(sizeof(T));
  auto* const to = static_cast<T*>(
      copies.emplace_back(new_empty(like, {bytes}, ScalarType::Byte)).mutable_data_ptr());
  for (int64_t m = 0; m < p.size.m; ++m) {
    const int64_t row = std::clamp<int64_t>(p.rows[m], 0, p.a_rows - 1);
    for (int64_t k = 0; k < columns; ++k) {
      to[m * columns + k] = x.data[row * x.row_stride + k * x.col_stride];
    }
  }
  return {to, columns, 1};
}

void gather(Checked<GroupedInt8Problem>& checked) {
  GroupedInt8Problem& p = checked.problem;
  const Tensor& like = checked.outputs[0];
  p.product.a = gathered(p.product.a, p.size.k, p, like, checked.inputs);
  for (const Operand id : {Operand::scale_a, Operand::azp}) {  // of four bytes each
    EpilogueOperand& operand = p.product.operands[static_cast<int>(id)];
    if (operand.data == nullptr || operand.row_stride == 0) continue;
    const Matrix<const int32_t> given{static_cast<const int32_t*>(operand.data), operand.row_stride,
                                      1};
    operand.data = gathered(given, 1, p, like, checked.inputs).data;
    operand.row_stride = 1;
  }
}

void run(Checked<GroupedInt8Problem>& checked) {
  if (checked.problem.rows && checked.problem.size.m > 0) gather(checked);
  const GroupedInt8Problem& p = checked.problem;
  const int64_t row_bytes = p.size.out_columns() * p.size.out_bytes();
  auto* const d = static_cast<char*>(p.product.d);
  int64_t begin = 0;
  for (int64_t e = 0; e < p.size.experts; ++e) {
    const int64_t end = std::clamp<int64_t>(p.offsets[e], begin, p.size.m);
    Checked<Int8Problem> expert{p.product, {}, {}};
    Int8Problem& one = expert.problem;
    one.size.m = end - begin;
    one.a.data += begin * one.a.row_stride;
    if (one.b.packed) {
      one.b.packed += e * p.expert_stride;
    } else {
      one.b.plain.data += e * p.expert_stride;
    }
    for (int i = 0; i < kNumOperands; ++i) {
      EpilogueOperand& operand = one.operands[i];
      if (operand.data == nullptr) continue;
      const auto id = static_cast<Operand>(i);
      const bool of_columns = id == Operand::scale_b || id == Operand::bias ||
                              id == Operand::azp_adj || id == Operand::azp_with_adj;
      const int64_t elements = (of_columns ? e : begin) * operand.row_stride;
      operand.data = static_cast<const char*>(operand.data) + elements * size_of(operand.dtype);
      if (of_columns) operand.row_stride = 0;
    }
    one.d = d + begin * row_bytes;
    multiply(expert);
    begin = end;
  }
  if (begin < p.size.m) std::memset(d + begin * row_bytes, 0, (p.size.m - begin) * row_bytes);
}

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("_grouped_mm", TORCH_BOX(&scaled_mm::grouped_mm<scaled_mm::cpu::run>));
}
