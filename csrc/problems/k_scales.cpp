#include "problems/k_scales.h"

#include "rules.h"

namespace scaled_mm {
namespace {

// A matrix of scales; one without elements has no memory, and is told from none all the same.
EpilogueOperand check_scales(const char* argument, const Tensor& t,
                             const std::vector<int64_t>& wanted, const Tensor& a,
                             std::vector<Tensor>& copies) {
  static constexpr float kNone = 0.0f;
  must_be(argument, t, ScalarType::Float);
  must_share_device(argument, t, "a", a);
  if (!t.sizes().equals(wanted)) {
    refuse(argument,
           cat("have shape ", shape_text(wanted), ", one for each ", kBlock, " columns of K"),
           shape(t));
  }
  EpilogueOperand scales = operand_along(epilogue::Axis::Full, t, copies);
  if (t.numel() == 0) scales.data = &kNone;
  return scales;
}

void must_not_be_given(const char* argument, const std::optional<Tensor>& t, const char* with) {
  if (t) refuse(argument, cat("not be given with ", with), shape(*t));
}

}  // namespace

bool is_in_blocks(const Tensor& b, const Tensor& scale_b, const Shape& b_shape) {
  if (scale_b.dim() != 2) return false;
  const bool plain = !b_shape && b.dim() == 2;
  if (!plain && (!b_shape || b_shape->size() != 2)) return false;
  const int64_t k = plain ? b.size(0) : (*b_shape)[0], n = plain ? b.size(1) : (*b_shape)[1];
  const int64_t rows = ceil_div(k, kBlock), columns = ceil_div(n, kBlock);
  return scale_b.size(0) == rows && scale_b.size(1) == columns &&
         (rows != 1 || (columns != 1 && columns != n));
}

Checked<KScalesProblem> check_blocks(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                     const Tensor& scale_b, const Shape& b_shape, bool b_settled,
                                     const Int8Ending& ending) {
  constexpr const char* kWith = "scales in blocks of 128 x 128";
  must_not_be_given("azp", ending.azp, kWith);
  must_not_be_given("azp_adj", ending.azp_adj, kWith);
  must_not_be_given("azp_with_adj", ending.azp_with_adj, kWith);
  Checked<Int8Problem> product = check_product(a, b, b_shape, b_settled);
  const Int8Problem::Size size = product.problem.size;
  const int64_t groups = ceil_div(size.k, kBlock);
  static constexpr float kOne = 1.0f;
  product.problem.operands[static_cast<int>(Operand::scale_a)].data = &kOne;
  KScalesProblem p;
  p.group = kBlock;
  p.row_scales = check_scales("scale_a", scale_a, sizes_with_last(a, groups), a, product.inputs);
  p.scales =
      check_scales("scale_b", scale_b, {groups, ceil_div(size.n, kBlock)}, a, product.inputs);
  check_ending({"a", a, "b", b}, ending, product);
  if (ending.out) {
    must_lie_apart(*ending.out, "scale_a", scale_a);
    must_lie_apart(*ending.out, "scale_b", scale_b);
  }
  p.product = product.problem;
  return {p, std::move(product.outputs), std::move(product.inputs)};
}

Checked<KScalesProblem> check_w4a8_mm(const W4A8Arguments& given) {
  const Tensor& x = given.x;
  must_be("x", x, ScalarType::Char);
  if (x.dim() < 1) refuse("x", "have at least one dimension [..., K]", shape(x));
  must_share_device("packed", given.packed, "x", x);
  KScalesProblem p;
  p.w = check_packed_weight(given.packed, given.sizes);
  const LowbitWeight& w = p.w;
  const bool units = w.packing == Packing::units, empty = w.k == 0 || w.n == 0;
  if (x.is_cpu() && units) refuse("packed", "be of layout 0 or 2 on the CPU", "layout 1");
  if (!x.is_cpu() && !units && !empty) refuse("packed", "be of layout 1 on a GPU", "layout 0");
  if (w.bits != 4) refuse("packed", "have values of 4 bits", cat(w.bits, " bits"));
  if (w.zero_point == ZeroPoint::real) {
    refuse("packed", "have zero points that are integers, or none", "floats");
  }
  if (w.group % 32 != 0 && w.group != w.k) {
    refuse("packed", "have groups of a multiple of 32 rows, or one of all rows",
           cat("G=", w.group));
  }
  if (w.k > kMaxK) {
    refuse("packed", cat("have K <= ", kMaxK, " rows (beyond it an int32 sum could wrap)"),
           cat("K=", w.k));
  }
  if (x.size(x.dim() - 1) != w.k) {
    refuse("x", cat("have K=", w.k, " columns, the rows of packed"), shape(x));
  }
  Checked<Int8Problem> product;
  Int8Problem::Size& size = product.problem.size;
  size.m = count_rows(x);
  size.n = w.n;
  size.k = w.k;
  p.group = std::max<int64_t>(1, w.group);
  product.problem.a = fold_rows<int8_t>(x, product.inputs);
  if (given.order) p.order = check_order(*given.order, x, w.k, product.inputs);
  const Factors factors{"x", x, "packed", given.packed};
  check_row_operands(factors, given.scale_a, given.azp, given.ending.out, product);
  check_ending(factors, given.ending, product);
  if (given.order && given.ending.out) must_lie_apart(*given.ending.out, "order", *given.order);
  p.product = product.problem;
  return {p, std::move(product.outputs), std::move(product.inputs)};
}

}  // namespace scaled_mm
