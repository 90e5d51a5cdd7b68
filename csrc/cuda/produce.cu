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
#include "cuda/common/produce_row.cuh"
#include "integers.h"
#include "namespace.h"

namespace scaled_mm::cuda {
namespace {

constexpr int kMaxTeam = 512;  // threads, a power of two
constexpr int kWarpTeams = 4;  // rows of a block whose teams are warps

// The row of a team, group by group: use(group, v) with the values in v.
template <class P, int kHeld>
class Groups {
 public:
  __device__ explicit Groups(const P& producer) : producer_(producer) {
    // Loads in flight together: of more the registers would spill, from 10.0 on sooner.
#if __CUDA_ARCH__ >= 1000
    constexpr int kOfFour = 1;
#else
    constexpr int kOfFour = 4;
#endif
    constexpr int kAtOnce = kHeld == 8 ? 2 : kHeld == 4 ? kOfFour : 1;
#pragma unroll
    for (int i = 0; i < kHeld; i += kAtOnce) producer_.template load<kAtOnce>(held_ + i, i);
  }

  template <class Use>
  __device__ void each(const Use& use) {
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) use(producer_.group(i), held_[i]);
    } else {
#pragma unroll 1
      for (int i = 0; producer_.group(i) < producer_.groups(); ++i) {
        producer_.template load<1>(held_, i);
        use(producer_.group(i), held_[0]);
      }
    }
  }

  // The sum of f(v) over the row, in the contract's order. Without registers that hold the row the
  // team is kMaxTeam: the thread has kSlots lanes and comes round to each in turn.
  template <class F>
  __device__ float sum(const F& f, float* shared) {
    constexpr int kSlots = kHeld > 0 ? kHeld : kSumLanes / kMaxTeam;
    float slots[kSlots] = {};
    if constexpr (kHeld > 0) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) slots[i] = sum_of_group(producer_.group(i), held_[i], f);
    } else {
#pragma unroll 1
      for (int first = 0; producer_.group(first) < producer_.groups(); first += kSlots) {
#pragma unroll
        for (int i = 0; i < kSlots; ++i) {
          producer_.template load<1>(held_, first + i);
          slots[i] += sum_of_group(producer_.group(first + i), held_[0], f);
        }
      }
    }
#pragma unroll
    for (int half = kSlots / 2; half > 0; half /= 2) {
#pragma unroll
      for (int i = 0; i < half; ++i) slots[i] += slots[i + half];
    }
    return sum_of_team(slots[0], shared);
  }

 private:
  template <class F>
  __device__ float sum_of_group(int group, const float (&v)[kSumGroup], const F& f) const {
    float term[kSumGroup];
#pragma unroll
    for (int e = 0; e < kSumGroup; ++e) term[e] = f(v[e]);
    producer_.clear_beyond(group, term);
    return ((term[0] + term[4]) + (term[2] + term[6])) +
           ((term[1] + term[5]) + (term[3] + term[7]));
  }

  const P& producer_;
  float held_[kHeld > 0 ? kHeld : 1][kSumGroup];
};

template <Producer producer, DType dtype, int kHeld>
__global__ void __launch_bounds__(kMaxTeam) produce_rows(const ProduceProblem p) {
  __shared__ float sums[2][kMaxTeam];
  __shared__ Range ranges[kMaxTeam / 32];
  wait_for_dependencies();
  launch_dependents();  // not before: the next kernel's blocks would crowd the one before this one
  const int64_t index = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (index >= p.rows) return;
  using P = typename RowOf<(kHeld > 0), dtype, producer>::type;
  const P from(p, index);
  Groups<P, kHeld> row(from);
  const auto finish = from.finisher(row, sums);

  Range range;
  if (!p.given) {
    Extremes extremes;
    row.each([&](int group, float (&v)[kSumGroup]) {
      finish(group, v);
      from.clear_beyond(group, v);
      extremes.extend(v, p.symmetric);
    });
    range = range_of_team(extremes.range(), ranges);
  } else if (kHeld > 0) {
    row.each([&](int group, float (&v)[kSumGroup]) { finish(group, v); });
  }
  const Quantizer by = from.quantizer(range);
  row.each([&](int group, float (&v)[kSumGroup]) {
    if (kHeld == 0) finish(group, v);
    from.store(group, v, by);
  });
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

struct Teams {
  int threads;  // of a row
  int held;     // groups that a thread holds; 0: more than it can
};

// Few rows get as many threads as they have groups, many rows about four groups to a thread.
Teams teams_for(const ProduceProblem& p, int sms) {
  const int64_t groups = ceil_div(p.cols, kSumGroup);
  if (groups > 8 * kMaxTeam || !is_aligned(p)) return {kMaxTeam, 0};
  const int most = p.rows > 2 * sms ? 4 : 1;
  int threads = 32;
  while (threads < kMaxTeam && int64_t{threads} * most < groups) threads *= 2;
  const int64_t each = ceil_div(groups, threads);
  if (each > 4 && p.x_dtype == DType::float32) return {kMaxTeam, 0};  // their registers would spill
  return {threads, each <= 1 ? 1 : each <= 4 ? 4 : 8};
}

template <Producer producer, DType dtype>
void launch(const ProduceProblem& p, const Scope& scope) {
  const Teams teams = teams_for(p, scope.device.sms);
  LaunchShape shape;
  shape.block = dim3(teams.threads, teams.threads == 32 ? kWarpTeams : 1);
  shape.grid = dim3(static_cast<unsigned>(ceil_div(p.rows, shape.block.y)));
  switch (teams.held) {
    case 1: return launch_early(produce_rows<producer, dtype, 1>, shape, scope, p);
    case 4: return launch_early(produce_rows<producer, dtype, 4>, shape, scope, p);
    case 8:
      if constexpr (dtype != DType::float32) {
        return launch_early(produce_rows<producer, dtype, 8>, shape, scope, p);
      }
      break;
    default: break;
  }
  launch_early(produce_rows<producer, dtype, 0>, shape, scope, p);
}

void run(const ProduceProblem& p, const Tensor& q) {
  if (p.rows == 0 || (p.given && p.cols == 0)) return;
  must_fit("x", "rows", p.rows);
  must_fit("x", "columns", p.cols);
  const Scope scope(q);
  with_producer(p.producer, [&](auto producer) {
    with_dtype(p.x_dtype, [&](auto dtype) { launch<producer, dtype>(p, scope); });
  });
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("produce_int8", TORCH_BOX(&scaled_mm::produce_int8<scaled_mm::cuda::run>));
}
