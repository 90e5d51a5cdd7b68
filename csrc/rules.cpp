#include "rules.h"

#include <algorithm>

namespace scaled_mm {

std::string name(ScalarType dtype) {
  switch (dtype) {
    case ScalarType::Byte: return "uint8";
    case ScalarType::Char: return "int8";
    case ScalarType::Short: return "int16";
    case ScalarType::Int: return "int32";
    case ScalarType::Long: return "int64";
    case ScalarType::Half: return "float16";
    case ScalarType::BFloat16: return "bfloat16";
    case ScalarType::Float: return "float32";
    case ScalarType::Double: return "float64";
    case ScalarType::Bool: return "bool";
    default: return torch::headeronly::toString(dtype);
  }
}

std::string shape_text(Sizes sizes) {
  std::string text = "(";
  for (size_t i = 0; i < sizes.size(); ++i) {
    text += (i ? ", " : "") + std::to_string(sizes[i]);
  }
  return text + (sizes.size() == 1 ? ",)" : ")");
}
std::string shape(const Tensor& t) { return "shape " + shape_text(t.sizes()); }

std::string device_text(const Tensor& t) {
  if (t.is_cpu()) return "cpu";
  return cat(t.is_cuda() ? "cuda" : "device", ":", t.get_device_index());
}

void must_be(const char* argument, const Tensor& t, ScalarType dtype) {
  if (!has_dtype(t, dtype)) refuse(argument, "be " + name(dtype), name(t.scalar_type()));
}

void must_share_device(const char* argument, const Tensor& t, const char* other_name,
                       const Tensor& other) {
  if (t.is_cpu() != other.is_cpu() || t.get_device_index() != other.get_device_index()) {
    refuse(argument, cat("be on the device of ", other_name, " (", device_text(other), ")"),
           device_text(t));
  }
}

DType must_be_float(const char* argument, const Tensor& t) {
  const std::optional<DType> dtype = dtype_of(t);
  if (!dtype) refuse(argument, "be float32, bfloat16 or float16", name(t.scalar_type()));
  return *dtype;
}

DType must_be_16_bit_float(const char* argument, const Tensor& t) {
  const std::optional<DType> dtype = dtype_of(t);
  if (!dtype || size_of(*dtype) != 2) {
    refuse(argument, "be float16 or bfloat16", name(t.scalar_type()));
  }
  return *dtype;
}

void must_be_float32_or(const char* argument, const Tensor& t, const char* whose,
                        ScalarType dtype) {
  if (!has_dtype(t, dtype) && !has_dtype(t, ScalarType::Float)) {
    refuse(argument, cat("be float32 or ", whose, " ", name(dtype)), name(t.scalar_type()));
  }
}

bool is_per_row(const Tensor& t, const Tensor& matrix) {
  const Sizes sizes = t.sizes(), rows = matrix.sizes().slice(0, matrix.dim() - 1);
  const bool column = sizes.size() > rows.size() && sizes.back() == 1;
  return sizes.slice(0, sizes.size() - column).equals(rows);
}
std::string per_row_text(const Tensor& matrix) {
  const std::vector<int64_t> sizes = sizes_with_last(matrix, 1);
  return shape_text(Sizes(sizes).slice(0, sizes.size() - 1)) + " or " + shape_text(sizes);
}

bool is_per_column(const Tensor& t, int64_t n) {
  const bool flat = t.dim() == 1, row = t.dim() == 2 && t.size(0) == 1;
  return (flat || row) && t.size(t.dim() - 1) == n;
}
std::string per_column_text(int64_t n) { return shape_text({n}) + " or " + shape_text({1, n}); }

namespace {

constexpr uintptr_t kAlignment = 16;  // of D, which CUDA kernels write in vectors of 16 bytes

struct Bytes {
  uintptr_t begin, end;
};

// From the first byte of t's elements to the last.
Bytes span(const Tensor& t) {
  const auto begin = reinterpret_cast<uintptr_t>(t.const_data_ptr());
  if (t.numel() == 0) return {begin, begin};
  int64_t last = 0;
  for (int64_t i = 0; i < t.dim(); ++i) last += (t.size(i) - 1) * t.stride(i);
  return {begin, begin + static_cast<uintptr_t>((last + 1) * t.element_size())};
}

}  // namespace

Tensor output_tensor(const std::optional<Tensor>& out, const char* like_name, const Tensor& like,
                     Sizes sizes, ScalarType dtype) {
  if (!out) return new_empty(like, sizes, dtype);
  must_be("out", *out, dtype);
  must_share_device("out", *out, like_name, like);
  if (!out->sizes().equals(sizes)) {
    refuse("out", "have the output's shape " + shape_text(sizes), shape(*out));
  }
  if (!out->is_contiguous()) {
    refuse("out", "be contiguous", "strides " + shape_text(out->strides()));
  }
  const uintptr_t beyond = span(*out).begin % kAlignment;
  if (out->is_cuda() && beyond) {
    refuse("out", cat("begin at a multiple of ", kAlignment, " bytes on CUDA"),
           cat("an address ", beyond, " bytes after one"));
  }
  return *out;
}

void must_lie_apart(const Tensor& out, const char* argument, const Tensor& t) {
  const Bytes written = span(out), read = span(t);
  const bool apart = written.end <= read.begin || read.end <= written.begin;
  if (apart || written.begin == written.end || read.begin == read.end) return;
  refuse("out", cat("share no memory with ", argument),
         cat("an overlap of ",
             std::min(written.end, read.end) - std::max(written.begin, read.begin), " bytes"));
}

std::vector<int64_t> sizes_with_last(const Tensor& like, int64_t last) {
  std::vector<int64_t> sizes(like.sizes().begin(), like.sizes().end());
  sizes.back() = last;
  return sizes;
}

}  // namespace scaled_mm
