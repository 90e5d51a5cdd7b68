// The kernel that interprets a program: its launch.
#include <algorithm>
#include <bit>

#include "cuda/common/launch.cuh"
#include "cuda/epilogue/program.cuh"
#include "integers.h"

namespace scaled_mm::cuda {
namespace {

// At most so many blocks of a multiprocessor, whose registers are enough on every architecture.
constexpr int kThreads = 128, kBlocks = 8;

// A thread's slots are neighbours.
__global__ void __launch_bounds__(kThreads, kBlocks)
    interpret_program(const __grid_constant__ ProgramParams p) {
  extern __shared__ program::Slot slots[];
  launch_dependents();
  wait_for_dependencies();
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int col = static_cast<int>((blockIdx.x * blockDim.x + threadIdx.x) * kProgramColumns);
  if (col >= p.n) return;
  size_t mine = __cvta_generic_to_shared(slots + thread * p.slots);
  asm volatile("" : "+l"(mine));  // it stays in a register, where every step would make it again
  program::Thread(p, static_cast<program::Slot*>(__cvta_shared_to_generic(mine)), col)
      .run(blockIdx.y * blockDim.y * kProgramRows, threadIdx.y * kProgramRows,
           gridDim.y * blockDim.y * kProgramRows);
}

}  // namespace

void interpret(const ProgramParams& p, const Scope& scope) {
  allow_all_shared_memory<interpret_program>(scope.device);
  const int thread_bytes = p.slots * static_cast<int>(sizeof(program::Slot));
  unsigned threads = kThreads;
  while (static_cast<int>(threads) * thread_bytes > scope.device.shared_memory) threads /= 2;
  const int64_t groups = ceil_div(p.n, int64_t{kProgramColumns});
  const unsigned x = std::min(threads, std::bit_ceil(static_cast<unsigned>(groups)));
  const unsigned y = threads / x;
  const int64_t columns = ceil_div(groups, int64_t{x});
  const int64_t rows = ceil_div(p.m, int64_t{y * kProgramRows});
  const int block_bytes = static_cast<int>(threads) * thread_bytes + 1024;
  const int resident =
      scope.device.sms * std::clamp(scope.device.shared_memory / block_bytes, 1, kBlocks);
  const int64_t strips = std::clamp<int64_t>(resident / columns, 1, std::min<int64_t>(rows, 65535));
  launch_early(interpret_program,
               {{static_cast<unsigned>(columns), static_cast<unsigned>(strips)},
                {x, y},
                static_cast<int>(threads) * thread_bytes},
               scope, p);
}

}  // namespace scaled_mm::cuda
