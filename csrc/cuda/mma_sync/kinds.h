// The kinds of kernel of the GPUs whose tensor cores are reached by mma.sync: Turing, Ampere, Ada,
// and newer ones by it. An arch's folder gives the numbers. No CUDA here: the CPU library reads the
// same.
#pragma once

#include <algorithm>

#include "dispatch/kernel.h"

namespace scaled_mm::cuda::mma_sync {

// The GPUs of a folder.
struct Gpus {
  bool (*serves)(int capability);
  const char* served;  // in the words of a refusal, behind "needs compute capability"
  bool multistage;     // cp.async fills a ring of several stages; else registers fill one of two
};

// Bytes of shared memory that a block may ask for: those of a multiprocessor but 1 KiB, which is
// the system's (CUDA programming guide, technical specifications by compute capability).
constexpr int shared_bytes(int capability) {
  switch (capability) {
    case 75: return 64 * 1024;  // the one that gives all it has
    case 80:
    case 87: return 163 * 1024;
    case 90:
    case 100:
    case 103:
    case 110: return 227 * 1024;
    default: return 99 * 1024;  // 8.6, 8.9, 12.x
  }
}

// A tile whose operands go through shared memory; a CUTLASS 2.x mainloop.
template <const Gpus& kGpus>
struct Multistage {
  int tile_m;
  int tile_n;
  int tile_k;  // bytes of K in a stage
  int warp_m;  // of the tile, that a warp has
  int warp_n;
  int stages;
  int split;       // slices of K, at most
  int swizzle;     // width of the bands in which tiles are visited
  float fixed_us;  // of a call, whatever its size
  float rate;      // how fast it is where tensor cores or L2 bind, relative to the machine's rates

  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};

// The weight streams from memory into registers, past a few tokens (int8_stream.cuh).
template <const Gpus& kGpus>
struct Stream {
  int tile_m;  // of D: tokens
  int tile_n;  // of D: channels
  int warps;   // of a block; each has all of the tile, and a part of K
  int step;    // bytes of K that a warp takes at a time: 64 or 128
  int live;    // blocks that a multiprocessor has registers for
  int split;   // slices of K, at most
  float fixed_us;
  float rate;

  std::string describe(const Int8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const Int8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const Int8Problem::Size& size, const Machine& machine) const;
};

// The same over the rows of several experts.
template <const Gpus& kGpus>
struct GroupedStream {
  int tile_m;  // of D: tokens of one expert
  int tile_n;
  int warps;
  int step;
  int live;

  std::string describe(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedInt8Problem::Size& size, const Machine& machine) const;
};

// Experts' rows in tiles that go through shared memory.
template <const Gpus& kGpus>
struct GroupedMultistage {
  const Multistage<kGpus>& of;  // the line of int8.table with its tile

  std::string describe(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedInt8Problem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedInt8Problem::Size& size, const Machine& machine) const;
};

// A product with a weight packed in units, straight from them (lowbit_units.cuh).
template <const Gpus& kGpus>
struct Units {
  int tile_m;   // of D: tokens
  int tile_n;   // of D: channels, a multiple of a unit's 64
  int parts;    // of 16 channels, that a warp has
  int warps_k;  // warps that share the rows of a unit
  int ring;     // KiB of shared memory for stages
  int live;     // blocks that a multiprocessor has registers for
  int split;    // slices of K, at most
  float fixed_us;
  float rate;

  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

// The same over the rows of several experts.
template <const Gpus& kGpus>
struct GroupedUnits {
  const Units<kGpus>& of;  // the line of lowbit.table with its tile

  std::string describe(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const GroupedLowbitProblem::Size& size, const Machine& machine) const;
};

// A product with 16-bit floats: W dequantised to memory, then a CUTLASS 2.x product with it.
template <const Gpus& kGpus>
struct Dense {
  int tile_m;
  int tile_n;
  int tile_k;  // rows of K in a stage
  int warp_m;
  int warp_n;
  int stages;
  int swizzle;
  float fixed_us;
  float rate;

  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

// The same without tensor cores, by float32 multiply-adds: for a format that they lack.
template <const Gpus& kGpus>
struct Simt {
  int tile;  // tokens and channels
  float fixed_us;
  float rate;

  std::string describe(const LowbitProblem::Size& size, const Machine& machine) const;
  std::string refuse(const LowbitProblem::Size& size, const Machine& machine) const;
  Prediction predict(const LowbitProblem::Size& size, const Machine& machine) const;
};

// Slices of K, at most `most`, for a product of `tiles` tiles that has `steps` slices worth
// cutting.
inline int plan_split(int most, int64_t tiles, int64_t steps, const Machine& machine) {
  // As many as find a multiprocessor for each block, each long enough to be worth it.
  const int64_t room = machine.sms / std::max<int64_t>(tiles, 1);
  return static_cast<int>(std::clamp<int64_t>(std::min(room, steps), 1, most));
}

}  // namespace scaled_mm::cuda::mma_sync
