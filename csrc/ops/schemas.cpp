// Every op of the library, one schema each. Kernels register themselves for CPU in csrc/cpu/ and
// for CUDA in csrc/cuda/; shape-only (fake) kernels are in Python, where symbolic sizes can be
// seen.
//
// b_shape is absent for a plain int8 weight b [K, N] and (K, N) for a buffer from pack_weight_int8.
// b_settled, and settled of mixed_mm: nothing that is still to run on the device writes such a
// buffer before the product reads it, so a CUDA kernel may read it at once; _settle makes that so
// (docs/tuning.md, "Early weights"). The CPU has no use for them.
// out_dtype is bfloat16 when it is absent: AOTInductor takes a dtype that stands as the default in
// a schema for an integer, and then refuses to load what it compiled.
//
// produce_int8 returns q; scale and azp of a dynamic quantiser; the sum with the residual; and the
// norm as floats (normed).
//
// rotate: the columns of a block that is rotated before it is quantised; 0: none is.
//
// _scaled_mm_plain is scaled_mm of the commonest operands. It takes them by position: an argument
// that is given by its name costs an eager call 0.4 us. And it takes b_shape as two numbers, both
// -1 for a plain weight: a list costs as much again.
//
// scaled_linear is a layer: quantize_int8 of x, or of float32(x) * input_smooth [K], dynamic or by
// input_scale and input_azp, and scaled_mm of that, in x's dtype. Its weight is int8 [N, K] or
// packed, of k rows; its scales are [N, 1]. azp_term is the azp_adj of a dynamic, the azp_with_adj
// of a static zero point. With a producer that is a function, function(x) [* times] is quantised in
// the place of x, as produce_int8 does it. The commonest arguments come first: one that is given,
// if as its default, costs an eager call 0.1 us.
//
// epilogue_mm is a product whose epilogue is a program: problems/program.h.
//
// An overload `out` computes the same as its op, but into a tensor of the caller's. It returns
// nothing, since torch.compile takes no op whose result is an argument.
#include <torch/csrc/stable/library.h>

#include "ops/namespace.h"

STABLE_TORCH_LIBRARY(SCALED_MM_NAMESPACE, ops) {
  ops.def(
      "scaled_mm(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
      "Tensor? azp=None, Tensor? azp_adj=None, Tensor? azp_with_adj=None, Tensor? residual=None, "
      "str? activation=None, ScalarType? out_dtype=None, Tensor? out_scale=None, "
      "Tensor? out_azp=None, int[]? b_shape=None, bool b_settled=False) -> Tensor");
  ops.def(
      "scaled_mm.out(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, *, Tensor? bias=None, "
      "Tensor? azp=None, Tensor? azp_adj=None, Tensor? azp_with_adj=None, Tensor? residual=None, "
      "str? activation=None, ScalarType? out_dtype=None, Tensor? out_scale=None, "
      "Tensor? out_azp=None, int[]? b_shape=None, bool b_settled=False, Tensor(a!) out) -> ()");
  ops.def(
      "_scaled_mm_plain(Tensor a, Tensor b, Tensor scale_a, Tensor scale_b, Tensor? bias, "
      "int k, int n, bool b_settled, ScalarType? out_dtype) -> Tensor");
  ops.def(
      "scaled_linear(Tensor x, Tensor weight, Tensor weight_scale, Tensor? bias, int k, "
      "bool settled=False, Tensor? input_smooth=None, bool symmetric=True, bool per_token=True, "
      "Tensor? input_scale=None, Tensor? input_azp=None, Tensor? azp_term=None, int rotate=0, "
      "str? producer=None, Tensor? times=None) -> Tensor");
  ops.def(
      "epilogue_mm(Tensor a, Tensor b, Tensor[] operands, int[] program, *, int[]? b_shape=None, "
      "bool b_settled=False) -> Tensor[]");
  // CUDA's: what compiles epilogues (scaled_mm/compiled), and one that was compiled, to be tried.
  ops.def("_set_compiler(int address, bool required) -> ()");
  ops.def(
      "_try_compiled(Tensor a, Tensor b, Tensor[] operands, int[] program, str kernel, "
      "int address) -> Tensor[]");
  ops.def("int8_mm(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False) -> Tensor");
  ops.def(
      "int8_mm.out(Tensor a, Tensor b, *, int[]? b_shape=None, bool b_settled=False, "
      "Tensor(a!) out) -> ()");
  ops.def(
      "_scaled_epilogue(Tensor acc, Tensor scale_a, Tensor scale_b, *, Tensor? bias, Tensor? azp, "
      "Tensor? azp_adj, Tensor? azp_with_adj, ScalarType out_dtype) -> Tensor");
  ops.def("azp_adj(Tensor b, *, int[]? b_shape=None) -> Tensor");
  ops.def("azp_with_adj(Tensor b, Tensor azp, *, int[]? b_shape=None) -> Tensor");
  ops.def("pack_weight_int8(Tensor b) -> Tensor");
  ops.def("_settle(Tensor memory) -> ()");
  ops.def(
      "quantize_int8(Tensor x, *, bool symmetric=True, bool per_token=True, int rotate=0) "
      "-> (Tensor, Tensor, Tensor?)");
  ops.def(
      "quantize_weight_int8(Tensor w, *, bool per_channel=True, int rotate=0) -> (Tensor, Tensor)");
  ops.def("quantize_int8_static(Tensor x, Tensor scale, Tensor? azp=None, int rotate=0) -> Tensor");
  ops.def(
      "produce_int8(str producer, Tensor x, *, Tensor? weight=None, Tensor? bias=None, "
      "Tensor? residual=None, Tensor? times=None, bool halves=False, float eps=0.0, "
      "Tensor? smooth=None, Tensor? scale=None, Tensor? azp=None, bool symmetric=True, "
      "bool normed=False, int rotate=0) -> (Tensor, Tensor?, Tensor?, Tensor?, Tensor?)");
  ops.def("awq_dequantize(Tensor qweight, Tensor scales, Tensor qzeros) -> Tensor");
  ops.def(
      "awq_gemm(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, Tensor? bias=None, "
      "Tensor? residual=None, str? activation=None) -> Tensor");
  ops.def(
      "awq_gemm.out(Tensor x, Tensor qweight, Tensor scales, Tensor qzeros, *, Tensor? bias=None, "
      "Tensor? residual=None, str? activation=None, Tensor(a!) out) -> ()");
  ops.def("mixed_dequantize(Tensor packed, int[] sizes) -> Tensor");
  ops.def(
      "mixed_mm(Tensor x, Tensor packed, int[] sizes, Tensor? order=None, "
      "Tensor? pre_scale=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
      "bool settled=False) -> Tensor");
  ops.def(
      "mixed_mm.out(Tensor x, Tensor packed, int[] sizes, *, Tensor? order=None, "
      "Tensor? pre_scale=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
      "bool settled=False, Tensor(a!) out) -> ()");

  ops.def(
      "w4a8_mm(Tensor x, Tensor packed, int[] sizes, Tensor scale_a, *, Tensor? order=None, "
      "Tensor? azp=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
      "ScalarType? out_dtype=None) -> Tensor");
  ops.def(
      "w4a8_mm.out(Tensor x, Tensor packed, int[] sizes, Tensor scale_a, *, Tensor? order=None, "
      "Tensor? azp=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
      "ScalarType? out_dtype=None, Tensor(a!) out) -> ()");

  ops.def(
      "grouped_mm(Tensor a, Tensor b, Tensor offsets, Tensor scale_a, Tensor scale_b, *, "
      "Tensor? bias=None, Tensor? azp=None, Tensor? azp_adj=None, Tensor? residual=None, "
      "str? activation=None, ScalarType? out_dtype=None, Tensor? out_scale=None, "
      "Tensor? out_azp=None, Tensor? rows=None, int[]? b_shape=None) -> Tensor");
  ops.def(
      "grouped_mixed_mm(Tensor x, Tensor packed, int[] sizes, Tensor offsets, *, "
      "Tensor? order=None, Tensor? bias=None, Tensor? residual=None, str? activation=None, "
      "Tensor? rows=None, bool settled=False) -> Tensor");
  ops.def(
      "moe_combine(Tensor y, Tensor weights, Tensor places, *, Tensor? residual=None, "
      "ScalarType? out_dtype=None) -> Tensor");
  // CUDA's; moe_sort is made of torch's ops.
  ops.def("_moe_sort(Tensor top_k_index, int num_experts) -> (Tensor, Tensor, Tensor)");

  // About the libraries themselves (dispatch/). They take no tensor; scaled_mm/_library.py says
  // which of the two libraries is asked.
  ops.def(
      "_explain_int8(int m, int n, int k, ScalarType out_dtype, str activation, str device, "
      "int capability, int sms, float bytes_per_us, float mhz) -> str");
  ops.def(
      "_explain_grouped(int m, int n, int k, int experts, ScalarType out_dtype, str activation, "
      "str device, int capability, int sms, float bytes_per_us, float mhz) -> str");
  ops.def(
      "_explain_lowbit(int m, int n, int k, int group, int bits, int zero_point, bool packed, "
      "str device, int capability, int sms, float bytes_per_us, float mhz) -> str");
  ops.def(
      "_explain_k_scales(int m, int n, int k, int group, bool in_blocks, ScalarType out_dtype, str "
      "device, int capability, int sms, float bytes_per_us, float mhz) -> str");
  ops.def(
      "_explain_program(int[] program, int m, int n, int k, str device, int capability, int sms, "
      "float bytes_per_us, float mhz) -> str");
  ops.def("_gpus() -> str");
  ops.def("_fingerprint(str arch) -> str");
  ops.def(
      "_tune(str device, int capability, int sms, float memory_share, str kernels, "
      "float[] numbers) -> ()");
  ops.def("_untune() -> ()");
  ops.def("_archs() -> str");
  ops.def("_arch_of(int capability) -> str");
  ops.def("_kernels(str arch, str family) -> str");
  ops.def("_force_kernels(str names) -> str");
  ops.def("_cpu_isas() -> str");
  ops.def("_cpu_isa() -> str");
  ops.def("_force_cpu_isa(str name) -> str");
}
