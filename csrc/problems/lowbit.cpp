#include "problems/lowbit.h"

#include <tuple>

#include "integers.h"
#include "rules.h"

namespace scaled_mm {
namespace {

void must_be_matrix(const char* argument, const Tensor& t, const char* rule) {
  if (t.dim() != 2) refuse(argument, cat("be a matrix ", rule), shape(t));
}

// A matrix whose rows hold their elements side by side: t itself where it is one, else a copy.
template <class T>
Matrix<const T> dense_rows(const Tensor& t, std::vector<Tensor>& copies) {
  const bool dense = t.stride(1) == 1 || t.size(1) <= 1;
  const Tensor& rows = dense ? t : copies.emplace_back(row_major_copy(t));
  return {static_cast<const T*>(rows.const_data_ptr()), rows.stride(0), 1};
}

LowbitWeight check_awq_weight(const Tensor& qweight, const Tensor& scales, const Tensor& qzeros,
                              std::vector<Tensor>& copies) {
  LowbitWeight w;
  must_be("qweight", qweight, ScalarType::Int);
  must_be_matrix("qweight", qweight, "[K, N/8]");
  w.k = qweight.size(0);
  w.n = 8 * qweight.size(1);

  w.dtype = must_be_16_bit_float("scales", scales);
  must_be_matrix("scales", scales, "[K/G, N]");
  must_share_device("scales", scales, "qweight", qweight);
  if (scales.size(1) % 8 != 0) {
    refuse("scales", "have N columns, a multiple of 8", cat("N=", scales.size(1)));
  }
  if (scales.size(1) != w.n) {
    refuse("scales", cat("have N=", w.n, " columns, 8 for each of qweight"), shape(scales));
  }
  const int64_t groups = scales.size(0);
  if (w.k > 0 && (groups == 0 || w.k % groups != 0)) {
    refuse("scales",
           cat("have K/G rows for a group size G that divides K=", w.k, ", the rows of qweight"),
           cat(groups, " groups, ", groups ? cat("G=", w.k, "/", groups) : std::string("no G"),
               ", ", shape(scales)));
  }
  w.group = groups ? w.k / groups : 0;

  must_be("qzeros", qzeros, ScalarType::Int);
  must_be_matrix("qzeros", qzeros, "[K/G, N/8]");
  must_share_device("qzeros", qzeros, "qweight", qweight);
  if (qzeros.size(0) != groups || qzeros.size(1) != qweight.size(1)) {
    refuse("qzeros", "have shape (K/G, N/8) = " + shape_text({groups, qweight.size(1)}),
           shape(qzeros));
  }
  w.q = dense_rows<uint32_t>(qweight, copies);
  w.zeros = dense_rows<uint32_t>(qzeros, copies);
  w.scales = dense_rows<uint16_t>(scales, copies);
  return w;
}

// 16-bit elements of a packed weight, or none where its sizes are no weight's.
std::optional<int64_t> packed_elements(int64_t k, int64_t n, int64_t group, int64_t layout) {
  constexpr int64_t kMost = int64_t{1} << 31;  // of rows and of columns, so that nothing overflows
  if (k < 0 || k >= kMost || n < 0 || n >= kMost || n % 8 != 0) return std::nullopt;
  if (k > 0 ? group < 1 || k % group != 0 : group != 0) return std::nullopt;
  if (layout == 0) {
    const int64_t groups = group ? k / group : 0;
    return k * n / 4 + groups * n + groups * n / 4;
  }
  if (layout != 1 || group % 32 != 0 || k == 0 || n == 0) return std::nullopt;
  return ceil_div(k, kUnitRows) * ceil_div(n, kUnitChannels) * (unit_bytes(unit_sets(group)) / 2);
}

LowbitWeight check_packed_weight(const Tensor& packed, const std::vector<int64_t>& sizes) {
  if (sizes.size() != 4) refuse("sizes", "be (K, N, G, layout)", shape_text(sizes));
  const auto [k, n, group, layout] = std::tie(sizes[0], sizes[1], sizes[2], sizes[3]);
  const std::optional<int64_t> elements = packed_elements(k, n, group, layout);
  if (!elements) {
    refuse(
        "sizes",
        "be (K, N, G, layout) with N a multiple of 8, G a divisor of K (0 for K = 0) and layout 0"
        " or, for groups of a multiple of 32, 1",
        shape_text(sizes));
  }
  LowbitWeight w;
  w.k = k, w.n = n, w.group = group;
  w.dtype = must_be_16_bit_float("packed", packed);
  if (packed.dim() != 1 || packed.size(0) != *elements ||
      (*elements > 1 && packed.stride(0) != 1)) {
    refuse("packed",
           cat("be a contiguous buffer of shape ", shape_text({*elements}), " for K=", k, ", N=", n,
               ", G=", group),
           shape(packed));
  }
  const auto* const data = static_cast<const uint8_t*>(packed.const_data_ptr());
  const int alignment = layout == 0 ? 4 : 16;
  if (reinterpret_cast<uintptr_t>(data) % alignment != 0) {
    refuse("packed", cat("begin at a multiple of ", alignment, " bytes"),
           cat("an address ", reinterpret_cast<uintptr_t>(data) % alignment, " bytes past one"));
  }
  if (layout == 1) {
    w.packing = Packing::units;
    w.units = data;
    return w;
  }
  const int64_t groups = group ? k / group : 0;
  const auto* const scales = data + k * n / 2;
  w.q = {reinterpret_cast<const uint32_t*>(data), n / 8, 1};
  w.scales = {reinterpret_cast<const uint16_t*>(scales), n, 1};
  w.zeros = {reinterpret_cast<const uint32_t*>(scales + 2 * groups * n), n / 8, 1};
  return w;
}

void add_output(Checked<LowbitProblem>& checked, const Tensor& d) {
  checked.problem.d = static_cast<uint16_t*>(checked.outputs.emplace_back(d).mutable_data_ptr());
}

}  // namespace

Checked<LowbitProblem> check_awq_dequantize(const Tensor& qweight, const Tensor& scales,
                                            const Tensor& qzeros) {
  Checked<LowbitProblem> checked;
  LowbitProblem& p = checked.problem;
  p.w = check_awq_weight(qweight, scales, qzeros, checked.inputs);
  p.m = p.w.k;
  add_output(checked, new_empty(qweight, {p.w.k, p.w.n}, scalar_type(p.w.dtype)));
  return checked;
}

namespace {

// What of a product the kind of weight does not matter to; `weight` is the tensor that holds q.
void check_rest(Checked<LowbitProblem>& checked, const Tensor& x, const Tensor& weight,
                const char* scales, const std::optional<Tensor>& bias,
                const std::optional<Tensor>& out) {
  LowbitProblem& p = checked.problem;
  const ScalarType dtype = scalar_type(p.w.dtype);
  if (dtype != x.scalar_type()) {
    refuse(scales, "be of x's dtype " + name(x.scalar_type()), name(dtype));
  }
  if (x.size(x.dim() - 1) != p.w.k) {
    refuse("x", cat("have K=", p.w.k, " columns, the rows of qweight"), shape(x));
  }
  p.m = count_rows(x);
  p.x = fold_rows<uint16_t>(x, checked.inputs);
  if (bias) {
    must_be_float32_or("bias", *bias, "x's", dtype);
    must_share_device("bias", *bias, "x", x);
    if (!is_per_column(*bias, p.w.n)) {
      refuse("bias", cat("have N=", p.w.n, " elements, in shape ", per_column_text(p.w.n)),
             shape(*bias));
    }
    p.bias = operand_along(epilogue::Axis::Row, *bias, checked.inputs);
  }
  add_output(checked, output_tensor(out, "x", x, sizes_with_last(x, p.w.n), dtype));
  if (!out) return;
  must_lie_apart(*out, "x", x);
  must_lie_apart(*out, "qweight", weight);
  if (bias) must_lie_apart(*out, "bias", *bias);
}

void must_be_tokens(const Tensor& x, const char* weight_name, const Tensor& weight) {
  must_be_16_bit_float("x", x);
  if (x.dim() < 1) refuse("x", "have at least one dimension [..., K]", shape(x));
  must_share_device(weight_name, weight, "x", x);
}

}  // namespace

Checked<LowbitProblem> check_awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                                      const Tensor& qzeros, const std::optional<Tensor>& bias,
                                      const std::optional<Tensor>& out) {
  Checked<LowbitProblem> checked;
  must_be_tokens(x, "qweight", qweight);
  checked.problem.w = check_awq_weight(qweight, scales, qzeros, checked.inputs);
  check_rest(checked, x, qweight, "scales", bias, out);
  if (!out) return checked;
  must_lie_apart(*out, "scales", scales);
  must_lie_apart(*out, "qzeros", qzeros);
  return checked;
}

Checked<LowbitProblem> check_awq_gemm_packed(const Tensor& x, const Tensor& packed,
                                             const std::vector<int64_t>& sizes,
                                             const std::optional<Tensor>& bias,
                                             const std::optional<Tensor>& out) {
  Checked<LowbitProblem> checked;
  must_be_tokens(x, "packed", packed);
  checked.problem.w = check_packed_weight(packed, sizes);
  check_rest(checked, x, packed, "packed", bias, out);
  return checked;
}

}  // namespace scaled_mm
