// Plays the endings of programs that were written out (scaled_mm/compiled/source.py), as a
// streaming kernel calls them, behind an op as epilogue_mm is. The test writes endings.h: each in a
// namespace of its own, and PROGRAMS.
#define SCALED_MM_COMPILED
#include "cuda_runtime.h"

#include <torch/csrc/stable/library.h>

#include "cuda/epilogue/compiled.cuh"
#include "problems/program.h"

#include "endings.h"

namespace scaled_mm {

int64_t packed_weight_bytes(int64_t, int64_t) { return 0; }  // of plain weights alone

namespace {

template <class P>
void play(const ProgramProblem& problem, const std::vector<int32_t>& sums, int64_t m, int64_t n) {
  cuda::CompiledOperands<P::kOperands> operands;
  cuda::CompiledDestination<P> to;
  for (int i = 0; i < P::kOperands; ++i) operands.all[i] = problem.program.leaves[i].operand;
  for (int i = 0; i < to.kOutputs; ++i) to.d[i] = problem.program.outputs[i].d;
  to.ldd = n / P::kColumns;
  to.vectors = to.ldd % (4 / P::kColumns) == 0;
  constexpr int kRows = 8, kCols = 64;
  cuda::StagedOperands<typename P::Staged, kRows, kCols> staged;
  for (int64_t row = 0; row < m; row += kRows) {
    for (int64_t col = 0; col < n; col += kCols) {
      for (int i = 0; i < 16; ++i) staged.load(operands, row, col, m, n, i, 16);
      for (int64_t token = row; token < std::min(m, row + kRows); ++token) {
        for (int64_t channel = col; channel < std::min(n, col + kCols); channel += 4) {
          const int inside = static_cast<int>(n - channel);
          int32_t acc[4] = {};
          for (int e = 0; e < std::min(inside, 4); ++e) acc[e] = sums[token * n + channel + e];
          cuda::finish_four(to, operands, acc, token, channel, inside, [&](auto leaf, int e) {
            return staged.at(leaf, static_cast<int>(token - row),
                             static_cast<int>(channel - col) + e);
          });
        }
      }
    }
  }
}

std::vector<Tensor> epilogue_mm(const Tensor& a, const Tensor& b, std::vector<Tensor> operands,
                                std::vector<int64_t> program, int64_t number) {
  const Checked<ProgramProblem> checked =
      check_epilogue_mm(a, b, operands, program, std::nullopt, false);
  const Int8Problem& product = checked.problem.product;
  const auto [m, n, k] = std::tuple(product.size.m, product.size.n, product.size.k);
  std::vector<int32_t> sums(m * n);
  const auto at = [](const Matrix<const int8_t>& x, int64_t i, int64_t j) {
    return int32_t{x.data[i * x.row_stride + j * x.col_stride]};
  };
  for (int64_t i = 0; i < m * n * k; ++i) {
    const int64_t row = i / k / n, col = i / k % n;
    sums[i / k] += at(product.a, row, i % k) * at(product.b.plain, i % k, col);
  }
  switch (number) {
#define PROGRAM(number) \
  case number: play<program##number::Ending>(checked.problem, sums, m, n); break;
    PROGRAMS
#undef PROGRAM
  }
  return checked.outputs;
}

}  // namespace
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY(scaled_mm_compiled, ops) {
  ops.def(
      "epilogue_mm(Tensor a, Tensor b, Tensor[] operands, int[] program, int number) -> "
      "Tensor[]");
}
STABLE_TORCH_LIBRARY_IMPL(scaled_mm_compiled, CPU, ops) {
  ops.impl("epilogue_mm", TORCH_BOX(&scaled_mm::epilogue_mm));
}
