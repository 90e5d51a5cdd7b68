// A line of int8.table with a program as its epilogue: what a compiled epilogue's source
// (scaled_mm/compiled) includes, behind SCALED_MM_STREAMS or nothing, and before its program. It
// stands alone: what it takes of the library's host code it includes.
#pragma once

#define SCALED_MM_COMPILED  // what is only for it

#include <cuda.h>

#include <stdexcept>
#include <string>

#include "cuda/common/launch.cuh"
#include "cuda/compiled.h"

namespace scaled_mm::cuda {

inline decltype(&cuTensorMapEncodeTiled)& given_encoder() {
  static decltype(&cuTensorMapEncodeTiled) encode = nullptr;
  return encode;
}
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder() { return given_encoder(); }

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next call would report it again
  throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(status));
}

inline Device device_of(const CompiledCall& call) {
  Device device;
  device.index = call.device;
  device.sms = call.sms;
  device.shared_memory = call.shared_memory;
  device.launches_early = call.launches_early != 0;
  return device;
}

// What the library's one function does with its template.
template <class Launch>
int32_t guarded(const CompiledCall& call, const Launch& launch) noexcept {
  try {
    given_encoder() = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(call.encode_tensor_map);
    launch(device_of(call), LaunchOn(call.launches_early != 0, call.stream));
    return 0;
  } catch (const std::exception& error) {
    std::strncpy(call.error, error.what(), static_cast<size_t>(call.error_size) - 1);
    call.error[call.error_size - 1] = '\0';
    return 1;
  }
}

}  // namespace scaled_mm::cuda

#ifdef SCALED_MM_STREAMS

#include "cuda/sm90/int8_stream_launch.h"

namespace scaled_mm::cuda::sm90::int8 {

template <const Stream& kTile, class P>
int32_t launch(const CompiledCall& call) {
  return guarded(call, [&](const Device& device, const LaunchOn& on) {
    using E = CompiledEpilogue<P>;
    using Block = StreamBlock<kTile.tile_m, kTile.tile_n / 64, E>;
    CompiledParams<P> params;
    std::copy_n(call.operands, P::kOperands, params.of_program.all);
    std::copy_n(call.outputs, params.ending.kOutputs, params.ending.d);
    params.ending.ldd = call.ldd;
    params.ending.vectors = call.out_columns % (4 / P::kColumns) == 0;
    const StreamFactors of{call.a, call.lda, call.b, call.ldb, call.m, call.n, call.k};
    launch_stream<Block, E>(of, call.plan.stream, device, on, params);
  });
}

}  // namespace scaled_mm::cuda::sm90::int8

#else

#include "cuda/sm90/int8_persistent_gemm.h"

namespace scaled_mm::cuda::sm90::int8 {

template <const Persistent& kTile, class P>
int32_t launch(const CompiledCall& call) {
  return guarded(call, [&](const Device& device, const LaunchOn& on) {
    using E = CompiledEpilogue<P>;
    using Out = typename CompiledFormat<P::kDtypes[0]>::storage;
    using Stored = std::conditional_t<sizeof(Out) == 4, float, Out>;  // bits are moved
    cutlass3::GemmArguments args{.m = call.m,
                                 .n = call.n,
                                 .k = call.k,
                                 .a = call.a,
                                 .lda = call.lda,
                                 .b = call.b,
                                 .ldb = call.ldb,
                                 .operands = call.operands,
                                 .to = {}};
    args.to.out = {call.outputs[0], static_cast<DType>(call.out_dtype), true};
    args.to.ldd = call.ldd;
    args.swizzle = call.plan.swizzle;
    PersistentGemm<kTile, E, Stored>::run(args, device, on);
  });
}

}  // namespace scaled_mm::cuda::sm90::int8

#endif
