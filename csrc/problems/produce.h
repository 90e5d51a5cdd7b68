// The producers: a quantiser with a function of the row's inputs in front of it.
#pragma once

#include <string>
#include <tuple>
#include <utility>

#include "problems/quantize.h"

namespace scaled_mm {

// What is quantised. Norms read a weight (and bias); functions, in Function's order, may have a
// second factor (`times`).
enum class Producer : uint8_t {
  rms_norm,
  layer_norm,
  relu,
  silu,
  gelu,
  gelu_tanh,
  none  // x itself; no call names it
};
inline constexpr const char* kProducerNames[] = {"rms_norm", "layer_norm", "relu",
                                                 "silu",     "gelu",       "gelu_tanh"};
constexpr bool is_norm(Producer producer) { return producer <= Producer::layer_norm; }
constexpr Function function_of(Producer producer) {  // of one that is no norm
  if (producer == Producer::none) return Function::none;
  constexpr int before = static_cast<int>(Producer::relu) - static_cast<int>(Function::relu);
  return static_cast<Function>(static_cast<int>(producer) - before);
}
static_assert(function_of(Producer::gelu_tanh) == Function::gelu_tanh);

// use(constant) with an integral_constant of the producer, which has a name.
template <class Use>
constexpr decltype(auto) with_producer(Producer producer, Use&& use) {
  switch (producer) {
#define PRODUCER(name) \
  case Producer::name: return use(std::integral_constant<Producer, Producer::name>{})
    PRODUCER(rms_norm);
    PRODUCER(layer_norm);
    PRODUCER(relu);
    PRODUCER(silu);
    PRODUCER(gelu);
    PRODUCER(gelu_tanh);
#undef PRODUCER
    case Producer::none: break;
  }
  __builtin_unreachable();
}

// The order of a row's sum (docs/numerics.md, section 6): columns in groups of kGroup, groups in
// kLanes lanes; within a lane one after the other, groups and lanes by halves.
inline constexpr int kSumGroup = 8;
inline constexpr int kSumLanes = 4096;

// Everything in x's dtype lies in rows whose columns stand side by side.
struct ProduceProblem : QuantizeProblem {
  Producer producer = Producer::none;
  // Norms: added to x first. Functions: the second factor. Of x's dtype; or absent.
  Matrix<const void> other;
  void* sum = nullptr;            // x + other, rounded to x's dtype, row-major; or absent
  void* normed = nullptr;         // norms: the result before smooth, likewise
  EpilogueOperand weight, bias;   // of norms: columns side by side; bias may be absent
  const float* smooth = nullptr;  // [cols], what the result is multiplied by; or absent
  float eps = 0.0f;
};

struct ProduceArguments {
  std::string producer;
  Tensor x;
  std::optional<Tensor> weight, bias, residual, times;
  bool halves;  // x holds the factors in its halves, first the function's argument
  double eps;
  std::optional<Tensor> smooth, scale, azp;
  bool symmetric;
  bool normed;     // whether the norm is wanted as floats too
  int64_t rotate;  // as for the quantiser, the last step before it; 0: none
};

// outputs: q; then, where there are such, scale, azp (of a dynamic quantiser), sum and normed.
Checked<ProduceProblem> check_produce(const ProduceArguments& given);

// A function of p's rows, x, and its second factor, in front of the quantiser.
void take_function(ProduceProblem& p, const std::string& producer, const Tensor& x,
                   const std::optional<Tensor>& times, std::vector<Tensor>& copies);

// The op, for a backend whose kernels `run(problem, q)` runs.
using Produced = std::tuple<Tensor, std::optional<Tensor>, std::optional<Tensor>,
                            std::optional<Tensor>, std::optional<Tensor>>;
template <auto run>
Produced produce_int8(std::string producer, const Tensor& x, const std::optional<Tensor>& weight,
                      const std::optional<Tensor>& bias, const std::optional<Tensor>& residual,
                      const std::optional<Tensor>& times, bool halves, double eps,
                      const std::optional<Tensor>& smooth, const std::optional<Tensor>& scale,
                      const std::optional<Tensor>& azp, bool symmetric, bool normed,
                      int64_t rotate) {
  const Checked<ProduceProblem> checked =
      check_produce({std::move(producer), x, weight, bias, residual, times, halves, eps, smooth,
                     scale, azp, symmetric, normed, rotate});
  const ProduceProblem& p = checked.problem;
  run(p, checked.outputs[0]);
  auto next = checked.outputs.begin();
  Produced made{*next++, std::nullopt, std::nullopt, std::nullopt, std::nullopt};
  if (!p.given) std::get<1>(made) = *next++;
  if (!p.given && !p.symmetric) std::get<2>(made) = *next++;
  if (residual && is_norm(p.producer)) std::get<3>(made) = *next++;
  if (normed) std::get<4>(made) = *next++;
  return made;
}

}  // namespace scaled_mm
