#include "dispatch/tuning.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <sstream>

#include "dispatch/kernel.h"
#include "refuse.h"

namespace scaled_mm {
namespace {

constexpr size_t kMost = 256;  // kinds of GPUs

std::atomic<const Tunings*> in_force = nullptr;
std::mutex replacing;

// Within these limits a prediction is finite and above 0.
void check_number(const char* what, double value, double least, double most) {
  if (std::isfinite(value) && value >= least && value <= most) return;
  refuse(what, cat("be a number in ", least, "..", most), cat(value));
}

template <class P>
void look_up(const Arch& arch, const char* family, const std::string& name, const void*& found) {
  for (const Kernel<P>& kernel : kernels_of<P>(arch)) {
    if (name != cat(arch.name, '/', family, '/', kernel.name)) continue;
    if (!kernel.fit) refuse("kernels", "name kernels that have measured numbers", name);
    found = &kernel;
  }
}

const void* kernel_of(const std::string& name) {
  const void* found = nullptr;
  for (const Arch* arch : archs()) {
    look_up<Int8Problem>(*arch, "int8", name, found);
    look_up<LowbitProblem>(*arch, "lowbit", name, found);
    look_up<KScalesProblem>(*arch, "k_scales", name, found);
  }
  if (!found) refuse("kernels", "be names of this library's", name);
  return found;
}

void replace(uint64_t key, const Tuning* tuning) {
  const std::lock_guard lock(replacing);
  const Tunings* const before = in_force.load(std::memory_order_acquire);
  auto* const after = new Tunings(before ? *before : Tunings{});
  std::erase_if(*after, [&](const Tuning& each) { return each.key == key; });
  if (after->size() >= kMost) after->erase(after->begin());
  after->push_back(*tuning);
  in_force.store(after, std::memory_order_release);
}

}  // namespace

const Tunings* tunings() { return in_force.load(std::memory_order_acquire); }

const Tuning* find_tuning(const Machine& machine) {
  const Tunings* const all = tunings();
  if (!all) return nullptr;
  for (const Tuning& tuning : *all) {
    if (tuning.key == machine.key) return &tuning;
  }
  return nullptr;
}

void tune(std::string device, int64_t capability, int64_t sms, double memory_share,
          std::string kernels, std::vector<double> numbers) {
  check_number("capability", static_cast<double>(capability), 1, 10'000);
  check_number("sms", static_cast<double>(sms), 1, 1e6);
  check_number("memory_share", memory_share, 0.05, 2);
  Tuning tuning{.key = machine_of({.name = device,
                                   .capability = static_cast<int>(capability),
                                   .sms = static_cast<int>(sms)})
                           .key,
                .memory_share = memory_share,
                .fits = {}};
  std::istringstream names(kernels);
  for (std::string name; names >> name;) {
    const size_t at = 2 * tuning.fits.size();
    if (at + 2 > numbers.size()) refuse("numbers", "be two for each kernel", cat(numbers.size()));
    const Fit fit{numbers[at], numbers[at + 1]};
    check_number("fixed_us", fit.fixed_us, 0, 1e4);
    check_number("rate", fit.rate, 1e-3, 1e3);
    const void* const kernel = kernel_of(name);
    if (tuning.find(kernel)) refuse("kernels", "be named once each", name);
    tuning.fits.emplace_back(kernel, fit);
  }
  if (numbers.size() != 2 * tuning.fits.size()) {
    refuse("numbers", "be two for each kernel", cat(numbers.size()));
  }
  replace(tuning.key, &tuning);
}

void untune() {
  const std::lock_guard lock(replacing);
  in_force.store(nullptr, std::memory_order_release);
}

}  // namespace scaled_mm
