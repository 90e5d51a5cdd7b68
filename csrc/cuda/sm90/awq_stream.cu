#include "cuda/sm90/awq_stream.cuh"

#include "cuda/awq.h"
#include "cuda/sm90/tensor_map.h"

namespace scaled_mm::cuda::sm90 {
namespace {

template <class T, int kTokens>
void run(const AwqProblem& p, const Device& device, cudaStream_t stream) {
  using Block = AwqBlock<kTokens>;
  const auto kernel = awq_stream<T, kTokens>;
  const int split = awq_split({p.m, p.w.n, p.w.k, p.w.group}, kTokens, device.sms);

  AwqParams params;
  params.q = tensor_map(reinterpret_cast<const int8_t*>(p.w.q.data), p.w.k, p.w.n / 2,
                        4 * p.w.q.row_stride, kAwqDepth);
  params.tokens = tensor_map(reinterpret_cast<const int8_t*>(p.x.data), p.m, 2 * p.w.k,
                             2 * p.x.row_stride, kTokens);
  params.zeros = p.w.zeros.data;
  params.zeros_stride = p.w.zeros.row_stride;
  params.scales = p.w.scales.data;
  params.scales_stride = p.w.scales.row_stride;
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.w.n);
  params.chunks = static_cast<int>(p.w.k / kAwqDepth);
  params.group = static_cast<int>(p.w.group);
  params.token_tiles = static_cast<int>((p.m + kTokens - 1) / kTokens);
  const int groups = p.w.group < kAwqDepth ? 2 : 1;
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block. No
  // more than there is to load: the next kernel may start where there is room.
  const int bytes = (device.shared_memory + 1024) / awq_live(kTokens) - 1024;
  params.stages = std::clamp((params.chunks + split - 1) / split, Block::kLeastStages,
                             Block::stages(bytes, groups));
  params.bias = p.bias;
  params.d = p.d;

  static OncePerDevice once;
  once(device.index, [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               device.shared_memory),
          "cudaFuncSetAttribute");
  });
  const int64_t tiles = int64_t{params.token_tiles} * ((p.w.n + kAwqChannels - 1) / kAwqChannels);
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(split), 1, 1};
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(tiles * split));
  launch.blockDim = dim3(Block::kThreads);
  launch.dynamicSmemBytes = Block::shared_bytes(params.stages, groups);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = 2;
  check(cudaLaunchKernelEx(&launch, kernel, params), "cudaLaunchKernelEx");
}

template <class T>
void run(const AwqProblem& p, int tokens, const Device& device, cudaStream_t stream) {
  switch (tokens) {
    case 8: return run<T, 8>(p, device, stream);
    case 16: return run<T, 16>(p, device, stream);
    case 32: return run<T, 32>(p, device, stream);
    case 64: return run<T, 64>(p, device, stream);
    default: return run<T, 128>(p, device, stream);
  }
}

}  // namespace

void awq_stream(const AwqProblem& p, int tokens, const Device& device, cudaStream_t stream) {
  if (p.w.dtype == ScalarType::Half) {
    run<__half>(p, tokens, device, stream);
  } else {
    run<__nv_bfloat16>(p, tokens, device, stream);
  }
}

}  // namespace scaled_mm::cuda::sm90
