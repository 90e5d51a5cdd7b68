// The door: every op of the library, one schema each. Kernels register themselves for CPU in
// csrc/cpu/ and for CUDA in csrc/cuda/; shape-only (fake) kernels are in Python, where symbolic
// sizes can be seen.
//
// b_shape is absent for a plain int8 weight b [K, N] and (K, N) for a buffer from pack_weight_int8.
#include <torch/csrc/stable/library.h>

#include "namespace.h"

STABLE_TORCH_LIBRARY(SCALED_MM_NAMESPACE, ops) {
  ops.def(
      "scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
      "Tensor? azp=None, Tensor? azp_adj=None, Tensor? azp_with_adj=None, "
      "ScalarType out_dtype=bfloat16, int[]? b_shape=None) -> Tensor");
  ops.def("int8_mm(Tensor a, Tensor b, *, int[]? b_shape=None) -> Tensor");
  ops.def("azp_adj(Tensor b, *, int[]? b_shape=None) -> Tensor");
  ops.def("azp_with_adj(Tensor b, Tensor azp, *, int[]? b_shape=None) -> Tensor");
  ops.def("pack_weight_int8(Tensor b) -> Tensor");
  ops.def(
      "quantize_int8(Tensor x, *, bool symmetric=True, bool per_token=True) "
      "-> (Tensor, Tensor, Tensor?)");
  ops.def("quantize_weight_int8(Tensor w, *, bool per_channel=True) -> (Tensor, Tensor)");
  ops.def("quantize_int8_static(Tensor x, Tensor scale, Tensor? azp=None) -> Tensor");
  ops.def("awq_dequantize(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor");
  ops.def(
      "awq_gemm(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, Tensor? bias=None) "
      "-> Tensor");
  ops.def("_widen(Tensor words, *, int bits, bool signed, ScalarType dtype) -> Tensor");
}
