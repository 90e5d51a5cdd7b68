// A choice is made anew for every call, among the same few sizes: a thread keeps its last answers.
#pragma once

#include <cstdint>

namespace scaled_mm::cuda {

inline uint64_t mix(int64_t m, int64_t n, int64_t k) {
  return (static_cast<uint64_t>(m) * 0x9e3779b97f4a7c15u) ^
         (static_cast<uint64_t>(n) * 0xc2b2ae3d27d4eb4fu) ^
         (static_cast<uint64_t>(k) * 0x165667b19e3779f9u);
}

// find(), or what it gave for the same question; `mixed` is made of the question's parts.
template <class Question, class Find>
auto remember(const Question& question, uint64_t mixed, const Find& find) {
  struct Known {
    bool asked = false;
    Question question;
    decltype(find()) answer;
  };
  thread_local Known all[64];
  Known& known = all[mixed >> 58];
  if (!known.asked || !(known.question == question)) known = {true, question, find()};
  return known.answer;
}

}  // namespace scaled_mm::cuda
