// scaled_mm and int8_mm on the CPU: problem -> instruction set -> tiling -> tasks.
#include <torch/csrc/stable/library.h>

#include "cpu/isa.h"
#include "namespace.h"

namespace scaled_mm::cpu {
namespace {

// A block of A's rows stays in a core's L2 while columns of the weight pass by: the more rows, the
// fewer times the weight is read.
Tiling choose_tiling(const Int8Problem::Size& size, const InstructionSet& isa) {
  constexpr int64_t kBlockBytes = 512 * 1024;  // half of the L2 of current server cores
  const int64_t fitting = kBlockBytes / std::max<int64_t>(size.k * isa.a_value_bytes, 1);
  return cut_rows(size.m, ceil_div(size.n, kColBlock), isa.tile_rows,
                  std::max<int64_t>(fitting, isa.tile_rows));
}

void run(Checked<Int8Problem>& checked) {
  const Int8Problem& p = checked.problem;
  const InstructionSet& isa = instruction_set();
  if (p.size.m == 0 || p.size.n == 0) return;
  const Tiling tiling = choose_tiling(p.size, isa);
  run_tasks(tiling, tiling.block_rows * kColBlock * p.size.k,
            [&](int64_t begin, int64_t end) { isa.gemm(p, tiling, begin, end); });
}

using Ops = Int8Ops<run>;

}  // namespace
}  // namespace scaled_mm::cpu

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cpu::Ops::scaled_mm));
  ops.impl("scaled_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::scaled_mm_out));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cpu::Ops::int8_mm));
  ops.impl("int8_mm.out", TORCH_BOX(&scaled_mm::cpu::Ops::int8_mm_out));
}
