// What `scaled-mm explain --awq` shows: the choice of an int4 product's arm.
#include <cstdlib>
#include <sstream>

#include "check.h"
#include "cuda/awq_config.h"
#include "explain.h"

namespace scaled_mm::cuda {
namespace {

std::string describe(const AwqArm& arm, const AwqSize& size, const Machine& machine) {
  if (arm.tokens == 0) return "dequantises W to memory, then a dense product";
  const AwqPlan plan = plan_awq(arm, size, machine.sms);
  return cat("straight from the words, tiles of ", arm.tokens, " tokens, ", plan.cut(), " of ",
             plan.tiles, " in ", plan.slices, " slices of K");
}

// What of a shape the streaming arms do not take.
std::string refusal(const AwqSize& size) {
  if (size.k == 0) return "has nothing to load when K is 0";
  if (size.k % kAwqDepth) {
    return cat("does not take the shape: K=", size.k, " is no multiple of ", kAwqDepth);
  }
  if (size.n % 32) return cat("does not take the shape: N=", size.n, " is no multiple of 32");
  return cat("does not take the shape: groups of ", size.group, ", not 32 or a multiple of 64");
}

void row(std::ostream& json, const AwqArm& arm, const AwqArm& chosen, const AwqSize& size,
         const Machine& machine) {
  json << "{\"name\": \"" << arm.name << "\", \"what\": \"" << describe(arm, size, machine)
       << "\", \"chosen\": " << (&arm == &chosen ? "true" : "false");
  if (arm.tokens > 0 && !streams(size)) {
    json << ", \"predicted_us\": null, \"reason\": \"" << refusal(size) << "\"}";
    return;
  }
  const AwqPrediction p = predict(arm, size, machine);
  const double least = predict(chosen, size, machine).us;
  json << ", \"predicted_us\": " << p.us << ", \"memory_us\": " << p.memory
       << ", \"busy_us\": " << p.busy << ", \"reason\": \""
       << (&arm == &chosen ? "" : slower(p.us, least)) << "\"}";
}

std::vector<std::string> notes(const AwqSize& size, const AwqArm& chosen) {
  std::vector<std::string> found;
  if (size.k == 0) found.push_back("K is 0: no arm runs, D is the bias");
  const char* forced = std::getenv("SCALED_MM_AWQ_ARM");
  if (forced && *forced && std::string(forced) != chosen.name) {
    found.push_back(cat("SCALED_MM_AWQ_ARM=", forced, " does not take the shape"));
  }
  return found;
}

std::string explain(const AwqSize& size, const Machine& machine) {
  const double words = awq_weight_bytes(size);
  const double bytes = words + 2 * double(size.m) * (double(size.n) + size.k);
  std::ostringstream json;
  begin(json, bytes, machine);
  json << ", \"weight_bytes\": " << static_cast<int64_t>(words)
       << ", \"weight_floor_us\": " << words / machine.bytes_per_us << ", \"rows\": [";
  if (!find_arch(machine.capability)) {
    json << "]}";
    return json.str();
  }
  const AwqArm& chosen = pick_awq(size, machine);
  for (const AwqArm& arm : awq_arms()) {
    json << (&arm == awq_arms().data() ? "" : ", ");
    row(json, arm, chosen, size, machine);
  }
  json << ']';
  end(json, notes(size, chosen));
  return json.str();
}

}  // namespace
}  // namespace scaled_mm::cuda

// As scaled_mm_explain, and {weight_bytes, weight_floor_us}; without waves_us.
extern "C" __attribute__((visibility("default"))) const char* scaled_mm_explain_awq(
    int64_t m, int64_t n, int64_t k, int64_t group, int capability, int sms, double bytes_per_us) {
  using namespace scaled_mm::cuda;
  return answer([&] { return explain({m, n, k, group}, {capability, sms, bytes_per_us}); });
}
