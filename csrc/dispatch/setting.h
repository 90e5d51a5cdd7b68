// An environment variable that is read once, when the library is loaded: getenv() later would race
// with a thread that writes the environment. Tests and tools may set the value instead.
#pragma once

#include <atomic>
#include <cstdlib>
#include <string>

namespace scaled_mm {

class Setting {
 public:
  explicit Setting(const char* variable)
      : variable_(variable), value_(kept(std::getenv(variable))) {}

  const char* variable() const { return variable_; }
  // Null where the variable is unset or empty.
  const std::string* get() const { return value_.load(std::memory_order_acquire); }
  // Returns the value before. Threads may still read that, so it is kept: a few bytes a test.
  std::string exchange(const std::string& value) {
    const std::string* const before =
        value_.exchange(kept(value.c_str()), std::memory_order_acq_rel);
    return before ? *before : "";
  }

 private:
  static const std::string* kept(const char* value) {
    return value && *value ? new std::string(value) : nullptr;
  }

  const char* const variable_;
  std::atomic<const std::string*> value_;
};

}  // namespace scaled_mm
