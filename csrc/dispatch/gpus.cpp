#include "dispatch/gpus.h"

#include <algorithm>
#include <cctype>
#include <sstream>

#include "dispatch/json.h"
#include "refuse.h"

namespace scaled_mm {
namespace {

using enum RateSource;

constexpr KnownGpu kGpus[] = {
#define GPU(...) {__VA_ARGS__},
#include "dispatch/gpus.def"
#undef GPU
};

constexpr struct {
  int capability;
  double products;
} kProductsPerClock[] = {
#define PRODUCTS_PER_CLOCK(...) {__VA_ARGS__},
#include "dispatch/gpus.def"
#undef PRODUCTS_PER_CLOCK
};

// Measured on an H200 (docs/tuning.md), for a clock where it is a rate of the multiprocessors'.
constexpr double kMhz = 1980;
constexpr double kMemoryShare = 0.87;
constexpr double kKept = 0.7124;
constexpr double kL2BytesPerClock = 59.2e3 / kMhz;   // of each multiprocessor, when all read
constexpr double kLoneBytesPerClock = 110e3 / kMhz;  // of one alone
constexpr double kUnknownBytesPerUs = 2e6;           // of memory, where nobody tells: an A100's

// Whether the words stand in the text, and no letter or digit touches them.
bool has_words(std::string_view text, std::string_view words) {
  const auto apart = [&](size_t at) {
    return at >= text.size() || !std::isalnum(static_cast<unsigned char>(text[at]));
  };
  for (size_t at = text.find(words); at != text.npos; at = text.find(words, at + 1)) {
    if ((at == 0 || apart(at - 1)) && apart(at + words.size())) return true;
  }
  return false;
}

double products_per_clock(int capability) {
  double products = kProductsPerClock[0].products;
  for (const auto& line : kProductsPerClock) {
    if (line.capability <= capability) products = line.products;
  }
  return products;
}

// FNV-1a.
uint64_t key_of(const DriverFacts& facts) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : cat(facts.name, '/', facts.capability, '/', facts.sms)) {
    hash = (hash ^ c) * 0x100000001b3u;
  }
  return hash;
}

const char* name_of(RateSource source) {
  return source == measured ? "measured" : source == published ? "published" : "derived";
}

}  // namespace

const KnownGpu* find_gpu(std::string_view name, int capability) {
  // The name with more words is the narrower one: an H100 PCIe is no H100.
  const KnownGpu* found = nullptr;
  for (const KnownGpu& gpu : kGpus) {
    if (gpu.capability != capability) continue;
    if (gpu.name == name) return &gpu;
    if (has_words(name, gpu.words) && (!found || gpu.words.size() > found->words.size())) {
      found = &gpu;
    }
  }
  return found;
}

Machine machine_of(const DriverFacts& facts) {
  const KnownGpu* const known = find_gpu(facts.name, facts.capability);
  const double told = facts.mhz > 0 ? facts.mhz : kMhz;
  const double mhz = known ? known->mhz : told;
  Machine machine;
  machine.capability = facts.capability;
  machine.sms = facts.sms;
  machine.bytes_per_us = facts.bytes_per_us > 0 ? facts.bytes_per_us
                         : known                ? 1e6 * known->tb_per_s
                                                : kUnknownBytesPerUs;
  machine.memory_share = kMemoryShare;
  machine.lone_bytes_per_us = kLoneBytesPerClock * mhz;
  machine.most_products_per_us = products_per_clock(facts.capability) * mhz;
  machine.products_per_us = kKept * machine.most_products_per_us;
  machine.l2_bytes_per_us = kL2BytesPerClock * mhz;
  if (known) {  // of the whole chip; a part of it has its multiprocessors' part
    machine.most_products_per_us = 1e6 * known->tops / 2 / known->sms;
    machine.products_per_us = known->kept * machine.most_products_per_us;
    machine.l2_bytes_per_us = 1e6 * known->l2_tb_per_s / known->sms;
  }
  machine.l2_bytes_per_us = std::min(machine.l2_bytes_per_us, machine.lone_bytes_per_us);
  machine.latency = kMhz / mhz;
  machine.key = key_of(facts);
  return machine;
}

std::string list_gpus() {
  return list(kGpus, [](const KnownGpu& gpu) {
    return cat("{\"name\": ", quoted(std::string(gpu.name)), ", \"capability\": ", gpu.capability,
               ", \"sms\": ", gpu.sms, ", \"tb_per_s\": ", gpu.tb_per_s, ", \"mhz\": ", gpu.mhz,
               ", \"source\": ", quoted(name_of(gpu.source)), "}");
  });
}

std::string tell_machine(const DriverFacts& facts, const Machine& machine) {
  const KnownGpu* const known = find_gpu(facts.name, facts.capability);
  std::ostringstream json;
  json.precision(17);
  json << "{\"class\": " << (known ? quoted(std::string(known->name)) : "null")
       << ", \"source\": " << quoted(name_of(known ? known->source : derived))
       << ", \"bytes_per_us\": " << machine.bytes_per_us
       << ", \"memory_share\": " << machine.memory_share
       << ", \"products_per_us\": " << machine.products_per_us
       << ", \"most_products_per_us\": " << machine.most_products_per_us
       << ", \"l2_bytes_per_us\": " << machine.l2_bytes_per_us
       << ", \"lone_bytes_per_us\": " << machine.lone_bytes_per_us
       << ", \"latency\": " << machine.latency << "}";
  return json.str();
}

}  // namespace scaled_mm
