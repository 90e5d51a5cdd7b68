#include "problems/tensors.h"

#include <torch/csrc/stable/ops.h>

#include <limits>

#include "rules.h"

namespace scaled_mm {
namespace {

// What a dtype is called in the C interface.
int32_t shim_dtype(ScalarType dtype) {
  return torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
}

// The one stride that leads through all elements in order, where there is one; 0 for one element.
std::optional<int64_t> single_stride(Sizes sizes, Sizes strides) {
  std::optional<int64_t> stride;
  int64_t next = 0;
  for (size_t i = sizes.size(); i-- > 0;) {
    if (sizes[i] == 1) continue;
    if (stride && strides[i] != next) return std::nullopt;
    if (!stride) stride = strides[i];
    next = strides[i] * sizes[i];
  }
  return stride.value_or(0);
}

}  // namespace

bool has_dtype(const Tensor& t, ScalarType dtype) {
  int32_t number = 0;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(t.get(), &number));
  return number == shim_dtype(dtype);
}

std::optional<DType> dtype_of(const Tensor& t) {
#define DTYPE(name, scalar_type, storage) \
  if (has_dtype(t, ScalarType::scalar_type)) return DType::name;
#include "dtypes.def"
#undef DTYPE
  return std::nullopt;
}

// torch::stable::new_empty costs 1 us, for it finds the op by name; this, 0.4.
Tensor new_empty(const Tensor& like, Sizes sizes, ScalarType dtype) {
  int32_t number = shim_dtype(dtype);
  AtenTensorHandle tensor = nullptr;
  if (aoti_torch_aten_new_empty(like.get(), sizes.data(), static_cast<int64_t>(sizes.size()),
                                &number, nullptr, nullptr, 0, nullptr, &tensor) != TORCH_SUCCESS) {
    auto bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(number));
    for (const int64_t size : sizes) {
      if (__builtin_mul_overflow(bytes, size, &bytes)) bytes = std::numeric_limits<int64_t>::max();
    }
    throw OutOfMemory(
        cat("could not allocate ", bytes, " bytes on ", device_text(like), ": out of memory"));
  }
  return Tensor(tensor);
}

Tensor row_major_copy(const Tensor& t) {
  Tensor copy = new_empty(t, t.sizes(), t.scalar_type());
  torch::stable::copy_(copy, t);
  return copy;
}

int64_t count_rows(const Tensor& t) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < t.dim(); ++i) rows *= t.size(i);
  return rows;
}

Matrix<const void> fold_rows(const Tensor& t, std::vector<Tensor>& copies) {
  const size_t last = t.dim() - 1;
  const Sizes sizes = t.sizes(), strides = t.strides();
  if (const auto row_stride = single_stride(sizes.slice(0, last), strides.slice(0, last))) {
    return {t.const_data_ptr(), *row_stride, strides[last]};
  }
  return {copies.emplace_back(row_major_copy(t)).const_data_ptr(), sizes[last], 1};
}

EpilogueOperand operand_along(epilogue::Axis axis, const Tensor& t, std::vector<Tensor>& copies) {
  const DType dtype = dtype_of(t).value_or(DType::float32);
  if (axis == epilogue::Axis::Full) {
    const bool side_by_side = t.stride(t.dim() - 1) == 1 || t.size(t.dim() - 1) <= 1;
    const Tensor& rows = side_by_side ? t : copies.emplace_back(row_major_copy(t));
    const Matrix<const void> matrix = fold_rows(rows, copies);
    return {matrix.data, dtype, matrix.row_stride, 1};
  }
  const void* data = t.const_data_ptr();
  std::optional<int64_t> stride = single_stride(t.sizes(), t.strides());
  if (!stride) {
    data = copies.emplace_back(row_major_copy(t)).const_data_ptr();
    stride = 1;
  }
  if (axis == epilogue::Axis::Row) return {data, dtype, 0, *stride};
  return {data, dtype, *stride, 0};
}

}  // namespace scaled_mm
