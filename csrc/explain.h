// What the explanations of `scaled-mm explain` have in common: how their JSON begins and ends.
#pragma once

#include <algorithm>
#include <ostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "cuda/config.h"

namespace scaled_mm::cuda {

// {"bytes": .., "floor_us": .., "archs": [..], "arch": .. or null
void begin(std::ostream& json, double bytes, const Machine& machine);

// Why a kernel that serves is not the one.
std::string slower(double us, double least);

// , "notes": [..]}
void end(std::ostream& json, const std::vector<std::string>& notes);

// The text of `tell`, or {error}; it holds until the thread's next call.
template <class Tell>
const char* answer(Tell tell) {
  thread_local std::string text;
  try {
    text = tell();
  } catch (const std::invalid_argument& refusal) {
    text = refusal.what();
    std::erase_if(text, [](char c) { return c == '"' || c == '\\' || c < ' '; });  // as in JSON
    text = "{\"error\": \"" + text + "\"}";
  }
  return text.c_str();
}

}  // namespace scaled_mm::cuda
