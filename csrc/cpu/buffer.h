// Scratch memory of a task: aligned to a cache line, not initialised, freed with the scope. Of no
// elements: none, since an allocation takes as long as a small product.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace scaled_mm::cpu {

template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count)
      : data_(count ? static_cast<T*>(std::aligned_alloc(64, bytes(count))) : nullptr) {
    if (count && !data_) throw std::bad_alloc();
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  T& operator[](size_t i) { return data_[i]; }

 private:
  static size_t bytes(size_t count) { return (count * sizeof(T) + 64) / 64 * 64; }
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T[], Free> data_;
};

}  // namespace scaled_mm::cpu
