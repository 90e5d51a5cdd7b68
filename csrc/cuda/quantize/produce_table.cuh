// Activations of bfloat16 rows by a table: the function of every bfloat16 of a usual size lies in
// shared memory, written there by the function itself, so that a block with many rows computes each
// value once. What is smaller or larger is computed.
#pragma once

#include "cuda/quantize/produce_row.cuh"

namespace scaled_mm::cuda {

// The magnitudes in the table, 2^-12 to 16: 2^11 of each sign. As packed halves of a word a
// bfloat16 less the first one's bits has none of kBeyond if it is there.
constexpr uint32_t kTableFirst = 0x3980, kTableSize = 0x800, kTableBeyond = 0x7800;
constexpr int kTableFloats = 2 * kTableSize;  // positive ones, then negative ones

constexpr int kTabledThreads = 512;            // of a block with a table, at most
constexpr int kTabledHeld = 4;                 // groups of a row that a thread holds
constexpr int kMostTeams = 15;                 // of a block: each has a barrier
constexpr int64_t kElementsOfTable = 1 << 15;  // from so many of a multiprocessor on it pays

// The threads (x) of one of a block's teams (y), of whole warps.
class TeamOfBlock {
 public:
  using Exchange = Extremes[kMaxTeam / 32];
  static constexpr bool kMeets = false;  // tables are not for rows that are rotated

  __device__ int size() const { return blockDim.x; }
  __device__ int thread() const { return threadIdx.x; }

  // The range of all threads' elements, in every thread. Calls take two exchanges in turn.
  __device__ Range range(Extremes mine, Exchange& exchange, bool symmetric) const {
    mine.reduce_warp(symmetric);
    if (size() == 32) return mine.range();
    const int lane = threadIdx.x % 32;
    if (lane == 0) exchange[threadIdx.x / 32] = mine;
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.y), "r"(blockDim.x) : "memory");
    if (lane < blockDim.x / 32) mine = exchange[lane];
    mine.reduce_warp(symmetric);
    return mine.range();
  }
};

template <class A, Producer producer>
class TabledRow : public FunctionRow<A, producer> {
  using Base = FunctionRow<A, producer>;

 public:
  using Floats = float[kSumGroup];

  __device__ TabledRow(const ProduceProblem& p, const float* table) : Base(p), table_(table) {}

  static __device__ void fill(float* table) {
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    for (int i = thread; i < kTableFloats; i += blockDim.x * blockDim.y) {
      const uint32_t sign = i >= kTableSize ? 0x8000 : 0;
      table[i] = Base::function(__uint_as_float((sign | (kTableFirst + i % kTableSize)) << 16));
    }
  }

  __device__ void take(int64_t, int, const Inputs<A::dtype>& inputs, Floats& v) const {
    const auto& x = inputs.x;
    uint32_t beyond = 0;
#pragma unroll
    for (int i = 0; i < kSumGroup / 2; ++i) {
      const uint32_t from = x.word[i] - kTableFirst * 0x10001;  // a borrow: beyond it is
      const uint32_t at = ((from << 2) & 0x1ffc1ffc) | ((from >> 2) & 0x20002000);
      beyond |= from;
      v[2 * i] = at_byte(at & 0xffff);
      v[2 * i + 1] = at_byte(at >> 16);
    }
    if (beyond & kTableBeyond * 0x10001) {
#pragma unroll
      for (int e = 0; e < kSumGroup; ++e) {
        const uint32_t bits = __float_as_uint(x[e]) >> 16, at = (bits & 0x7fff) - kTableFirst;
        v[e] = at < kTableSize ? table_[at + (bits >> 15) * kTableSize] : Base::function(x[e]);
      }
    }
    this->times_other(inputs, v);
  }

 private:
  __device__ float at_byte(uint32_t byte) const {
    return *reinterpret_cast<const float*>(reinterpret_cast<const char*>(table_) + byte);
  }

  const float* table_;
};

}  // namespace scaled_mm::cuda
