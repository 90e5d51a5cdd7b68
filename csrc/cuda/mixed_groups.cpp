// grouped_mixed_mm on CUDA: problem -> kernel -> launch. Nothing waits for the device, so values of
// offsets, rows and order are not refused: what names nothing stands for the nearest.
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "cuda/common/alignment.h"
#include "cuda/grouped.h"
#include "cuda/lowbit.h"
#include "dispatch/choose.h"
#include "ops/grouped.h"
#include "ops/namespace.h"
#include "refuse.h"

namespace scaled_mm::cuda {
namespace {

// p.product.w.n is a multiple of 8.
void multiply(GroupedLowbitProblem& p, const Scope& scope) {
  LowbitProblem& product = p.product;
  if (product.order) {
    product.x = arrange_rows(p, scope);
    product.order = p.rows = nullptr;
    p.x_rows = product.m;
  } else {
    product.x = aligned_rows(product.x, p.x_rows, product.w.k, scope);
  }
  if (product.w.packing != Packing::units) return multiply_words(p, scope);
  const auto* const kernel = choose<GroupedLowbitProblem>(p.size(), scope.device);
  if (!kernel) refuse_size<GroupedLowbitProblem>(p.size(), scope.device);
  kernel->run(p, scope);
}

void run(Checked<GroupedLowbitProblem>& checked, const Tensor& x) {
  GroupedLowbitProblem& p = checked.problem;
  LowbitProblem& all = p.product;
  if (all.m == 0 || all.w.n == 0) return;
  must_fit("x", "rows", std::max(all.m, p.x_rows));
  must_fit("packed", "columns", all.w.padded_n());
  must_fit("packed", "experts", p.experts + 2);
  must_fit("x", "bytes in a row", 2 * all.w.k);
  if (p.x_rows == 0) refuse("rows", "be empty, as x has no rows", std::to_string(all.m));
  const Scope scope(checked.outputs[0]);
  if (all.x.col_stride != 1 && all.w.k > 1 && !all.order) {
    const Tensor& copy = checked.inputs.emplace_back(row_major_copy(x));
    all.x = {static_cast<const uint16_t*>(copy.const_data_ptr()), all.w.k, 1};
  }
  with_padded_rows(all.d, all.m, all.out_columns(), scope, [&](uint16_t* d, int64_t ldd) {
    GroupedLowbitProblem padded = p;
    padded.product.w.n = all.w.padded_n();
    padded.product.d = d;
    padded.product.ldd = ldd;
    align_residual(padded.product, scope);
    multiply(padded, scope);
  });
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("grouped_mixed_mm", TORCH_BOX(&scaled_mm::grouped_mixed_mm<scaled_mm::cuda::run>));
}
