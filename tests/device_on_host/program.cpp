// Plays the interpreter of a program, every thread of a small grid, behind an op as epilogue_mm is.
#include "cuda_runtime.h"

#include <torch/csrc/stable/library.h>

#include "cuda/epilogue/program.cuh"

namespace scaled_mm {

int64_t packed_weight_bytes(int64_t, int64_t) { return 0; }  // of plain weights alone

namespace {

// threads: of a block, x * y of them.
void play(const cuda::ProgramParams& p, int x, int y, int strips) {
  std::vector<cuda::program::Slot> slots(x * y * p.slots);
  const int wide = x * cuda::kProgramColumns, high = y * cuda::kProgramRows;
  for (int64_t block = 0; block < p.n; block += wide) {
    for (int64_t strip = 0; strip < strips; ++strip) {
      for (int i = 0; i < x * y; ++i) {
        const int col = block + i % x * cuda::kProgramColumns;
        if (col >= p.n) continue;
        cuda::program::Thread(p, slots.data() + i * p.slots, col)
            .run(strip * high, i / x * cuda::kProgramRows, strips * high);
      }
    }
  }
}

std::vector<Tensor> epilogue_mm(const Tensor& a, const Tensor& b, std::vector<Tensor> operands,
                                std::vector<int64_t> program) {
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
  const int x = n % 3 ? 32 : 2;
  if (m > 0 && n > 0) {
    play(cuda::program_params(checked.problem.program, sums.data(), m, n), x, n % 2 ? 1 : 2,
         m % 2 ? 1 : 2);
  }
  return checked.outputs;
}

}  // namespace
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY(scaled_mm_played, ops) {
  ops.def("epilogue_mm(Tensor a, Tensor b, Tensor[] operands, int[] program) -> Tensor[]");
}
STABLE_TORCH_LIBRARY_IMPL(scaled_mm_played, CPU, ops) {
  ops.impl("epilogue_mm", TORCH_BOX(&scaled_mm::epilogue_mm));
}
