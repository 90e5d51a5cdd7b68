// Many rows of 16 bits, on devices with bulk copies (9.0 on): the next rows come to shared memory
// while one is quantised, or rotated (rotate_slots.cuh) and quantised, and q leaves through it.
#pragma once

#include <cstdint>

#include "cuda/common/launch.cuh"
#include "cuda/quantize/group.cuh"
#include "cuda/quantize/produce_team.cuh"
#include "cuda/quantize/quantizer.cuh"
#include "cuda/quantize/rotate_slots.cuh"

namespace scaled_mm::cuda {

constexpr int kRingColumns = 32 * kSlots * kSumGroup;  // of a warp
constexpr int kRingStages = 2;
constexpr int kRingWarps = 8;  // of a block, at most

// The quantiser of the row that a block's warps have, whose scale and zero point are written down.
__device__ inline Quantizer quantizer_of_row(const QuantizeProblem& p, int64_t row,
                                             const float (&v)[kSlots][kSumGroup],
                                             Extremes (&found)[kRingWarps]) {
  float& scale = p.scale[row * p.scale_stride];
  int32_t* const azp = p.azp ? p.azp + row * p.azp_stride : nullptr;
  if (p.given) return quantizer_given(scale, azp ? *azp : 0, p.symmetric);
  Extremes mine;
#pragma unroll
  for (int i = 0; i < kSlots; ++i) mine.extend(v[i], p.symmetric);
  mine.reduce_warp(p.symmetric);
  if (blockDim.x > 32) {
    const int warps = blockDim.x / 32, lane = threadIdx.x % 32;
    if (lane == 0) found[threadIdx.x / 32] = mine;
    __syncthreads();
    mine = lane < warps ? found[lane] : Extremes{};
    mine.reduce_warp(p.symmetric);
  }
  const Quantizer by = quantizer_of(mine.range(), p.symmetric);
  if (threadIdx.x == 0) {
    scale = by.scale;
    if (azp) *azp = by.azp;
  }
  return by;
}

// A warp's part of a block's shared memory: rows to come, and q of the last one.
struct alignas(128) RingPart {
  uint8_t in[kRingStages][kRingColumns * 2];
  uint8_t out[kRingColumns];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
__device__ inline uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// One thread's copies of multiples of 16 bytes. `full` counts those that came in.
class BulkCopies {
 public:
  __device__ explicit BulkCopies(uint64_t& full) : full_(shared_address(&full)) {}
  __device__ void init() const {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full_));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __device__ void load(void* to, const void* from, int bytes) const {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(full_), "r"(bytes)
                 : "memory");
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(full_)
        : "memory");
  }
  __device__ void wait(int parity) const {
    asm volatile(
        "{\n"
        ".reg .pred there;\n"
        "again: mbarrier.try_wait.parity.shared::cta.b64 there, [%0], %1;\n"
        "@!there bra again;\n"
        "}" ::"r"(full_),
        "r"(parity)
        : "memory");
  }
  static __device__ void store(void* to, const void* from, int bytes) {
    asm volatile(
        "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
        "cp.async.bulk.commit_group;" ::"l"(to),
        "r"(shared_address(from)), "r"(bytes)
        : "memory");
  }
  // Until what was stored has been read.
  static __device__ void wait_for_stores() {
    asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
  }

 private:
  uint32_t full_;
};
#endif

// A block has a row at a time, a warp of it a unit. Rows begin at multiples of 16 bytes, as q does.
// kBlock: columns of a block that is rotated; 1: none is.
template <DType dtype, int kBlock>
__global__ void __launch_bounds__(32 * kRingWarps, 2) quantize_ring(const QuantizeProblem p) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) uint8_t memory[];
  __shared__ alignas(8) uint64_t full[kRingWarps][kRingStages];
  __shared__ Extremes found[2][kRingWarps];
  wait_for_dependencies();
  launch_dependents();
  const int warps = blockDim.x / 32, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t step = gridDim.x, begin = int64_t{warp} * kRingColumns;
  const int columns = min(kRingColumns, static_cast<int>(p.cols - begin));
  const Slots<kBlock> slots(lane);
  RingPart& part = reinterpret_cast<RingPart*>(memory)[warp];

  const auto load = [&](int stage, int64_t row) {
    const auto* const x = static_cast<const uint16_t*>(p.x.data) + row * p.x.row_stride + begin;
    if (row < p.rows) BulkCopies(full[warp][stage]).load(part.in[stage], x, columns * 2);
  };
  for (int i = columns * 2 + lane * 16; i < kRingColumns * 2; i += 32 * 16) {
#pragma unroll
    for (auto& in : part.in) *reinterpret_cast<uint4*>(in + i) = make_uint4(0, 0, 0, 0);
  }
  int64_t index = blockIdx.x;
  if (lane == 0) {
#pragma unroll
    for (int s = 0; s < kRingStages; ++s) {
      BulkCopies(full[warp][s]).init();
      load(s, index + s * step);
    }
  }
  __syncwarp();

#pragma unroll 1
  for (int turn = 0; index < p.rows; index += step, ++turn) {
    const int stage = turn % kRingStages;
    BulkCopies(full[warp][stage]).wait(turn / kRingStages % 2);
    const auto first = slots.first();
    float v[kSlots][kSumGroup];
#pragma unroll
    for (int half = 0; half < kSlots; half += kSlots / 2) {
      Words<dtype> words[kSlots / 2];
#pragma unroll
      for (int i = 0; i < kSlots / 2; ++i) {
        words[i].vector[0] = reinterpret_cast<const uint4*>(part.in[stage])[first(half + i)];
      }
#pragma unroll
      for (int i = 0; i < kSlots / 2; ++i) {
#pragma unroll
        for (int e = 0; e < kSumGroup; ++e) v[half + i][e] = words[i][e];
      }
      asm volatile("" ::: "memory");  // not all of them in registers before the first are widened
    }
    __syncwarp();
    if (lane == 0) load(stage, index + kRingStages * step);
    if constexpr (kBlock > 1) slots.rotate(v);
    const Quantizer by = quantizer_of_row(p, index, v, found[turn % 2]);
    if (lane == 0) BulkCopies::wait_for_stores();
    __syncwarp();
    by.with_bytes(p.given, p.symmetric, [&](const auto& bytes) {
      const auto last = slots.last();
#pragma unroll
      for (int i = 0; i < kSlots; ++i) {
        *reinterpret_cast<uint2*>(part.out + last(i) * kSumGroup) =
            make_uint2(bytes(v[i]), bytes(v[i] + 4));
      }
    });
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    if (lane == 0) BulkCopies::store(p.q + index * p.cols + begin, part.out, columns);
  }
  if (lane == 0) BulkCopies::wait_for_stores();
#endif
}

// Whether quantize_ring takes them: rows of 16 bits, enough to keep every multiprocessor busy (and,
// rotated, to be faster than quantize_rotated).
constexpr int kRingWarpsOfAnSm = 16;  // as their registers allow
inline bool is_for_ring(const QuantizeProblem& p, const Device& device) {
  return device.launches_early && p.x_dtype != DType::float32 &&
         p.rows > (p.rotate ? 4 : 1) * device.sms && p.cols >= kRingColumns / 2 &&
         p.cols <= kRingWarps * kRingColumns && p.cols % 16 == 0 &&
         reinterpret_cast<uintptr_t>(p.q) % 16 == 0;
}

inline void launch_ring(const QuantizeProblem& p, const Scope& scope) {
  const auto warps = static_cast<int>(ceil_div(p.cols, int64_t{kRingColumns}));
  const int64_t blocks = std::min<int64_t>(p.rows, scope.device.sms * (kRingWarpsOfAnSm / warps));
  LaunchShape shape{dim3(static_cast<unsigned>(blocks)), dim3(32 * warps)};
  shape.shared_bytes = warps * static_cast<int>(sizeof(RingPart));
  const auto launch = [&]<DType dtype, int kBlock>() {
    allow_all_shared_memory<quantize_ring<dtype, kBlock>>(scope.device);
    launch_early(quantize_ring<dtype, kBlock>, shape, scope, p);
  };
  const auto with_block = [&]<DType dtype>() {
    switch (p.rotate) {
      case 0: return launch.template operator()<dtype, 1>();
      case 16: return launch.template operator()<dtype, 16>();
      case 32: return launch.template operator()<dtype, 32>();
      case 64: return launch.template operator()<dtype, 64>();
      case 128: return launch.template operator()<dtype, 128>();
      case 256: return launch.template operator()<dtype, 256>();
      default: return launch.template operator()<dtype, 512>();
    }
  };
  p.x_dtype == DType::bfloat16 ? with_block.template operator()<DType::bfloat16>()
                               : with_block.template operator()<DType::float16>();
}

}  // namespace scaled_mm::cuda
