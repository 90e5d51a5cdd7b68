#include "cuda/sm90/awq_stream.cuh"

#include "cuda/awq.h"
#include "cuda/launch_early.cuh"
#include "cuda/sm90/tensor_map.h"

namespace scaled_mm::cuda::sm90 {
namespace {

template <class T, int kTokens>
void run(const AwqProblem& p, const AwqPlan& plan, float* partials, const Device& device,
         cudaStream_t stream) {
  using Block = AwqBlock<kTokens>;
  const auto kernel = awq_stream<T, kTokens>;
  AwqParams params;
  params.q = tensor_map(reinterpret_cast<const int8_t*>(p.w.q.data), p.w.k, p.w.n / 2,
                        4 * p.w.q.row_stride, kAwqDepth, Block::kBoxBytes);
  params.tokens = tensor_map(reinterpret_cast<const int8_t*>(p.x.data), p.m, 2 * p.w.k,
                             2 * p.x.row_stride, kTokens);
  params.zeros = p.w.zeros.data;
  params.zeros_stride = p.w.zeros.row_stride;
  params.scales = p.w.scales.data;
  params.scales_stride = p.w.scales.row_stride;
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.group = static_cast<int>(p.w.group);
  params.token_tiles = static_cast<int>((p.m + kTokens - 1) / kTokens);
  params.plan = plan;
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block. No
  // more than there is to load: the next kernel may start where there is room.
  const int groups = p.w.group < kAwqDepth ? 2 : 1;
  const int bytes = (device.shared_memory + 1024) / Block::kLive - 1024;
  const int chunks = plan.whole > 0 || plan.pieces() > plan.blocks
                         ? plan.chunks
                         : (plan.chunks + plan.slices - 1) / plan.slices;
  params.stages = Block::stages(chunks, bytes, groups);
  // Where there is a multiprocessor for every block, each has one for itself.
  const int alone = plan.blocks <= device.sms ? device.shared_memory / 2 + 1024 : 0;
  params.bias = p.bias;
  params.d = p.d;
  params.partials = partials;

  static OncePerDevice once;
  once(device.index, [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               device.shared_memory),
          "cudaFuncSetAttribute");
  });
  launch_early(kernel, plan.blocks, Block::kThreads,
               std::max(alone, Block::shared_bytes(params.stages, groups)), stream, params);
  if (plan.partials() > 0) {
    constexpr int kThreads = 128;
    const int quads = static_cast<int>(std::min<int64_t>(p.m, kTokens)) * Block::kChannels / 4;
    launch_early(awq_join<T>, {unsigned(plan.cut()), unsigned(quads + kThreads - 1) / kThreads},
                 kThreads, 0, stream, params, kTokens);
  }
}

template <class T>
void run(const AwqProblem& p, int tokens, const AwqPlan& plan, float* partials,
         const Device& device, cudaStream_t stream) {
  switch (tokens) {
    case 8: return run<T, 8>(p, plan, partials, device, stream);
    case 16: return run<T, 16>(p, plan, partials, device, stream);
    case 32: return run<T, 32>(p, plan, partials, device, stream);
    case 64: return run<T, 64>(p, plan, partials, device, stream);
    case 128: return run<T, 128>(p, plan, partials, device, stream);
    default: return run<T, 256>(p, plan, partials, device, stream);
  }
}

}  // namespace

void awq_stream(const AwqProblem& p, int tokens, const AwqPlan& plan, float* partials,
                const Device& device, cudaStream_t stream) {
  if (p.w.dtype == ScalarType::Half) {
    run<__half>(p, tokens, plan, partials, device, stream);
  } else {
    run<__nv_bfloat16>(p, tokens, plan, partials, device, stream);
  }
}

}  // namespace scaled_mm::cuda::sm90
