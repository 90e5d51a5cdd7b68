// `scaled-mm explain`: the choice of a CUDA kernel, told as JSON. It is the code that chooses at
// every call, asked for any GPU; the CPU library holds the tables of all architectures.
#include <torch/csrc/stable/library.h>

#include <sstream>
#include <vector>

#include "dispatch/choose.h"
#include "dispatch/json.h"
#include "ops/namespace.h"
#include "problems/program.h"

namespace scaled_mm {
namespace {

// --- what a family adds --------------------------------------------------------------------------

std::vector<std::string> notes_of(const Int8Problem::Size& s) {
  if (s.k % 16 == 0) return {};
  return {cat("K=", s.k,
              " is no multiple of 16: contiguous operands are copied into rows that are 16-byte "
              "aligned, the weight once when it is packed")};
}
std::vector<std::string> notes_of(const LowbitProblem::Size& s) {
  if (s.k > 0) return {};
  return {"K is 0: no kernel runs, D is the bias"};
}

std::vector<std::string> notes_of(const KScalesProblem::Size& s) {
  if (s.k > 0) return {};
  return {"K is 0: no kernel runs, D is the bias"};
}

std::string ratio(double us, double least) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << us / least << " times the time of the kernel chosen";
  return text.str();
}

template <class P>
std::string tell_kernel(const Kernel<P>& kernel, const Kernel<P>* chosen,
                        const typename P::Size& size, const Machine& machine) {
  const Tuning* const tuning = find_tuning(machine);
  const auto predict = [&](const Kernel<P>& each) {
    return detail::predict<P>(each, size, machine, tuning);
  };
  const bool is_chosen = &kernel == chosen;
  const std::string refusal = kernel.refuse(size, machine);
  std::string text = cat("{\"name\": ", quoted(kernel.name),
                         ", \"what\": ", quoted(kernel.describe(size, machine)),
                         ", \"chosen\": ", is_chosen ? "true" : "false");
  if (!refusal.empty()) {
    return text + cat(", \"predicted_us\": null, \"reason\": ", quoted(refusal), "}");
  }
  const Prediction p = predict(kernel);
  const std::string reason = is_chosen || !chosen ? "" : ratio(p.us, predict(*chosen).us);
  std::ostringstream json;
  json.precision(10);
  json << ", \"predicted_us\": " << p.us << ", \"memory_us\": " << p.memory
       << ", \"busy_us\": " << p.busy << ", \"waves_us\": " << p.waves
       << ", \"least_us\": " << p.least;
  const Fit* const tuned = tuning ? tuning->find(&kernel) : nullptr;
  if (const Fit* const fit = tuned ? tuned : kernel.fit ? &*kernel.fit : nullptr) {
    json << ", \"fixed_us\": " << fit->fixed_us << ", \"rate\": " << fit->rate
         << ", \"tuned\": " << (tuned ? "true" : "false");
  }
  return text + json.str() + cat(", \"reason\": ", quoted(reason), "}");
}

// {bytes, floor_us, weight_bytes, weight_floor_us, archs, arch, gpu: {class, source, rates}, tuned,
// kernels: [{name, what, chosen, predicted_us, memory_us, busy_us, waves_us, least_us, fixed_us,
// rate, tuned, reason}], notes}. A kernel whose kind cannot be tuned has no fixed_us, rate and
// tuned.
template <class P>
std::string explain(const typename P::Size& size, const DriverFacts& facts) {
  const Machine machine = machine_of(facts);
  const Arch* const arch = find_arch(machine.capability);
  const Kernel<P>* const chosen = arch ? choose<P>(size, machine) : nullptr;
  std::vector<std::string> notes = notes_of(size);
  std::vector<const Kernel<P>*> shown;
  if (arch) {
    for (const Kernel<P>& kernel : kernels_of<P>(*arch)) shown.push_back(&kernel);
  }
  if (const Kernel<P>* forced = detail::find_forced<P>(machine); forced && forced != chosen) {
    notes.push_back(cat(forced_kernels().variable(), "=", forced->name, " does not serve: it ",
                        forced->refuse(size, machine)));
  } else if (forced && std::find(shown.begin(), shown.end(), forced) == shown.end()) {
    shown.push_back(forced);  // of another arch's folder
  }
  std::ostringstream json;
  json.precision(17);
  const double bytes = size.bytes(), weight = size.weight_bytes();
  json << "{\"bytes\": " << static_cast<int64_t>(bytes)
       << ", \"floor_us\": " << bytes / machine.bytes_per_us
       << ", \"weight_bytes\": " << static_cast<int64_t>(weight)
       << ", \"weight_floor_us\": " << weight / machine.bytes_per_us
       << ", \"archs\": " << list(archs(), [](const Arch* each) { return quoted(each->name); })
       << ", \"gpu\": " << tell_machine(facts, machine)
       << ", \"tuned\": " << (find_tuning(machine) ? "true" : "false")
       << ", \"arch\": " << (arch ? quoted(arch->name) : "null") << ", \"kernels\": "
       << list(shown, [&](auto* k) { return tell_kernel<P>(*k, chosen, size, machine); })
       << ", \"notes\": " << list(notes, quoted) << "}";
  return json.str();
}

// --- the ops -------------------------------------------------------------------------------------
// No argument is a tensor, so each library answers for itself: see _library.py.

Int8Problem::Size int8_size(int64_t m, int64_t n, int64_t k, ScalarType out_dtype,
                            std::string_view activation) {
  Int8Problem::Size size{.m = m, .n = n, .k = k};
  size.out_dtype = out_dtype_of(out_dtype).value_or(DType::bfloat16);
  const OperandSet scale = is_8_bit(size.out_dtype) ? bit(Operand::out_scale) : 0;
  const Activation* const found = epilogue::find_activation(activation);
  const Activation& wanted = found ? *found : kActivations[0];
  size.epilogue =
      out_dtype == ScalarType::Int ? epilogue::Id::RawAccumulator : epilogue::choose(scale, wanted);
  size.function = wanted.function;
  return size;
}

std::string explain_int8(int64_t m, int64_t n, int64_t k, ScalarType out_dtype,
                         std::string activation, std::string device, int64_t capability,
                         int64_t sms, double bytes_per_us, double mhz) {
  return explain<Int8Problem>(
      int8_size(m, n, k, out_dtype, activation),
      {device, static_cast<int>(capability), static_cast<int>(sms), bytes_per_us, mhz});
}

std::string explain_grouped(int64_t m, int64_t n, int64_t k, int64_t experts, ScalarType out_dtype,
                            std::string activation, std::string device, int64_t capability,
                            int64_t sms, double bytes_per_us, double mhz) {
  return explain<GroupedInt8Problem>(
      {int8_size(m, n, k, out_dtype, activation), experts},
      {device, static_cast<int>(capability), static_cast<int>(sms), bytes_per_us, mhz});
}

std::string explain_lowbit(int64_t m, int64_t n, int64_t k, int64_t group, int64_t bits,
                           int64_t zero_point, bool packed, std::string device, int64_t capability,
                           int64_t sms, double bytes_per_us, double mhz) {
  const Packing words = bits == 4 ? Packing::awq : Packing::plain;
  return explain<LowbitProblem>(
      {.m = m,
       .n = n,
       .k = k,
       .group = group,
       .bits = static_cast<int>(bits),
       .packing = packed ? Packing::units : words,
       .zero_point = static_cast<ZeroPoint>(zero_point)},
      {device, static_cast<int>(capability), static_cast<int>(sms), bytes_per_us, mhz});
}

std::string explain_k_scales(int64_t m, int64_t n, int64_t k, int64_t group, bool in_blocks,
                             ScalarType out_dtype, std::string device, int64_t capability,
                             int64_t sms, double bytes_per_us, double mhz) {
  return explain<KScalesProblem>(
      {.m = m,
       .n = n,
       .k = k,
       .group = group,
       .in_blocks = in_blocks,
       .out_dtype = out_dtype_of(out_dtype).value_or(DType::bfloat16)},
      {device, static_cast<int>(capability), static_cast<int>(sms), bytes_per_us, mhz});
}

// As of the product that is compiled with the program; "light": whether is_light.
std::string explain_program(std::vector<int64_t> ints, int64_t m, int64_t n, int64_t k,
                            std::string device, int64_t capability, int64_t sms,
                            double bytes_per_us, double mhz) {
  const Program program = read_program(ints);
  const std::string answer = explain<Int8Problem>(
      size_ended_by(program, {.m = m, .n = n, .k = k}),
      {device, static_cast<int>(capability), static_cast<int>(sms), bytes_per_us, mhz});
  return cat("{\"light\": ", is_light(program) ? "true" : "false", ", ", answer.substr(1));
}

}  // namespace
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("_explain_int8", TORCH_BOX(&scaled_mm::explain_int8));
  ops.impl("_explain_grouped", TORCH_BOX(&scaled_mm::explain_grouped));
  ops.impl("_explain_lowbit", TORCH_BOX(&scaled_mm::explain_lowbit));
  ops.impl("_explain_k_scales", TORCH_BOX(&scaled_mm::explain_k_scales));
  ops.impl("_explain_program", TORCH_BOX(&scaled_mm::explain_program));
}
