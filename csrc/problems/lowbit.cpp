#include "problems/lowbit.h"

#include <tuple>

#include "epilogue/registry.h"
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

constexpr int64_t kSectionBytes = 16;  // of which sections of layout 0 begin at multiples

// Sections of a packed weight in layout 0: where each begins, and the end of the last, in bytes.
struct Sections {
  int64_t scales, zeros, end;
};

Sections sections_of(const LowbitWeight& w) {
  const int64_t groups = w.group ? w.k / w.group : 0, row = w.padded_n() * w.bits / 8;
  const auto behind = [](int64_t begin, int64_t bytes) {
    return begin + round_up(bytes, kSectionBytes);
  };
  Sections s;
  const int64_t of_q =
      w.block_stride ? ceil_div(w.n, kBlockColumns) * w.block_stride * 4 : w.k * row;
  s.scales = behind(0, of_q);
  s.zeros = behind(s.scales, 2 * groups * w.padded_n());
  const int64_t zeros_row = w.zero_point == ZeroPoint::none   ? 0
                            : w.zero_point == ZeroPoint::real ? 2 * w.padded_n()
                                                              : row;
  s.end = behind(s.zeros, groups * zeros_row);
  return s;
}

// A weight of (K, N, G, bits, zero point, layout), or none where these are no weight's.
std::optional<LowbitWeight> weight_of(const std::vector<int64_t>& sizes) {
  if (sizes.size() != 6) return std::nullopt;
  constexpr int64_t kMost = int64_t{1} << 31;  // of rows and of columns, so that nothing overflows
  const auto [k, n, group, bits, zero, layout] =
      std::tie(sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], sizes[5]);
  if (k < 0 || k >= kMost || n < 0 || n >= kMost || (bits != 4 && bits != 8)) return std::nullopt;
  if (k > 0 ? group < 1 || k % group != 0 : group != 0) return std::nullopt;
  if (zero < 0 || zero >= kNumZeroPoints || layout < 0 || layout > 2) return std::nullopt;
  if (layout == 1 && ((group % 32 != 0 && group != k) || k == 0 || n == 0)) return std::nullopt;
  LowbitWeight w;
  w.k = k, w.n = n, w.group = group, w.bits = static_cast<int>(bits);
  if (layout == 2) w.block_stride = k * kBlockColumns * bits / 32;
  w.packing = layout == 1 ? Packing::units : bits == 4 ? Packing::awq : Packing::plain;
  w.zero_point = static_cast<ZeroPoint>(zero);
  return w;
}

int64_t packed_bytes(const LowbitWeight& w) {
  if (w.packing != Packing::units) return sections_of(w).end;
  return ceil_div(w.k, kUnitRows) * ceil_div(w.n, kUnitChannels) *
         unit_bytes(w.bits, w.zero_point, unit_sets(w.k, w.group));
}

// `leading`: sizes of `packed` before the elements of a weight.
LowbitWeight check_packed(const Tensor& packed, const std::vector<int64_t>& sizes,
                          std::vector<int64_t> leading) {
  const std::optional<LowbitWeight> found = weight_of(sizes);
  if (!found) {
    refuse("sizes",
           "be (K, N, G, bits, zero point, layout) with G a divisor of K (0 for K = 0), 4 or 8 "
           "bits, zero point 0, 1 or 2, and layout 0, 2 or, for groups of all rows or of a "
           "multiple of 32, 1",
           shape_text(sizes));
  }
  LowbitWeight w = *found;
  if (w.block_stride && !packed.is_cpu()) {
    refuse("packed", "be of layout 0 or 1 on a GPU", "layout 2");
  }
  w.dtype = must_be_16_bit_float("packed", packed);
  leading.push_back(packed_bytes(w) / 2);
  if (!packed.sizes().equals(leading) || !packed.is_contiguous()) {
    refuse("packed",
           cat("be a contiguous buffer of shape ", shape_text(leading), " for K=", w.k, ", N=", w.n,
               ", G=", w.group, ", ", w.bits, " bits"),
           shape(packed));
  }
  const auto* const data = static_cast<const uint8_t*>(packed.const_data_ptr());
  if (const auto past = reinterpret_cast<uintptr_t>(data) % kSectionBytes) {
    refuse("packed", cat("begin at a multiple of ", kSectionBytes, " bytes"),
           cat("an address ", past, " bytes past one"));
  }
  if (w.packing == Packing::units) {
    w.units = data;
    return w;
  }
  const Sections at = sections_of(w);
  const auto halves = [&](int64_t begin) {
    return Matrix<const uint16_t>{reinterpret_cast<const uint16_t*>(data + begin), w.padded_n(), 1};
  };
  const auto words = [&](int64_t begin) {
    const auto* const first = reinterpret_cast<const uint32_t*>(data + begin);
    return Matrix<const uint32_t>{first, w.padded_n() * w.bits / 32, 1};
  };
  w.q = words(0);
  if (w.block_stride) w.q.row_stride = kBlockColumns * w.bits / 32;
  w.scales = halves(at.scales);
  if (w.zero_point == ZeroPoint::integer) w.zeros = words(at.zeros);
  if (w.zero_point == ZeroPoint::real) w.real_zeros = halves(at.zeros);
  return w;
}

}  // namespace

LowbitWeight check_packed_weight(const Tensor& packed, const std::vector<int64_t>& sizes) {
  return check_packed(packed, sizes, {});
}
LowbitWeight check_packed_stack(const Tensor& packed, const std::vector<int64_t>& sizes) {
  return check_packed(packed, sizes, {packed.size(0)});
}

namespace {

void add_output(Checked<LowbitProblem>& checked, const Tensor& d) {
  LowbitProblem& p = checked.problem;
  p.columns = p.w.n;
  p.d = static_cast<uint16_t*>(checked.outputs.emplace_back(d).mutable_data_ptr());
  p.ldd = p.out_columns();
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

Checked<LowbitProblem> check_mixed_dequantize(const Tensor& packed,
                                              const std::vector<int64_t>& sizes) {
  Checked<LowbitProblem> checked;
  LowbitProblem& p = checked.problem;
  p.w = check_packed_weight(packed, sizes);
  p.m = p.w.k;
  add_output(checked, new_empty(packed, {p.w.k, p.w.n}, scalar_type(p.w.dtype)));
  return checked;
}

void must_be_tokens(const Tensor& x, const char* weight_name, const Tensor& weight) {
  must_be_16_bit_float("x", x);
  if (x.dim() < 1) refuse("x", "have at least one dimension [..., K]", shape(x));
  must_share_device(weight_name, weight, "x", x);
}

void check_tokens(Checked<LowbitProblem>& checked, const Tensor& x, const char* weight,
                  const char* scales) {
  LowbitProblem& p = checked.problem;
  const ScalarType dtype = scalar_type(p.w.dtype);
  if (dtype != x.scalar_type()) {
    refuse(scales, "be of x's dtype " + name(x.scalar_type()), name(dtype));
  }
  if (x.size(x.dim() - 1) != p.w.k) {
    refuse("x", cat("have K=", p.w.k, " columns, the rows of ", weight), shape(x));
  }
  p.m = count_rows(x);
  p.x = fold_rows<uint16_t>(x, checked.inputs);
}

void check_lowbit_ending(Checked<LowbitProblem>& checked, const Tensor& x, const char* weight,
                         std::vector<int64_t> rows, const LowbitEnding& ending) {
  LowbitProblem& p = checked.problem;
  const Activation activation = epilogue::check_activation(ending.activation, Form::gated);
  p.function = activation.function;
  p.gated = activation.form == Form::gated;
  if (p.gated && p.w.n % 2 != 0) {
    refuse(weight, cat("have an even number of columns for activation='", activation.name, "'"),
           cat("N=", p.w.n));
  }
  std::vector<int64_t>& sizes = rows;
  sizes.push_back(p.gated ? p.w.n / 2 : p.w.n);
  if (const std::optional<Tensor>& residual = ending.residual) {
    must_be("residual", *residual, scalar_type(p.w.dtype));
    must_share_device("residual", *residual, "x", x);
    if (activation.form != Form::none) {
      refuse("residual", cat("not be given together with activation='", activation.name, "'"),
             "both");
    }
    if (!residual->sizes().equals(sizes)) {
      refuse("residual", "have the output's shape " + shape_text(sizes), shape(*residual));
    }
    p.residual = operand_along(epilogue::Axis::Full, *residual, checked.inputs);
  }
  add_output(checked, output_tensor(ending.out, "x", x, sizes, scalar_type(p.w.dtype)));
}

namespace {

// What of a product the kind of weight does not matter to.
void check_rest(Checked<LowbitProblem>& checked, const Tensor& x, const char* weight,
                const Tensor& q, const char* scales, const LowbitEnding& ending) {
  const auto& [bias, residual, name_of_function, out] = ending;
  LowbitProblem& p = checked.problem;
  check_tokens(checked, x, weight, scales);
  if (bias) {
    must_be_float32_or("bias", *bias, "x's", scalar_type(p.w.dtype));
    must_share_device("bias", *bias, "x", x);
    if (!is_per_column(*bias, p.w.n)) {
      refuse("bias", cat("have N=", p.w.n, " elements, in shape ", per_column_text(p.w.n)),
             shape(*bias));
    }
    p.bias = operand_along(epilogue::Axis::Row, *bias, checked.inputs);
  }
  std::vector<int64_t> rows = sizes_with_last(x, 0);
  rows.pop_back();
  check_lowbit_ending(checked, x, weight, std::move(rows), ending);
  if (!out) return;
  must_lie_apart(*out, "x", x);
  must_lie_apart(*out, weight, q);
  if (bias) must_lie_apart(*out, "bias", *bias);
  if (residual) must_lie_apart(*out, "residual", *residual);
}

}  // namespace

Checked<LowbitProblem> check_awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                                      const Tensor& qzeros, const LowbitEnding& ending) {
  Checked<LowbitProblem> checked;
  must_be_tokens(x, "qweight", qweight);
  checked.problem.w = check_awq_weight(qweight, scales, qzeros, checked.inputs);
  check_rest(checked, x, "qweight", qweight, "scales", ending);
  if (!ending.out) return checked;
  must_lie_apart(*ending.out, "scales", scales);
  must_lie_apart(*ending.out, "qzeros", qzeros);
  return checked;
}

const int32_t* check_order(const Tensor& order, const Tensor& x, int64_t k,
                           std::vector<Tensor>& copies) {
  must_be("order", order, ScalarType::Int);
  must_share_device("order", order, "x", x);
  if (order.dim() != 1 || order.size(0) != k) {
    refuse("order", cat("have shape ", shape_text({k}), ", an element for each column of x"),
           shape(order));
  }
  const bool dense = order.stride(0) == 1 || k <= 1;
  const Tensor& elements = dense ? order : copies.emplace_back(row_major_copy(order));
  return static_cast<const int32_t*>(elements.const_data_ptr());
}

namespace {

EpilogueOperand check_pre_scale(const Tensor& pre_scale, const Tensor& x, int64_t k,
                                std::vector<Tensor>& copies) {
  must_be_float32_or("pre_scale", pre_scale, "x's", x.scalar_type());
  must_share_device("pre_scale", pre_scale, "x", x);
  if (!is_per_column(pre_scale, k)) {
    refuse("pre_scale", cat("have K=", k, " elements, in shape ", per_column_text(k)),
           shape(pre_scale));
  }
  return operand_along(epilogue::Axis::Row, pre_scale, copies);
}

}  // namespace

Checked<LowbitProblem> check_mixed_mm(const MixedArguments& given) {
  Checked<LowbitProblem> checked;
  LowbitProblem& p = checked.problem;
  must_be_tokens(given.x, "packed", given.packed);
  p.w = check_packed_weight(given.packed, given.sizes);
  p.w.settled = given.settled;
  check_rest(checked, given.x, "packed", given.packed, "packed", given.ending);
  if (given.order) p.order = check_order(*given.order, given.x, p.w.k, checked.inputs);
  if (given.pre_scale) {
    p.pre_scale = check_pre_scale(*given.pre_scale, given.x, p.w.k, checked.inputs);
  }
  const std::optional<Tensor>& out = given.ending.out;
  if (!out) return checked;
  if (given.order) must_lie_apart(*out, "order", *given.order);
  if (given.pre_scale) must_lie_apart(*out, "pre_scale", *given.pre_scale);
  return checked;
}

}  // namespace scaled_mm
