// produce_int8 on the GPU: a function of the row's inputs in front of the quantiser
// (docs/numerics.md, section 6). One kernel; what a producer does to a row is a type.
//
// A team of threads has a row, in groups of eight columns: thread t groups t, t + team, ... Up to
// kHeld of them stay in registers as float32 from the first read to the last write, so that the
// inputs are read once. Of longer rows, and of rows that do not begin at multiples of 16 bytes,
// every group is made anew whenever it is needed (kHeld = 0).
#include <torch/csrc/stable/library.h>

#include <algorithm>

#include "cuda/common/device.h"
#include "cuda/common/launch.cuh"
#include "cuda/quantize/produce_team_row.cuh"
#include "integers.h"
#include "ops/namespace.h"
#include "refuse.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kWarpTeams = 4;      // rows of a block whose teams are warps
constexpr int kLeastOfBlock = 64;  // groups of a block in a cluster
constexpr int kManyGroups = 1024;  // to a multiprocessor: from here on a thread holds several
constexpr int kFewRows = 4;        // to a multiprocessor
constexpr int kFewElements = 1 << 15;
// A team looks for groups up to a sum's lanes beyond the row, and counts columns in 32 bits.
constexpr int64_t kMostColumns = (int64_t{1} << 31) - kSumLanes * kSumGroup;

static_assert(sizeof(Exchange) + 1024 <= kSmallBlock);

// What a team does to its row, once it has the inputs.
template <Producer producer, class P, class A, class T>
__device__ __forceinline__ void quantize_row(const ProduceProblem& p, const P& from, const T& team,
                                             typename T::Exchange& exchange, int64_t index,
                                             TeamRow<P, A, T>& row) {
  const auto finish = from.finisher(row);
  const auto change = [&](int group, float (&v)[kSumGroup]) {
    finish(group, v);
    if constexpr (is_norm(producer)) from.keep_normed(index, group, v);
    if (p.smooth) from.times_smooth(group, v);
  };
#if __CUDA_ARCH__ != 800
  if constexpr (A::kHeld > 0) row.each(change);
#else  // step by step: together, a layer norm's registers spill here, and step by step elsewhere
  if constexpr (A::kHeld > 0) {
    row.each(finish);
    if constexpr (is_norm(producer)) {
      if (p.normed) {
        row.each([&](int group, auto& v) { from.keep_normed(index, group, v); });
      }
    }
    if (p.smooth) row.each([&](int group, auto& v) { from.times_smooth(group, v); });
  }
#endif
  const auto each = [&](auto use) {
    if constexpr (A::kHeld == 0) {
      if (const int block = static_cast<int>(p.rotate)) {
        return row.all([&](int group, float (&v)[kSumGroup]) {
          if (from.has(group)) change(group, v);
          row.rotate(block, v);
          if (from.has(group)) use(group, v);
        });
      }
    }
    row.each([&](int group, float (&v)[kSumGroup]) {
      if constexpr (A::kHeld == 0) change(group, v);
      use(group, v);
    });
  };

  Extremes extremes;
  const auto extend = [&](bool symmetric) {
    each([&](int group, float (&v)[kSumGroup]) {
      from.clear_beyond(group, v);
      extremes.extend(v, symmetric);
    });
  };
  Range range;
  if (!p.given) {
    p.symmetric ? extend(true) : extend(false);
    range = team.range(extremes, exchange, p.symmetric);
  }
  const Quantizer by = from.quantizer(index, range, team.thread() == 0);
  by.with_bytes(p.given, p.symmetric, [&](const auto& bytes) {
    each([&](int group, float (&v)[kSumGroup]) { from.store(index, group, v, bytes); });
  });
}

// kClusters: a team is a cluster's blocks, in x, and its row is y.
template <Producer producer, class A, bool kClusters>
__global__ void __launch_bounds__(kMaxTeam) produce_rows(const ProduceProblem p) {
  __shared__ alignas(Exchange) uint8_t memory[sizeof(Exchange)];  // what has no initial values
  Exchange& exchange = *reinterpret_cast<Exchange*>(memory);
  using P = typename RowOf<A, producer>::type;
  const Team<kClusters> team(!p.given);
  // Of few elements, the next kernel may send for its weight before the kernel before this one has
  // ended. What this one reads of more would stand in line behind that.
  const bool is_small = !kClusters && A::kHeld == 1 && p.rows * p.cols <= kFewElements;
  if (is_small) launch_dependents();
  wait_for_dependencies();
  if (!is_small) launch_dependents();
  const int64_t index = kClusters ? blockIdx.y : int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (index >= p.rows) return;
  P from(p);
  from.keep(team.thread());
  TeamRow<P, A, Team<kClusters>> row(from, team, exchange, index);
  quantize_row<producer>(p, from, team, exchange, index, row);
}

// --- launches ----------------------------------------------------------------------------------

// Whether every group of every input is whole and begins at a multiple of 16 bytes.
bool is_aligned(const ProduceProblem& p) {
  const auto aligned = [](const void* data, int64_t row_bytes) {
    return reinterpret_cast<uintptr_t>(data) % 16 == 0 && row_bytes % 16 == 0;
  };
  const int64_t size = size_of(p.x_dtype);
  return p.cols % kSumGroup == 0 && aligned(p.x.data, p.x.row_stride * size) &&
         aligned(p.other.data, p.other.row_stride * size) && aligned(p.weight.data, 0) &&
         aligned(p.bias.data, 0) && aligned(p.smooth, 0);
}

// How the rows are shared out.
struct Teams {
  int threads;     // of a block
  int held;        // groups that a thread holds; 0: more than it can
  int blocks = 1;  // of a team: a cluster
};

bool is_wide(const ProduceProblem& p) {
  return (p.weight.data && p.weight.dtype == DType::float32) ||
         (p.bias.data && p.bias.dtype == DType::float32);
}
bool is_mixed(const ProduceProblem& p) {
  return p.weight.data && p.bias.data && p.weight.dtype != p.bias.dtype;
}

// The threads of whole warps that `each` parts of a row take, one group to a thread.
int warps_for(int64_t groups, int each) {
  return static_cast<int>(32 * ceil_div(groups, int64_t{32} * each));
}

// Few rows get as many threads as they have groups, in several blocks where a block is too slow or
// too small; many rows about four groups to a thread.
Teams teams_for(const ProduceProblem& p, const Device& device) {
  const int64_t groups = std::max<int64_t>(1, ceil_div(p.cols, kSumGroup)), sms = device.sms;
  // Rotating beside a row in registers would spill them.
  if (groups > 8 * kMaxTeam || !is_aligned(p) || is_mixed(p) || p.rotate) return {kMaxTeam, 0};
  int blocks = 1;
  while (!is_norm(p.producer) && device.launches_early && blocks < kMaxCluster &&
         groups >= 2 * blocks * kLeastOfBlock && p.rows * 2 * blocks <= sms) {
    blocks *= 2;
  }
  if (blocks > 1 && groups <= blocks * kMaxTeam) {
    return {warps_for(groups, blocks), 1, blocks};
  }
  const int most = p.rows > sms && p.rows * groups > kManyGroups * sms ? 4 : 1;
  int threads = 32;
  while (threads < kMaxTeam && int64_t{threads} * most < groups) threads *= 2;  // sums want it
  if (!is_norm(p.producer)) threads = warps_for(std::min<int64_t>(groups, threads * most), most);
  const int64_t each = ceil_div(groups, threads);
  if (each > 4 && p.x_dtype == DType::float32) return {kMaxTeam, 0};  // their registers would spill
  if (is_norm(p.producer) && threads == 32 && each == 2) return {threads, 2};
  return {threads, each <= 1 ? 1 : each <= 4 ? 4 : 8};
}

template <Producer producer, DType dtype, DType weights>
void launch(const ProduceProblem& p, const Scope& scope) {
  const Teams teams = teams_for(p, scope.device);
  LaunchShape shape;
  if (teams.blocks > 1) {
    if constexpr (!is_norm(producer)) {
      shape.block = dim3(teams.threads);
      shape.grid = dim3(teams.blocks, static_cast<unsigned>(p.rows));
      shape.cluster = dim3(teams.blocks);
      constexpr auto kKernel = produce_rows<producer, Access<dtype, weights, 1>, true>;
      run_beside_products<kKernel>(scope.device);
      return launch_early(kKernel, shape, scope, p);
    }
  }
  shape.block = dim3(teams.threads, teams.threads == 32 ? kWarpTeams : 1);
  shape.grid = dim3(static_cast<unsigned>(ceil_div(p.rows, shape.block.y)));
  const auto run = [&](auto held) {
    constexpr auto kKernel = produce_rows<producer, Access<dtype, weights, held>, false>;
    if constexpr (held == 1) run_beside_products<kKernel>(scope.device);
    launch_early(kKernel, shape, scope, p);
  };
  switch (teams.held) {
    case 1: return run(std::integral_constant<int, 1>{});
    case 2:
      if constexpr (is_norm(producer)) return run(std::integral_constant<int, 2>{});
      break;
    case 4: return run(std::integral_constant<int, 4>{});
    case 8:
      if constexpr (dtype != DType::float32) return run(std::integral_constant<int, 8>{});
      break;
    default: break;
  }
  run(std::integral_constant<int, 0>{});
}

}  // namespace

// Whether rows are few and registers hold each.
bool holds_few(const ProduceProblem& p, const Device& device) {
  return p.rows <= kFewRows * device.sms && teams_for(p, device).held > 0;
}

void produce(const ProduceProblem& p, const Scope& scope) {
  must_fit("x", "rows", p.rows);
  if (p.cols > kMostColumns) {
    refuse("x", cat("have at most ", kMostColumns, " columns on CUDA"), std::to_string(p.cols));
  }
  const auto launch_of = [&](auto producer) {
    with_dtype(p.x_dtype, [&](auto dtype) {
      if constexpr (is_norm(producer) && dtype != DType::float32) {
        if (is_wide(p)) return launch<producer, dtype, DType::float32>(p, scope);
      }
      launch<producer, dtype, dtype>(p, scope);
    });
  };
  if (p.producer == Producer::none) {
    launch_of(std::integral_constant<Producer, Producer::none>{});
  } else {
    with_producer(p.producer, launch_of);
  }
}

namespace {

void run(const ProduceProblem& p, const Tensor& q) {
  if (p.rows == 0 || (p.given && p.cols == 0)) return;
  produce(p, Scope(q));
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("produce_int8", TORCH_BOX(&scaled_mm::produce_int8<scaled_mm::cuda::run>));
}
