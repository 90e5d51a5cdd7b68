// Scratch memory of a task: aligned to a cache line, not initialised, freed with the scope. An
// allocation takes as long as a small product: of no elements there is none, and what fits into
// `kWithin` bytes lies within the buffer itself.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace scaled_mm::cpu {

template <class T, size_t kWithin = 0>
class Buffer {
 public:
  explicit Buffer(size_t count) {
    if (count == 0) return;
    if (count * sizeof(T) <= kWithin) {
      data_ = reinterpret_cast<T*>(within_);
      return;
    }
    allocated_.reset(static_cast<T*>(std::aligned_alloc(64, bytes(count))));
    if (!allocated_) throw std::bad_alloc();
    data_ = allocated_.get();
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  T& operator[](size_t i) { return data_[i]; }

 private:
  static size_t bytes(size_t count) { return (count * sizeof(T) + 64) / 64 * 64; }
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  T* data_ = nullptr;
  std::unique_ptr<T[], Free> allocated_;
  alignas(64) char within_[kWithin ? kWithin : 1];
};

}  // namespace scaled_mm::cpu
