// The transcendental functions of the producers: each a written sequence of float32 operations, the
// same on every instruction set and on the device (docs/numerics.md, section 6;
// scaled_mm/reference/functions.py has the same in numpy).
//
// F is where the operations come from. It is a type of the namespace that includes this, so that
// what one instruction set makes of a template is never linked into another:
//   F::fma(x, y, z), F::bits(float) and F::from_bits(uint32_t)
//   F::size(x), F::with_sign(x, of)               |x|, and an x >= 0 with the sign of `of`
//   F::choose(first, x, y)                        first ? x : y, both of which are computed
//   F::at_least(x, least), F::at_most(x, most)    the bound for a NaN
//   F::reciprocal(x)                              RN(1 / x) for 1 <= x <= 2
#pragma once

#include <cstdint>
#include <type_traits>

#if defined(__CUDACC__)
#define SCALED_MM_FUNCTION __host__ __device__ __forceinline__
#else
#define SCALED_MM_FUNCTION inline __attribute__((always_inline))
#endif

namespace scaled_mm {

enum class Function : uint8_t { none, relu, silu, gelu, gelu_tanh };

// use(constant) with an integral_constant of the function.
template <class Use>
constexpr decltype(auto) with_function(Function function, Use&& use) {
  switch (function) {
#define FUNCTION(name) \
  case Function::name: return use(std::integral_constant<Function, Function::name>{})
    FUNCTION(none);
    FUNCTION(relu);
    FUNCTION(silu);
    FUNCTION(gelu);
    FUNCTION(gelu_tanh);
#undef FUNCTION
  }
  __builtin_unreachable();
}

}  // namespace scaled_mm

namespace scaled_mm::functions {

// Horner's scheme: the coefficient of the highest power first.
template <class F>
SCALED_MM_FUNCTION float polynomial(float, float value) {
  return value;
}
template <class F, class... Rest>
SCALED_MM_FUNCTION float polynomial(float x, float value, float next, Rest... rest) {
  return polynomial<F>(x, F::fma(value, x, next), rest...);
}

// (2^f - 1) / f for |f| <= 1/2.
template <class F>
SCALED_MM_FUNCTION float exp2_slope(float f) {
  return polynomial<F>(f, 0x1.417284p-13f, 0x1.5f0976p-10f, 0x1.3b2ddap-7f, 0x1.c6af7ap-5f,
                       0x1.ebfbdcp-3f, 0x1.62e430p-1f);
}
// erf(z) / z - 1 by z^2, for |z| < 15/16.
template <class F>
SCALED_MM_FUNCTION float erf_near(float square) {
  return polynomial<F>(square, 0x1.4f8e58p-14f, -0x1.a6126ep-11f, 0x1.544aa8p-8f, -0x1.b80120p-6f,
                       0x1.ce2d64p-4f, -0x1.812740p-2f, 0x1.06eba8p-3f);
}
// log2(1 - erf(z)) by z - 1, for 15/16 <= z <= 4.
template <class F>
SCALED_MM_FUNCTION float log2_erfc(float w) {
  return polynomial<F>(w, 0x1.5fc054p-12f, -0x1.79271ap-9f, 0x1.dd68dap-7f, -0x1.ebb94ap-5f,
                       -0x1.3761a8p+0f, -0x1.e7532ap+1f, -0x1.558eaep+1f);
}

constexpr float kLog2E = 0x1.715476p+0f, kLog2ERest = 0x1.4ae0c0p-26f;  // their sum is log2(e)
// 1.5 2^23 + 64: the last bit of a sum with it is worth 1, and the sum's bits, shifted to where the
// exponent is, are 64 more than that integer.
constexpr float kShift = 12582912.0f + 64.0f;

// 2^(64 + n + f) for an integer -150 <= n <= 0, which comes as n + kShift, and |f| <= 1/2.
template <class F>
SCALED_MM_FUNCTION float power_of_two_by_64(float shifted, float f) {
  const float power = F::fma(exp2_slope<F>(f), f, 1.0f);
  return F::from_bits(F::bits(power) + (F::bits(shifted) << 23));
}

// e^x for x <= 0; a NaN counts as -104.
template <class F>
SCALED_MM_FUNCTION float exp_down(float x) {
  x = F::at_least(x, -104.0f);
  const float shifted = F::fma(x, kLog2E, kShift), n = shifted - kShift;
  return power_of_two_by_64<F>(shifted, F::fma(x, kLog2ERest, F::fma(x, kLog2E, -n))) * 0x1p-64f;
}

// A NaN gives 1.
template <class F>
SCALED_MM_FUNCTION float erf(float z) {
  const float size = F::size(z);
  const float near = F::fma(erf_near<F>(z * z), z, z);
  const float log = log2_erfc<F>(F::at_most(size, 4.0f) - 1.0f);
  const float shifted = log + kShift, n = shifted - kShift;
  const float far = F::fma(power_of_two_by_64<F>(shifted, log - n), -0x1p-64f, 1.0f);
  return F::choose(size < 0.9375f, near, F::with_sign(far, z));
}

// x / (1 + e^-t): e = e^-|t| is at most 1, and where t is negative multiplies x.
template <class F>
SCALED_MM_FUNCTION float logistic_times(float x, float t) {
  const float e = exp_down<F>(-F::size(t));
  const float scaled = x * e;
  return F::choose(t < 0.0f, scaled, x) * F::reciprocal(1.0f + e);
}

// max(x, +0); a NaN stays.
template <class F>
SCALED_MM_FUNCTION float relu(float x) {
  return x > 0.0f ? x : x == x ? 0.0f : x;
}
template <class F>
SCALED_MM_FUNCTION float silu(float x) {
  return logistic_times<F>(x, x);
}
// x (1 + erf(x / sqrt 2)) / 2
template <class F>
SCALED_MM_FUNCTION float gelu(float x) {
  const float half = 0.5f * x;
  return F::fma(half, erf<F>(x * 0x1.6a09e6p-1f), half);
}
// x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u).
template <class F>
SCALED_MM_FUNCTION float gelu_tanh(float x) {
  return logistic_times<F>(x, x * F::fma(x * x, 0x1.2444f2p-4f, 0x1.988454p+0f));
}

// --- of programs alone (epilogue/program.def): a NaN stays ---

// e^x.
template <class F>
SCALED_MM_FUNCTION float exp(float x) {
  const bool up = x > 0.0f;
  const float shift = up ? kShift - 128.0f : kShift;
  const float at = F::at_most(F::at_least(x, -104.0f), 89.0f);
  const float shifted = F::fma(at, kLog2E, shift), n = shifted - shift;
  const float f = F::fma(at, kLog2ERest, F::fma(at, kLog2E, -n));
  const float power = F::fma(exp2_slope<F>(f), f, 1.0f);
  const float scaled = F::from_bits(F::bits(power) + (F::bits(shifted) << 23));
  const float made = scaled * (up ? 0x1p+64f : 0x1p-64f);
  return x == x ? made : x;
}
template <class F>
SCALED_MM_FUNCTION float erf_of(float x) {
  const float made = erf<F>(x);
  return x == x ? made : x;
}
// 1 / (1 + e^-x)
template <class F>
SCALED_MM_FUNCTION float sigmoid(float x) {
  const float made = logistic_times<F>(1.0f, x);
  return x == x ? made : x;
}
// (tanh(x) / x - 1) / x^2 by x^2, for |x| < 5/8.
template <class F>
SCALED_MM_FUNCTION float tanh_near(float square) {
  return polynomial<F>(square, 0x1.18e1c4p-9f, -0x1.0bf4f6p-7f, 0x1.638b56p-6f, -0x1.b9ee90p-5f,
                       0x1.111066p-3f, -0x1.555554p-2f);
}
// Far from 0, (1 - e) / (1 + e) with e = e^(-2 |x|).
template <class F>
SCALED_MM_FUNCTION float tanh(float x) {
  const float size = F::size(x), square = x * x;
  const float near = F::fma(tanh_near<F>(square) * square, size, size);
  const float e = exp_down<F>(-2.0f * size);
  const float far = (1.0f - e) * F::reciprocal(1.0f + e);
  const float made = size < 0.625f ? near : far;
  return x == x ? F::with_sign(made, x) : x;
}

template <class F, Function function>
SCALED_MM_FUNCTION float value(float x) {
  if constexpr (function == Function::none) return x;
  if constexpr (function == Function::relu) return relu<F>(x);
  if constexpr (function == Function::silu) return silu<F>(x);
  if constexpr (function == Function::gelu) return gelu<F>(x);
  if constexpr (function == Function::gelu_tanh) return gelu_tanh<F>(x);
}

}  // namespace scaled_mm::functions
