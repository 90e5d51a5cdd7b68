// scaled_mm and int8_mm on CUDA: problem -> arch -> epilogue -> row -> launch.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <array>
#include <utility>

#include "archs.h"
#include "cuda/config.h"
#include "cuda/launch.h"
#include "cuda/relayout.h"
#include "epilogue/registry.h"
#include "namespace.h"

namespace scaled_mm::cuda {
namespace {

using Run = void (*)(const Product&, const Device&, cudaStream_t);

template <class Row, size_t... I>
constexpr std::array<Run, sizeof...(I)> launches(std::index_sequence<I...>) {
  return {&Launch<static_cast<Row>(I)>::run...};
}

// The launches of an arch's rows, in the order of its table.
std::span<const Run> launches(const Arch& arch) {
#define ARCH(name)                                                                 \
  if (arch.rows.data() == name::kRows) {                                           \
    static constexpr auto all =                                                    \
        launches<name::RowId>(std::make_index_sequence<std::size(name::kRows)>{}); \
    return all;                                                                    \
  }
  SCALED_MM_ARCHS
#undef ARCH
  return {};
}

constexpr int64_t round_up(int64_t x, int64_t multiple) {
  return (x + multiple - 1) / multiple * multiple;
}

// The first instance that reads all that is given. A lone azp_with_adj is azp_adj with azp = 1.
Instance choose_instance(Problem& p) {
  constexpr auto index = [](Operand operand) { return static_cast<int>(operand); };
  OperandSet given = p.given;
  if (given & bit(Operand::azp_with_adj) && !(given & bit(Operand::azp))) {
    std::swap(p.operands[index(Operand::azp_with_adj)], p.operands[index(Operand::azp_adj)]);
    given ^= bit(Operand::azp_with_adj) | bit(Operand::azp_adj);
  }
  constexpr OperandSet neutral = bit(Operand::bias) | bit(Operand::azp);  // may be absent
#define INSTANCE(name, epilogue_name)                           \
  if (!(given & ~epilogue::epilogue_name::accepted) &&          \
      !(epilogue::epilogue_name::required & ~given & ~neutral)) \
    return Instance::name;
#include "cuda/instances.def"
#undef INSTANCE
  throw std::logic_error("no kernel reads these operands: " + epilogue::names(p.given));
}

// An int8 matrix [rows, cols] as TMA can read it: itself, or a copy that `keep` keeps.
std::pair<const int8_t*, int64_t> readable(const Matrix<const int8_t>& x, int64_t rows,
                                           int64_t cols, const Tensor& like, cudaStream_t stream,
                                           std::vector<Tensor>& keep) {
  const bool gapless = x.col_stride == 1 || cols == 1;
  const bool aligned = reinterpret_cast<uintptr_t>(x.data) % 16 == 0 &&
                       (rows == 1 || (x.row_stride % 16 == 0 && x.row_stride >= cols));
  if (cols == 0 || (gapless && aligned)) {
    return {x.data, rows == 1 ? round_up(cols, 16) : x.row_stride};
  }
  const int64_t stride = round_up(cols, 16);
  const Tensor& copy = keep.emplace_back(new_empty(like, {rows * stride}, ScalarType::Char));
  int8_t* data = static_cast<int8_t*>(copy.mutable_data_ptr());
  relayout(x, rows, cols, data, stride, stream);
  return {data, stride};
}

Matrix<const int8_t> transposed(const Weight& b) {
  if (b.packed) return {reinterpret_cast<const int8_t*>(b.packed), packed_stride(b.k), 1};
  return {b.plain.data, b.plain.col_stride, b.plain.row_stride};
}

Tensor run(Checked<Problem> checked, Instance instance) {
  Problem& p = checked.problem;
  const Tensor& d = checked.outputs[0];
  if (p.m == 0 || p.n == 0) return d;
  must_fit("a", "rows", p.m);
  must_fit("b", "columns", p.n);
  const Scope scope(d.get_device_index());
  std::vector<Tensor>& keep = checked.inputs;
  const Arch& arch = *scope.device.arch;
  const bool narrow = p.out_dtype == ScalarType::BFloat16 || p.out_dtype == ScalarType::Half;
  const int out_bytes = narrow ? 2 : 4;
  const int row = pick(arch, {p.m, p.n, p.k, out_bytes}, scope.device);

  Product product;
  product.m = p.m;
  product.n = p.n;
  product.k = p.k;
  std::tie(product.a, product.lda) = readable(p.a, p.m, p.k, d, scope.stream, keep);
  std::tie(product.b, product.ldb) = readable(transposed(p.b), p.n, p.k, d, scope.stream, keep);
  product.out_dtype = p.out_dtype;
  product.instance = instance;
  std::copy(std::begin(p.operands), std::end(p.operands), product.operands.of);

  // TMA writes D, except in the streaming kernels: then its rows have to be 16-byte aligned.
  product.d = p.d;
  product.ldd = p.n;
  const int64_t aligned = round_up(p.n, 16 / out_bytes);
  const bool padded = arch.rows[row].config.kernel != Kernel::stream && aligned != p.n;
  if (padded) {
    product.ldd = aligned;
    product.d = keep.emplace_back(new_empty(d, {p.m * aligned}, p.out_dtype)).mutable_data_ptr();
  }
  launches(arch)[row](product, scope.device, scope.stream);
  if (padded) {
    copy_rows(product.d, aligned * out_bytes, p.d, p.n * out_bytes, p.m, scope.stream);
  }
  return d;
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a, const Tensor& scale_b,
                 std::optional<Tensor> bias, std::optional<Tensor> azp,
                 std::optional<Tensor> azp_adj, std::optional<Tensor> azp_with_adj,
                 ScalarType out_dtype, Shape b_shape) {
  Checked<Problem> checked =
      check_scaled_mm(a, b, scale_a, scale_b, bias, azp, azp_adj, azp_with_adj, out_dtype, b_shape);
  epilogue::choose(checked.problem.given);  // refuses what no epilogue reads
  const Instance instance = choose_instance(checked.problem);
  return run(std::move(checked), instance);
}

Tensor int8_mm(const Tensor& a, const Tensor& b, Shape b_shape) {
  return run(check_int8_mm(a, b, b_shape), Instance::raw);
}

}  // namespace
}  // namespace scaled_mm::cuda

STABLE_TORCH_LIBRARY_IMPL(SCALED_MM_NAMESPACE, CUDA, ops) {
  ops.impl("scaled_mm", TORCH_BOX(&scaled_mm::cuda::scaled_mm));
  ops.impl("int8_mm", TORCH_BOX(&scaled_mm::cuda::int8_mm));
}

// The archs whose kernels are in this library, "sm90, ...": for scaled_mm._library.
extern "C" __attribute__((visibility("default"))) const char* scaled_mm_cuda_archs() {
  static const std::string names = scaled_mm::cuda::arch_names();
  return names.c_str();
}
