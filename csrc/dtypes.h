// The floating-point dtypes as a closed enumeration. A tensor's ScalarType becomes a DType where
// the tensor becomes a plain struct (problems/); from there on no code can meet a dtype that it
// does not know. The visitor has no default branch: where a dtype's code is missing, nothing
// compiles.
#pragma once

#include <torch/headeronly/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <type_traits>

namespace scaled_mm {

using torch::headeronly::ScalarType;

enum class DType : uint8_t {
#define DTYPE(name, scalar_type, storage) name,
#define DTYPE8 DTYPE
#include "dtypes.def"
#undef DTYPE8
#undef DTYPE
};

// Whether an epilogue quantises to it. Only D is of such a dtype.
constexpr bool is_8_bit(DType dtype) {
  return dtype == DType::int8 || dtype == DType::float8_e4m3fn;
}

template <DType>
struct StorageOf;
#define DTYPE(name, scalar_type, storage) \
  template <>                             \
  struct StorageOf<DType::name> {         \
    using type = storage;                 \
  };
#include "dtypes.def"
#undef DTYPE
template <DType dtype>
using Storage = typename StorageOf<dtype>::type;

// use(constant) with an integral_constant of the dtype, which is not an 8-bit one.
template <class Use>
constexpr decltype(auto) with_dtype(DType dtype, Use&& use) {
  switch (dtype) {
#define DTYPE(name, scalar_type, storage) \
  case DType::name: return use(std::integral_constant<DType, DType::name>{});
#define DTYPE8(name, scalar_type, storage) \
  case DType::name: break;
#include "dtypes.def"
#undef DTYPE8
#undef DTYPE
  }
  __builtin_unreachable();
}

constexpr int size_of(DType dtype) {
  if (is_8_bit(dtype)) return 1;
  return with_dtype(dtype, [](auto d) { return static_cast<int>(sizeof(Storage<d>)); });
}

// As with_dtype, for the 16-bit dtypes alone: what a caller has refused does not come here.
template <class Use>
constexpr decltype(auto) with_dtype16(DType dtype, Use&& use) {
  using Result = decltype(use(std::integral_constant<DType, DType::float16>{}));
  return with_dtype(dtype, [&](auto d) -> Result {
    if constexpr (sizeof(Storage<d>) == 2) {
      return use(d);
    } else {
      __builtin_unreachable();
    }
  });
}

// What torch calls it; and back, where there is one.
constexpr ScalarType scalar_type(DType dtype) {
  switch (dtype) {
#define DTYPE(name, scalar_type, storage) \
  case DType::name: return ScalarType::scalar_type;
#define DTYPE8 DTYPE
#include "dtypes.def"
#undef DTYPE8
#undef DTYPE
  }
  __builtin_unreachable();
}
constexpr std::optional<DType> dtype_of(ScalarType type) {
#define DTYPE(name, scalar_type, storage) \
  if (type == ScalarType::scalar_type) return DType::name;
#include "dtypes.def"
#undef DTYPE
  return std::nullopt;
}
// The dtype of a product's output, which may be an 8-bit one.
constexpr std::optional<DType> out_dtype_of(ScalarType type) {
#define DTYPE8(name, scalar_type, storage) \
  if (ScalarType::scalar_type == type) return DType::name;
#define DTYPE(name, scalar_type, storage)
#include "dtypes.def"
#undef DTYPE8
#undef DTYPE
  return dtype_of(type);
}

}  // namespace scaled_mm
