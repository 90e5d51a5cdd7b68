// The quantisers.
#pragma once

#include "problems/tensors.h"

namespace scaled_mm {

// What quantize_int8 reads and writes. Rows are tokens; per tensor they share one scale.
struct QuantizeProblem {
  int64_t rows = 0;
  int64_t cols = 0;
  Matrix<const void> x;
  DType x_dtype = DType::float32;
  bool symmetric = true;
  bool per_token = true;
  int64_t rotate = 0;      // columns of a block that is rotated first (rotation_factor); 0: none
  bool given = false;      // static: scale (and azp) are inputs; otherwise they are outputs
  int8_t* q = nullptr;     // row-major without gaps
  float* scale = nullptr;  // element r * scale_stride
  int32_t* azp = nullptr;  // element r * azp_stride; absent when symmetric
  int64_t scale_stride = 0;
  int64_t azp_stride = 0;
};

// What a rotation of blocks of so many columns, a power of four or twice one, multiplies by at its
// end: 1 / sqrt(block), rounded to float32.
constexpr float rotation_factor(int64_t block) {
  float factor = 1.0f;
  for (; block >= 4; block /= 4) factor /= 2;
  return block == 2 ? factor * 0x1.6a09e6p-1f : factor;
}

// The rows of x [..., K], and their rotation. All but what is made of them.
void take_rows(QuantizeProblem& p, const char* argument, const Tensor& x, int64_t rotate,
               std::vector<Tensor>& copies);

// The rotation of the rows that p quantises, of p.cols columns: 0, or 16 to 512.
void take_rotation(QuantizeProblem& p, int64_t rotate);

// The scales of a dynamic quantiser, new and added to `outputs`: scale and (unless symmetric) azp.
void add_scales(QuantizeProblem& p, const Tensor& x, Sizes sizes, bool symmetric, bool per_token,
                std::vector<Tensor>& outputs);
// Those of a static one: one element each, or one for each row of x.
void take_scales(QuantizeProblem& p, const Tensor& x, const Tensor& scale,
                 const std::optional<Tensor>& azp, std::vector<Tensor>& copies);

// outputs: q, scale and (unless symmetric) azp.
Checked<QuantizeProblem> check_quantize(const Tensor& x, bool symmetric, bool per_token,
                                        int64_t rotate);
// outputs: q [N, K], scale [1, N] or [1, 1].
Checked<QuantizeProblem> check_quantize_weight(const Tensor& w, bool per_channel, int64_t rotate);
// outputs: q.
Checked<QuantizeProblem> check_quantize_static(const Tensor& x, const Tensor& scale,
                                               const std::optional<Tensor>& azp, int64_t rotate);

}  // namespace scaled_mm
