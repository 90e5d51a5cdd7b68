// What is known of a GPU: gpus.def by its name, and what the driver tells.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace scaled_mm {

// The GPU, as far as the choice of a kernel depends on it. Rates are those that kernels reach.
struct Machine {
  int capability = 0;         // 10 * major + minor
  int sms = 0;                // multiprocessors
  double bytes_per_us = 0.0;  // of device memory, peak
  double memory_share = 0.0;  // of that, at best
  // Of a multiprocessor: int8 multiply-adds; bytes from L2 when all read, and when it is alone.
  double products_per_us = 0.0;
  double most_products_per_us = 0.0;  // at full clock, which a power limit does not leave for long
  double l2_bytes_per_us = 0.0;
  double lone_bytes_per_us = 0.0;
  double latency = 1.0;  // of what has no rate (launches, epilogues), over an H200's
  uint64_t key = 0;      // of its kind: what tuning.h knows it by
  bool operator==(const Machine&) const = default;
};

// What a driver tells of a GPU; 0: it does not.
struct DriverFacts {
  std::string_view name;
  int capability = 0;
  int sms = 0;
  double bytes_per_us = 0;  // of device memory
  double mhz = 0;           // highest clock
};

// Whence the rates are: gpus.def has the words.
enum class RateSource { measured, published, derived };

// A line of gpus.def.
struct KnownGpu {
  std::string_view name, words;
  int capability, sms;
  double tb_per_s, mhz, tops, kept, l2_tb_per_s;
  RateSource source;
};

// The first line that fits; null: none.
const KnownGpu* find_gpu(std::string_view name, int capability);
Machine machine_of(const DriverFacts& facts);

// All lines as a JSON list of {name, capability, sms, tb_per_s, mhz, source}.
std::string list_gpus();
// Of one GPU, {class, source, ...rates}: what `scaled-mm explain` says of it.
std::string tell_machine(const DriverFacts& facts, const Machine& machine);

}  // namespace scaled_mm
