// Device code on the host: what the language of CUDA has beyond C++, as far as the stores of D need
// it, and a block of threads that run in turn. A thread runs until it meets the others of its warp
// or block; assembly is left out (quantizer.cuh has what stands for it).
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <type_traits>
#include <vector>

#define __device__
#define __host__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define asm(...)

using std::isinf;
using std::max;
using std::min;

// --- a block -------------------------------------------------------------------------------------

struct Dim3 {
  int x = 0, y = 0, z = 0;
};
inline Dim3 threadIdx, blockIdx, blockDim, gridDim;

class Block {
 public:
  // body() of every thread, threadIdx.x telling which; of a cluster of blocks, blockIdx.x.
  static void run(int threads, const std::function<void()>& body, int blocks = 1) {
    Block block(threads, body, blocks);
    while (block.turn()) {
    }
  }

  // Until as many threads are there as meet at this place.
  static void meet(int place, int threads) {
    meet_at({current_->rank_, place}, [&] { return threads; });
  }

  // The calling thread among those of the cluster, its block, and all of them.
  static int self() { return current_->rank_ * current_->count_ + threadIdx.x; }
  static int rank() { return current_->rank_; }
  static void meet_cluster() {  // those that have ended are not waited for
    const auto& all = current_->threads_;
    meet_at({-1, 0}, [&] { return std::ranges::count(all, false, &Thread::done); });
  }

  // Until something holds that others bring about.
  static void wait(const std::function<bool()>& there) {
    while (!there()) current_->rest();
    current_->moved_ = true;
  }

  // The lanes of the calling warp for which `mine` holds.
  static uint32_t ballot(bool mine) {
    const int warp = threadIdx.x / 32;
    current_->given_[self()] = mine;
    meet(warp, 32);
    uint32_t lanes = 0;
    const uint32_t* const given = &current_->given_[self() / 32 * 32];
    for (int lane = 0; lane < 32; ++lane) lanes |= given[lane] << lane;
    meet(warp, 32);
    return lanes;
  }

  // What lane `from` of the calling warp gives.
  static uint32_t shuffle(uint32_t mine, int from) {
    const int warp = threadIdx.x / 32;
    current_->given_[self()] = mine;
    meet(warp, 32);
    const uint32_t got = current_->given_[self() / 32 * 32 + from];
    meet(warp, 32);
    return got;
  }

 private:
  static constexpr size_t kStack = 1 << 16;
  struct Thread {
    ucontext_t at;
    std::unique_ptr<char[]> stack{new char[kStack]};
    bool done = false;
  };
  struct Meeting {
    int round = 0, there = 0;
  };

  Block(int threads, const std::function<void()>& body, int blocks)
      : count_(threads),
        first_(blockIdx.x),
        body_(body),
        threads_(threads * blocks),
        given_(threads * blocks) {
    current_ = this;
    for (Thread& thread : threads_) {
      getcontext(&thread.at);
      thread.at.uc_stack.ss_sp = thread.stack.get();
      thread.at.uc_stack.ss_size = kStack;
      thread.at.uc_link = &here_;
      makecontext(&thread.at, begin, 0);
    }
  }
  static void begin() {
    current_->body_();
    current_->threads_[self()].done = current_->moved_ = true;
  }
  template <class Threads>
  static void meet_at(const std::pair<int, int>& place, const Threads& threads) {
    Meeting& meeting = current_->meetings_[place];
    const int round = meeting.round;
    ++meeting.there;
    while (meeting.round == round) {
      if (meeting.there < threads()) {
        current_->rest();
      } else {
        meeting = {round + 1, 0};
        current_->moved_ = true;
      }
    }
  }
  void rest() {
    const int mine = self();
    swapcontext(&threads_[mine].at, &here_);
  }
  // Each thread in its turn; false when all are done.
  bool turn() {
    moved_ = false;
    bool all_done = true;
    for (int i = 0; i < static_cast<int>(threads_.size()); ++i) {
      if (threads_[i].done) continue;
      all_done = false;
      threadIdx.x = i % count_, rank_ = i / count_, blockIdx.x = first_ + rank_;
      swapcontext(&here_, &threads_[i].at);
    }
    blockIdx.x = first_;
    if (all_done || moved_) return !all_done;
    std::puts("threads wait for others that never come");
    std::exit(1);
  }

  static inline Block* current_ = nullptr;
  int count_, first_, rank_ = 0;  // threads of a block, the first block, the running one behind it
  const std::function<void()>& body_;
  std::vector<Thread> threads_;
  std::vector<uint32_t> given_;
  std::map<std::pair<int, int>, Meeting> meetings_;
  bool moved_ = false;
  ucontext_t here_;
};

inline void __syncthreads() { Block::meet(-1, blockDim.x * blockDim.y); }
inline float __shfl_xor_sync(unsigned, float x, int distance) {
  const int lane = threadIdx.x % 32;
  return std::bit_cast<float>(Block::shuffle(std::bit_cast<uint32_t>(x), lane ^ distance));
}

inline int __shfl_xor_sync(unsigned, int x, int distance) {
  const int lane = threadIdx.x % 32;
  return static_cast<int>(Block::shuffle(static_cast<uint32_t>(x), lane ^ distance));
}

inline int __shfl_sync(unsigned, int x, int from) {
  return static_cast<int>(Block::shuffle(static_cast<uint32_t>(x), from));
}
inline int __shfl_up_sync(unsigned, int x, int distance) {
  const int lane = threadIdx.x % 32;
  return __shfl_sync(~0u, x, lane < distance ? lane : lane - distance);
}
inline bool __all_sync(unsigned, bool x) { return Block::ballot(x) == ~0u; }
inline unsigned __ballot_sync(unsigned, bool x) { return Block::ballot(x); }
inline void __syncwarp() {}
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }

// --- arithmetic ----------------------------------------------------------------------------------

inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fmaf_rn(float x, float y, float z) { return std::fma(x, y, z); }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline int32_t __float2int_rn(float x) {  // as the instruction does
  if (x != x) return 0;
  return static_cast<int32_t>(std::clamp(std::nearbyint(double(x)), -0x1p31, 0x1p31 - 1));
}
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __int2float_rn(int32_t x) { return static_cast<float>(x); }
inline uint32_t __float_as_uint(float x) { return std::bit_cast<uint32_t>(x); }
inline uint32_t __byte_perm(uint32_t x, uint32_t y, uint32_t selector) {
  const uint64_t both = uint64_t{y} << 32 | x;
  uint32_t made = 0;
  for (int i = 0; i < 4; ++i) {
    made |= static_cast<uint32_t>(both >> (selector >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  }
  return made;
}
inline int32_t __float_as_int(float x) { return std::bit_cast<int32_t>(x); }
inline float __uint_as_float(uint32_t x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int32_t x) { return std::bit_cast<float>(x); }
