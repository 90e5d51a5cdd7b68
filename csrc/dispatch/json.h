// JSON, as far as the answers about choices need it.
#pragma once

#include <string>

namespace scaled_mm {

// Texts hold no quotes, backslashes or control characters but those that are taken out here.
inline std::string quoted(std::string text) {
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

}  // namespace scaled_mm
