#include "ops/linear.h"

#include "rules.h"

namespace scaled_mm {

Tensor vector_of_scales(const Tensor& scales) {
  if (scales.dim() != 2 || scales.size(1) != 1) {
    refuse("scale_b", "have shape [N, 1]", shape(scales));
  }
  const int64_t size = scales.size(0), stride = scales.stride(0);
  AtenTensorHandle vector = nullptr;
  // 0: beyond the place in the memory where the scales begin.
  TORCH_ERROR_CODE_CHECK(
      aoti_torch__reinterpret_tensor(scales.get(), 1, &size, &stride, 0, &vector));
  return Tensor(vector);
}

}  // namespace scaled_mm
