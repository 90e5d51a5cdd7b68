// How the library refuses an argument: one std::invalid_argument, which reaches Python as a
// ValueError that reads "<argument> must <rule>, got <value>". (STD_TORCH_CHECK would prefix
// function, file and line.) Never throw inside a parallel_for worker: the text is lost there.
#pragma once

#include <sstream>
#include <stdexcept>
#include <string>

namespace scaled_mm {

template <class... Parts>
std::string cat(const Parts&... parts) {
  std::ostringstream text;
  (text << ... << parts);
  return text.str();
}

[[noreturn]] inline void refuse(const std::string& argument, const std::string& rule,
                                const std::string& value) {
  throw std::invalid_argument(cat(argument, " must ", rule, ", got ", value));
}

}  // namespace scaled_mm
