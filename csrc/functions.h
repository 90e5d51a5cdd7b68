// The transcendental functions of the producers: each a written sequence of float32 operations, the
// same on every instruction set and on the device (docs/numerics.md, section 6;
// scaled_mm/reference/functions.py has the same in numpy).
//
// F is where the operations come from. It is a type of the namespace that includes this, so that
// what one instruction set makes of a template is never linked into another:
//   F::fma(x, y, z), F::bits(float) and F::from_bits(uint32_t)
//   F::size(x)                                    |x|
//   F::at_least(x, least), F::at_most(x, most)    of a NaN `least`, and the NaN
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

constexpr float kLog2E = 0x1.715476p+0f;

// --- activations: x s(x) where s(x) + s(-x) = 1, which is max(x, 0) - |x| s(-|x|) ---

// 2^(x y + c) for an integer c, where that is at least 2^-126. The polynomial is within 0.8 2^-23.
template <class F>
SCALED_MM_FUNCTION float power_of_two(float x, float y, float c) {
  // The last bit of a sum with 1.5 2^23 is worth 1: the integer, to be shifted to the exponent.
  const float shift = 12582912.0f + c;
  const float shifted = F::fma(x, y, shift), n = shifted - shift;
  const float f = F::fma(x, y, -n);  // |f| <= 1/2; the polynomial is (2^f - 1) / f
  const float slope = polynomial<F>(f, 0x1.5bda40p-10f, 0x1.3ce8acp-7f, 0x1.c6b6d8p-5f,
                                    0x1.ebf9c2p-3f, 0x1.62e42ap-1f);
  return F::from_bits(F::bits(F::fma(slope, f, 1.0f)) + (F::bits(shifted) << 23));
}

// `size` is |x| while its tail s(-|x|) counts, from there on a constant. A NaN stays in it.
template <class F>
SCALED_MM_FUNCTION float without_tail(float x, float size, float tail) {
  return F::fma(-size, tail, F::at_least(x, 0.0f));
}

// max(x, +0); a NaN stays.
template <class F>
SCALED_MM_FUNCTION float relu(float x) {
  return x > 0.0f ? x : x == x ? 0.0f : x;
}
// x / (1 + e^-x)
template <class F>
SCALED_MM_FUNCTION float silu(float x) {
  const float size = F::at_most(F::size(x), 87.0f);
  const float e = power_of_two<F>(size, -kLog2E, 0.0f);
  return without_tail<F>(x, size, e * F::reciprocal(1.0f + e));
}
// x (1 + erf(x / sqrt 2)) / 2; the polynomial is log2(1 - erf(size / sqrt 2)) / size.
template <class F>
SCALED_MM_FUNCTION float gelu(float x) {
  const float size = F::at_most(F::size(x), 10.0f);
  const float slope =
      polynomial<F>(size, -0x1.c59e5ep-20f, 0x1.c1ff26p-16f, -0x1.163992p-13f, -0x1.06601ap-12f,
                    0x1.d72bf6p-8f, -0x1.aea2b4p-5f, -0x1.d635dcp-2f, -0x1.26aeeep+0f);
  return without_tail<F>(x, size, power_of_two<F>(size, slope, -1.0f));
}
// x (1 + tanh u) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + e^-2u); the slope
// is log2(e^-2u) / size.
template <class F>
SCALED_MM_FUNCTION float gelu_tanh(float x) {
  const float size = F::at_most(F::size(x), 10.0f);
  const float slope = F::fma(size * size, -0x1.a5a7d0p-4f, -0x1.26aec2p+1f);
  const float e = power_of_two<F>(size, slope, 0.0f);
  return without_tail<F>(x, size, e * F::reciprocal(1.0f + e));
}

template <class F, Function function>
SCALED_MM_FUNCTION float value(float x) {
  if constexpr (function == Function::none) return x;
  if constexpr (function == Function::relu) return relu<F>(x);
  if constexpr (function == Function::silu) return silu<F>(x);
  if constexpr (function == Function::gelu) return gelu<F>(x);
  if constexpr (function == Function::gelu_tanh) return gelu_tanh<F>(x);
}

// --- of programs alone (epilogue/program.def); a NaN stays ---

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
// (tanh(x) / x - 1) / x^2 by x^2, for |x| < 5/8.
template <class F>
SCALED_MM_FUNCTION float tanh_near(float square) {
  return polynomial<F>(square, 0x1.18e1c4p-9f, -0x1.0bf4f6p-7f, 0x1.638b56p-6f, -0x1.b9ee90p-5f,
                       0x1.111066p-3f, -0x1.555554p-2f);
}

constexpr float kLog2ERest = 0x1.4ae0c0p-26f;  // log2(e) less kLog2E
// 1.5 2^23 + 64: the exponent has 64 more than the integer, so that a subnormal is rounded once.
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

// An x >= 0 with the sign of `of`.
template <class F>
SCALED_MM_FUNCTION float with_sign(float x, float of) {
  return F::from_bits(F::bits(x) | (F::bits(of) & 0x80000000u));
}

template <class F>
SCALED_MM_FUNCTION float erf(float x) {
  const float size = F::size(x);
  const float near = F::fma(erf_near<F>(x * x), x, x);
  const float log = log2_erfc<F>(F::at_most(size, 4.0f) - 1.0f);
  const float shifted = log + kShift, n = shifted - kShift;
  const float far = F::fma(power_of_two_by_64<F>(shifted, log - n), -0x1p-64f, 1.0f);
  const float made = size < 0.9375f ? near : with_sign<F>(far, x);
  return x == x ? made : x;
}
// 1 / (1 + e^-x): e = e^-|x| is at most 1.
template <class F>
SCALED_MM_FUNCTION float sigmoid(float x) {
  const float e = exp_down<F>(-F::size(x));
  const float made = (x < 0.0f ? e : 1.0f) * F::reciprocal(1.0f + e);
  return x == x ? made : x;
}
// Far from 0, (1 - e) / (1 + e) with e = e^(-2 |x|).
template <class F>
SCALED_MM_FUNCTION float tanh(float x) {
  const float size = F::size(x), square = x * x;
  const float near = F::fma(tanh_near<F>(square) * square, size, size);
  const float e = exp_down<F>(-2.0f * size);
  const float far = (1.0f - e) * F::reciprocal(1.0f + e);
  const float made = size < 0.625f ? near : far;
  return x == x ? with_sign<F>(made, x) : x;
}

}  // namespace scaled_mm::functions
