// `scaled-mm explain`: the choice of a CUDA kernel, told as JSON. It is the code that chooses at
// every call, asked for any GPU; the CPU library holds the tables of all architectures.
#include <torch/csrc/stable/library.h>

#include <sstream>
#include <vector>

#include "dispatch/choose.h"
#include "namespace.h"

namespace scaled_mm {
namespace {

// --- what a family adds
// ----------------------------------------------------------------------------

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

// --- JSON
// ------------------------------------------------------------------------------------------

// Texts hold no quotes, backslashes or control characters but those that are taken out here.
std::string quoted(std::string text) {
  std::erase_if(
      text, [](char c) { return c == '"' || c == '\\' || static_cast<unsigned char>(c) < ' '; });
  return '"' + text + '"';
}

// A list of JSON values.
template <class Items, class Tell>
std::string list(const Items& items, const Tell& tell) {
  std::string text;
  for (const auto& item : items) text += (text.empty() ? "" : ", ") + tell(item);
  return "[" + text + "]";
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
  const bool is_chosen = &kernel == chosen;
  const std::string refusal = kernel.refuse(size, machine);
  std::string text = cat("{\"name\": ", quoted(kernel.name),
                         ", \"what\": ", quoted(kernel.describe(size, machine)),
                         ", \"chosen\": ", is_chosen ? "true" : "false");
  if (!refusal.empty()) {
    return text + cat(", \"predicted_us\": null, \"reason\": ", quoted(refusal), "}");
  }
  const Prediction p = kernel.predict(size, machine);
  const std::string reason =
      is_chosen || !chosen ? "" : ratio(p.us, chosen->predict(size, machine).us);
  return text + cat(", \"predicted_us\": ", p.us, ", \"memory_us\": ", p.memory,
                    ", \"busy_us\": ", p.busy, ", \"waves_us\": ", p.waves,
                    ", \"reason\": ", quoted(reason), "}");
}

// {bytes, floor_us, weight_bytes, weight_floor_us, archs, arch, kernels: [{name, what, chosen,
// predicted_us, memory_us, busy_us, waves_us, reason}], notes}
template <class P>
std::string explain(const typename P::Size& size, const Machine& machine) {
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
       << ", \"arch\": " << (arch ? quoted(arch->name) : "null") << ", \"kernels\": "
       << list(shown, [&](auto* k) { return tell_kernel<P>(*k, chosen, size, machine); })
       << ", \"notes\": " << list(notes, quoted) << "}";
  return json.str();
}

// --- the ops
// --------------------------------------------------------------------------------------- No
// argument is a tensor, so each library answers for itself: see _library.py.

std::string explain_int8(int64_t m, int64_t n, int64_t k, ScalarType out_dtype,
                         std::string activation, int64_t capability, int64_t sms,
                         double bytes_per_us) {
  Int8Problem::Size size{.m = m, .n = n, .k = k};
  if (activation == kActivationNames[static_cast<int>(Activation::reglu)]) {
    size.epilogue = epilogue::Id::ScaledEpilogueReGLU;
  }
  size.out_dtype = dtype_of(out_dtype).value_or(DType::bfloat16);
  return explain<Int8Problem>(size,
                              {static_cast<int>(capability), static_cast<int>(sms), bytes_per_us});
}

std::string explain_lowbit(int64_t m, int64_t n, int64_t k, int64_t group, int64_t capability,
                           int64_t sms, double bytes_per_us) {
  return explain<LowbitProblem>(
      {.m = m, .n = n, .k = k, .group = group},
      {static_cast<int>(capability), static_cast<int>(sms), bytes_per_us});
}

}  // namespace
}  // namespace scaled_mm

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CPU, ops) {
  ops.impl("_explain_int8", TORCH_BOX(&scaled_mm::explain_int8));
  ops.impl("_explain_lowbit", TORCH_BOX(&scaled_mm::explain_lowbit));
}
