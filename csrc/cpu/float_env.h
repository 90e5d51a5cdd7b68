// The floating-point environment of the bit contract, for the time of a scope: round to nearest
// even, subnormals kept. A worker thread may have inherited anything (torch.set_flush_denormal,
// a library that left its rounding mode behind).
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#elif !defined(__aarch64__)
#include <cfenv>
#endif

#include <cstdint>

namespace scaled_mm::cpu {

class FloatEnvironment {
 public:
  FloatEnvironment(const FloatEnvironment&) = delete;
  FloatEnvironment& operator=(const FloatEnvironment&) = delete;

#if defined(__x86_64__)
  FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(0x1f80); }  // all exceptions masked
  ~FloatEnvironment() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  FloatEnvironment() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" ::"r"(uint64_t{0}));
  }
  ~FloatEnvironment() { asm volatile("msr fpcr, %0" ::"r"(saved_)); }

 private:
  uint64_t saved_;
#else
  FloatEnvironment() : saved_(std::fegetround()) { std::fesetround(FE_TONEAREST); }
  ~FloatEnvironment() { std::fesetround(saved_); }

 private:
  int saved_;
#endif
};

}  // namespace scaled_mm::cpu
