// A row of the table that streams the weight. setup.py compiles this once for every such row, with
// SCALED_MM_ROW defined as the row's name.
#include "cuda/launch.h"
#include "cuda/sm90/arch.h"
#include "cuda/sm90/stream.cuh"
#include "cuda/sm90/tensor_map.h"

namespace scaled_mm::cuda {
namespace sm90 {
namespace {

template <RowId kRow, class E>
void run_stream(const Product& p, const Device& device, cudaStream_t stream) {
  constexpr Config kConfig = config(kRow);
  using Block = StreamBlock<kConfig.tile_m, kConfig.tile_n / 64, E>;
  const auto kernel = stream_gemm<Block::kTokens, Block::kGroups, E>;
  const StreamPlan plan = plan_stream(kConfig, {p.m, p.n, p.k, 0}, device);

  StreamParams params;
  if (p.k > 0) {  // else nothing is loaded
    params.weight = tensor_map(p.b, p.n, p.k, p.ldb, Block::kChannels);
    params.tokens = tensor_map(p.a, p.m, p.k, p.lda, Block::kTokens);
  }
  params.m = static_cast<int>(p.m);
  params.n = static_cast<int>(p.n);
  params.chunks = static_cast<int>((p.k + kChunk - 1) / kChunk);
  params.token_tiles = plan.token_tiles;
  // A multiprocessor has 1 KiB more than a block may ask for, and takes 1 KiB for every block.
  const int alone = device.shared_memory, paired = (alone + 1024) / 2 - 1024;
  params.stages = Block::stages(plan.paired ? paired : alone);
  params.operands = p.operands;
  params.d = p.d;
  params.ldd = p.ldd;
  params.vectors = p.ldd % 4 == 0;
  params.out_dtype = p.out_dtype;

  static OncePerDevice once;
  once(device.index, [&] {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               device.shared_memory),
          "cudaFuncSetAttribute");
  });
  cudaLaunchAttribute attributes[2];
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim = {static_cast<unsigned>(plan.split), 1, 1};
  // The kernel's start may overlap the end of the one before it; it waits before it touches memory.
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t launch = {};
  launch.gridDim = dim3(static_cast<unsigned>(plan.blocks));
  launch.blockDim = dim3(Block::kThreads);
  launch.dynamicSmemBytes = Block::shared_bytes(params.stages);
  launch.stream = stream;
  launch.attrs = attributes;
  launch.numAttrs = 2;
  check(cudaLaunchKernelEx(&launch, kernel, params), "cudaLaunchKernelEx");
}

}  // namespace
}  // namespace sm90

template <>
void Launch<sm90::RowId::SCALED_MM_ROW>::run(const Product& p, const Device& device,
                                             cudaStream_t stream) {
  constexpr auto row = sm90::RowId::SCALED_MM_ROW;
  switch (p.instance) {
#define INSTANCE(name, epilogue_name) \
  case Instance::name: return sm90::run_stream<row, epilogue::epilogue_name>(p, device, stream);
#include "cuda/instances.def"
#undef INSTANCE
  }
}

}  // namespace scaled_mm::cuda
