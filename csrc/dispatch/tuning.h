// What `scaled-mm tune` measured on a user's GPU, in place of the tables' own numbers. It changes
// which kernel is chosen, never what one computes; and nothing is taken unchecked.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "dispatch/gpus.h"
#include "dispatch/predict.h"

namespace scaled_mm {

struct Tuning {
  uint64_t key = 0;                               // of the machine
  double memory_share = 0;                        // as the machine's
  std::vector<std::pair<const void*, Fit>> fits;  // by kernel

  const Fit* find(const void* kernel) const {
    for (const auto& [of, fit] : fits) {
      if (of == kernel) return &fit;
    }
    return nullptr;
  }
};

// All that are in force: never changed, but replaced by others, and kept, since threads may still
// read the ones before.
using Tunings = std::vector<Tuning>;
const Tunings* tunings();

// Of the machine; null: none.
const Tuning* find_tuning(const Machine& machine);

// Takes the numbers for one kind of GPU, in place of those it had. `kernels`: names such as
// sm90/int8/stream_8x64, separated by spaces; `numbers`: of each its fixed_us and rate. Refuses a
// name that no kernel has, or whose kernel has no such numbers, one that stands twice, and numbers
// that are no such times.
void tune(std::string device, int64_t capability, int64_t sms, double memory_share,
          std::string kernels, std::vector<double> numbers);
void untune();  // takes back all

}  // namespace scaled_mm
