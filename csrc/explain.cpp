// What `scaled-mm explain` shows: the choice of a CUDA kernel, told as JSON. In the CPU library,
// which holds the tuning tables of every arch, so that it works where there is no GPU.
#include "explain.h"

#include <sstream>

#include "check.h"

namespace scaled_mm::cuda {

void begin(std::ostream& json, double bytes, const Machine& machine) {
  json << "{\"bytes\": " << static_cast<int64_t>(bytes)
       << ", \"floor_us\": " << bytes / machine.bytes_per_us << ", \"archs\": [";
  for (const Arch& arch : archs()) {
    json << (&arch == archs().data() ? "" : ", ") << '"' << arch.name << '"';
  }
  const Arch* arch = find_arch(machine.capability);
  json << "], \"arch\": " << (arch ? cat('"', arch->name, '"') : "null");
}

std::string slower(double us, double least) {
  std::ostringstream text;
  text.precision(2);
  text << std::fixed << us / least << " times the time of the row chosen";
  return text.str();
}

void end(std::ostream& json, const std::vector<std::string>& notes) {
  json << ", \"notes\": [";
  for (size_t i = 0; i < notes.size(); ++i) json << (i ? ", " : "") << '"' << notes[i] << '"';
  json << "]}";
}

namespace {

std::string describe(const Config& c) {
  const std::string tile = cat(c.tile_m, " tokens x ", c.tile_n, " channels");
  if (c.kernel == Kernel::stream) return "streams the weight, tiles of " + tile;
  const char* schedule = c.schedule == Schedule::pingpong ? "ping-pong" : "cooperative";
  return cat("CUTLASS, ", schedule, ", tiles of ", tile, ", clusters of ", c.cluster_m, " x ",
             c.cluster_n);
}

std::vector<std::string> notes(const Size& size, bool streams) {
  std::vector<std::string> found;
  if (size.k % 16) {
    found.push_back(cat("K=", size.k,
                        " is no multiple of 16: contiguous operands are copied into rows that are "
                        "16-byte aligned, the weight once when it is packed"));
  }
  if (!streams && size.n * size.out_bytes % 16) {
    found.push_back(cat("rows of D of ", size.n * size.out_bytes,
                        " bytes are not 16-byte aligned: D is written padded and copied"));
  }
  return found;
}

std::string explain(const Size& size, const Machine& machine) {
  std::ostringstream json;
  const double bytes =
      double(size.n) * size.k + double(size.m) * size.k + double(size.m) * size.n * size.out_bytes;
  begin(json, bytes, machine);
  json << ", \"rows\": [";
  const Arch* arch = find_arch(machine.capability);
  if (!arch) {
    json << "]}";
    return json.str();
  }
  const int chosen = pick(*arch, size, machine);
  const double least = predict(arch->rows[chosen].config, size, machine).us;
  for (size_t i = 0; i < arch->rows.size(); ++i) {
    const auto& [name, config] = arch->rows[i];
    const bool is_chosen = static_cast<int>(i) == chosen;
    json << (i ? ", " : "") << "{\"name\": \"" << name << "\", \"what\": \"" << describe(config)
         << "\", \"chosen\": " << (is_chosen ? "true" : "false");
    if (size.k == 0 && config.kernel != Kernel::stream) {
      json << ", \"predicted_us\": null, \"reason\": \"has nothing to load when K is 0\"}";
      continue;
    }
    const Prediction p = predict(config, size, machine);
    json << ", \"predicted_us\": " << p.us << ", \"memory_us\": " << p.memory
         << ", \"busy_us\": " << p.busy << ", \"waves_us\": " << p.waves << ", \"reason\": \""
         << (is_chosen ? "" : slower(p.us, least)) << "\"}";
  }
  json << ']';
  end(json, notes(size, arch->rows[chosen].config.kernel == Kernel::stream));
  return json.str();
}

}  // namespace
}  // namespace scaled_mm::cuda

// JSON: {bytes, floor_us, archs, arch, rows: [{name, what, chosen, predicted_us, memory_us,
// busy_us, waves_us, reason}], notes}, or {error}. The text holds until the thread's next call.
extern "C" __attribute__((visibility("default"))) const char* scaled_mm_explain(
    int64_t m, int64_t n, int64_t k, int capability, int sms, double bytes_per_us, int out_bytes) {
  using namespace scaled_mm::cuda;
  return answer([&] { return explain({m, n, k, out_bytes}, {capability, sms, bytes_per_us}); });
}

// The rows of an arch's table, "name, name, ..."; empty for an arch without one.
extern "C" __attribute__((visibility("default"))) const char* scaled_mm_cuda_rows(
    const char* arch_name) {
  thread_local std::string names;
  names.clear();
  for (const auto& arch : scaled_mm::cuda::archs()) {
    if (std::string(arch_name) != arch.name) continue;
    for (const auto& row : arch.rows) names += (names.empty() ? "" : ", ") + std::string(row.name);
  }
  return names.c_str();
}
