#include "problem.h"

#include <torch/csrc/stable/ops.h>

#include <limits>
#include <string>

#include "rules.h"

namespace scaled_mm {

// --- how values read in a message --------------------------------------------------------------

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

static std::string device(const Tensor& t) {
  if (t.is_cpu()) return "cpu";
  return cat(t.is_cuda() ? "cuda" : "device", ":", t.get_device_index());
}

// What a dtype is called in the C interface.
static int32_t shim_dtype(ScalarType dtype) {
  return torch::stable::detail::to<int32_t>(torch::stable::detail::from(dtype));
}

// --- rules that several arguments share --------------------------------------------------------

void must_be(const char* argument, const Tensor& t, ScalarType dtype) {
  if (t.scalar_type() != dtype) refuse(argument, "be " + name(dtype), name(t.scalar_type()));
}

void must_share_device(const char* argument, const Tensor& t, const char* other_name,
                       const Tensor& other) {
  if (t.is_cpu() != other.is_cpu() || t.get_device_index() != other.get_device_index()) {
    refuse(argument, cat("be on the device of ", other_name, " (", device(other), ")"), device(t));
  }
}

// A vector of the rows of a matrix [..., K] has shape [...] or [..., 1].
static bool is_per_row(const Tensor& t, const Tensor& matrix) {
  const Sizes sizes = t.sizes(), rows = matrix.sizes().slice(0, matrix.dim() - 1);
  const bool column = sizes.size() > rows.size() && sizes.back() == 1;
  return sizes.slice(0, sizes.size() - column) == rows;
}
static std::string per_row_text(const Tensor& matrix) {
  std::vector<int64_t> sizes(matrix.sizes().begin(), matrix.sizes().end());
  sizes.back() = 1;
  return shape_text(Sizes(sizes).slice(0, sizes.size() - 1)) + " or " + shape_text(sizes);
}

// A vector of the columns of a matrix [..., N] has shape [N] or [1, N].
bool is_per_column(const Tensor& t, int64_t n) {
  const Sizes sizes = t.sizes();
  return sizes == Sizes({n}) || sizes == Sizes({1, n});
}
std::string per_column_text(int64_t n) { return shape_text({n}) + " or " + shape_text({1, n}); }

[[noreturn]] static void out_of_memory(const Tensor& like, Sizes sizes, ScalarType dtype) {
  int64_t bytes = static_cast<int64_t>(aoti_torch_dtype_element_size(shim_dtype(dtype)));
  for (const int64_t size : sizes) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) bytes = std::numeric_limits<int64_t>::max();
  }
  throw std::runtime_error(
      cat("could not allocate ", bytes, " bytes on ", device(like), ": out of memory"));
}

// The one stride that leads through all elements in order, where there is one; 0 for one element.
static std::optional<int64_t> single_stride(Sizes sizes, Sizes strides) {
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

// t with every dimension but the last folded into one, [..., K] -> [M, K]: t itself where its
// strides allow it, else a copy that `copies` keeps alive.
template <class T>
Matrix<const T> fold_rows(const Tensor& t, int64_t rows, std::vector<Tensor>& copies) {
  const size_t last = t.dim() - 1;
  const Sizes sizes = t.sizes(), strides = t.strides();
  if (const auto row_stride = single_stride(sizes.slice(0, last), strides.slice(0, last))) {
    return {static_cast<const T*>(t.const_data_ptr()), *row_stride, strides[last]};
  }
  try {
    copies.push_back(torch::stable::reshape(t, {rows, sizes[last]}));
  } catch (const std::exception&) {
    out_of_memory(t, sizes, t.scalar_type());
  }
  const Tensor& copy = copies.back();
  return {static_cast<const T*>(copy.const_data_ptr()), copy.stride(0), copy.stride(1)};
}

// t's elements in order as a vector: t itself where one stride leads through them, else a copy.
Vector as_vector(const Tensor& t, std::vector<Tensor>& copies) {
  if (const auto stride = single_stride(t.sizes(), t.strides())) {
    return {t.const_data_ptr(), t.scalar_type(), *stride};
  }
  const Tensor& copy = copies.emplace_back(torch::stable::contiguous(t));
  return {copy.const_data_ptr(), copy.scalar_type(), 1};
}

int64_t count_rows(const Tensor& t) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < t.dim(); ++i) rows *= t.size(i);
  return rows;
}

template Matrix<const void> fold_rows<void>(const Tensor&, int64_t, std::vector<Tensor>&);

namespace {

// --- the weight --------------------------------------------------------------------------------

// Far above any weight, far below where the size of its buffer would overflow.
constexpr int64_t kMaxPackedN = int64_t{1} << 40;

Weight check_weight(const Tensor& b, const Shape& b_shape) {
  Weight weight;
  if (b_shape) {
    if (b_shape->size() != 2) refuse("b_shape", "be (K, N)", shape_text(*b_shape));
    weight.k = (*b_shape)[0];
    weight.n = (*b_shape)[1];
    if (weight.k < 0 || weight.n < 0 || weight.n > kMaxPackedN) {
      refuse("b_shape", cat("be (K, N) with 0 <= K and 0 <= N <= ", kMaxPackedN),
             shape_text(*b_shape));
    }
  } else {
    must_be("b", b, ScalarType::Char);
    if (b.dim() != 2) refuse("b", "be a matrix [K, N]", shape(b));
    weight.k = b.size(0);
    weight.n = b.size(1);
  }
  if (weight.k > kMaxK) {
    refuse("b", cat("have K <= ", kMaxK, " rows (beyond it an int32 sum could wrap)"),
           cat("K=", weight.k));
  }
  if (b_shape) {
    must_be("b", b, ScalarType::Byte);
    const int64_t bytes = packed_weight_bytes(weight.k, weight.n);
    if (b.dim() != 1 || b.numel() != bytes || !b.is_contiguous()) {
      refuse("b",
             cat("be a contiguous packed buffer of ", bytes, " bytes for a weight of shape ",
                 shape_text(*b_shape)),
             shape(b));
    }
    weight.packed = static_cast<const uint8_t*>(b.const_data_ptr());
  } else {
    weight.plain = {static_cast<const int8_t*>(b.const_data_ptr()), b.stride(0), b.stride(1)};
  }
  return weight;
}

// --- A times B ---------------------------------------------------------------------------------

Checked<Problem> check_product(const Tensor& a, const Tensor& b, const Shape& b_shape,
                               ScalarType out_dtype) {
  Checked<Problem> checked;
  Problem& p = checked.problem;
  must_be("a", a, ScalarType::Char);
  if (a.dim() < 1) refuse("a", "have at least one dimension [..., K]", shape(a));
  must_share_device("b", b, "a", a);
  p.b = check_weight(b, b_shape);
  p.m = count_rows(a);
  p.n = p.b.n;
  p.k = p.b.k;
  if (a.size(a.dim() - 1) != p.k) {
    refuse("a", cat("have K=", p.k, " columns, the rows of b"), shape(a));
  }
  p.a = fold_rows<int8_t>(a, p.m, checked.inputs);

  std::vector<int64_t> sizes(a.sizes().begin(), a.sizes().end());
  sizes.back() = p.n;
  const Tensor& d = checked.outputs.emplace_back(new_empty(a, sizes, out_dtype));
  p.d = d.mutable_data_ptr();
  p.out_dtype = out_dtype;
  return checked;
}

// One epilogue operand against what its leaf declares (epilogue/expr.h).
template <class Leaf>
void check_operand(const std::optional<Tensor>& given, const Tensor& a, Checked<Problem>& checked) {
  if (!given) return;
  Problem& p = checked.problem;
  const Tensor& t = *given;
  const char* argument = kOperandNames[static_cast<int>(Leaf::id)];

  if (Leaf::id == Operand::bias) {
    if (t.scalar_type() != p.out_dtype && t.scalar_type() != ScalarType::Float) {
      refuse(argument, cat("be float32 or the output's ", name(p.out_dtype)),
             name(t.scalar_type()));
    }
  } else {
    must_be(argument, t,
            std::is_same_v<typename Leaf::value, float> ? ScalarType::Float : ScalarType::Int);
  }
  must_share_device(argument, t, "a", a);

  const bool per_row = Leaf::axis == epilogue::Axis::Col;
  const bool one = Leaf::scalar_ok && t.numel() == 1;
  if (!one && !(per_row ? is_per_row(t, a) : is_per_column(t, p.n))) {
    refuse(argument,
           cat("have ", Leaf::scalar_ok ? "1 or " : "", per_row ? "M=" : "N=", per_row ? p.m : p.n,
               " elements, in shape ", per_row ? per_row_text(a) : per_column_text(p.n)),
           shape(t));
  }
  p.operands[static_cast<int>(Leaf::id)] = as_vector(t, checked.inputs);
  p.given |= bit(Leaf::id);
}

void check_out_dtype(ScalarType dtype) {
#define DTYPE(name, scalar_type, storage) \
  if (dtype == ScalarType::scalar_type) return;
#include "dtypes.def"
#undef DTYPE
  std::string known;
#define DTYPE(name, scalar_type, storage) known += (known.empty() ? "" : ", ") + std::string(#name);
#include "dtypes.def"
#undef DTYPE
  refuse("out_dtype", "be one of " + known, name(dtype));
}

// --- quantisers --------------------------------------------------------------------------------

Checked<QuantizeProblem> check_quantizable(const char* argument, const Tensor& x) {
  Checked<QuantizeProblem> checked;
  QuantizeProblem& p = checked.problem;
  p.x_dtype = x.scalar_type();
  if (p.x_dtype != ScalarType::Float && p.x_dtype != ScalarType::BFloat16 &&
      p.x_dtype != ScalarType::Half) {
    refuse(argument, "be float32, bfloat16 or float16", name(p.x_dtype));
  }
  if (x.dim() < 1) refuse(argument, "have at least one dimension [..., K]", shape(x));
  p.rows = count_rows(x);
  p.cols = x.size(x.dim() - 1);
  p.x = fold_rows<void>(x, p.rows, checked.inputs);
  const Tensor& q = checked.outputs.emplace_back(new_empty(x, x.sizes(), ScalarType::Char));
  p.q = static_cast<int8_t*>(q.mutable_data_ptr());
  return checked;
}

// The outputs of a dynamic quantiser besides q.
void add_scales(Checked<QuantizeProblem>& checked, const Tensor& x, Sizes sizes, bool symmetric,
                bool per_token) {
  QuantizeProblem& p = checked.problem;
  p.symmetric = symmetric;
  p.per_token = per_token;
  p.scale_stride = p.azp_stride = per_token ? 1 : 0;
  const Tensor& scale = checked.outputs.emplace_back(new_empty(x, sizes, ScalarType::Float));
  p.scale = static_cast<float*>(scale.mutable_data_ptr());
  if (symmetric) return;
  const Tensor& azp = checked.outputs.emplace_back(new_empty(x, sizes, ScalarType::Int));
  p.azp = static_cast<int32_t*>(azp.mutable_data_ptr());
}

// A given scale or azp of the static quantiser: one element, or one for each row of x.
template <class T>
int64_t check_given(const char* argument, const Tensor& t, const Tensor& x, ScalarType dtype,
                    T*& data, Checked<QuantizeProblem>& checked) {
  must_be(argument, t, dtype);
  must_share_device(argument, t, "x", x);
  if (t.numel() != 1 && !is_per_row(t, x)) {
    refuse(argument,
           cat("have 1 or ", checked.problem.rows, " elements, in shape ", per_row_text(x)),
           shape(t));
  }
  const Vector vector = as_vector(t, checked.inputs);
  data = static_cast<T*>(const_cast<void*>(vector.data));  // it is given, so it is only read
  return vector.stride;
}

}  // namespace

// torch::stable::empty costs 1 us, for it finds the op by name; this, 0.4.
Tensor new_empty(const Tensor& like, Sizes sizes, ScalarType dtype) {
  int32_t number = shim_dtype(dtype);
  AtenTensorHandle tensor = nullptr;
  if (aoti_torch_aten_new_empty(like.get(), sizes.data(), static_cast<int64_t>(sizes.size()),
                                &number, nullptr, nullptr, 0, nullptr, &tensor) != TORCH_SUCCESS) {
    out_of_memory(like, sizes, dtype);
  }
  return Tensor(tensor);
}

Checked<Problem> check_scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                 const Tensor& scale_b, const std::optional<Tensor>& bias,
                                 const std::optional<Tensor>& azp,
                                 const std::optional<Tensor>& azp_adj,
                                 const std::optional<Tensor>& azp_with_adj, ScalarType out_dtype,
                                 const Shape& b_shape) {
  check_out_dtype(out_dtype);
  Checked<Problem> checked = check_product(a, b, b_shape, out_dtype);
  check_operand<epilogue::ScaleA>(scale_a, a, checked);
  check_operand<epilogue::ScaleB>(scale_b, a, checked);
  check_operand<epilogue::Bias>(bias, a, checked);
  check_operand<epilogue::Azp>(azp, a, checked);
  check_operand<epilogue::AzpAdj>(azp_adj, a, checked);
  check_operand<epilogue::AzpWithAdj>(azp_with_adj, a, checked);
  return checked;
}

Checked<Problem> check_int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape) {
  return check_product(a, b, b_shape, ScalarType::Int);
}

Checked<ColumnSums> check_azp_adj(const Tensor& b, const std::optional<Tensor>& azp,
                                  const Shape& b_shape) {
  Checked<ColumnSums> checked;
  checked.problem.b = check_weight(b, b_shape);
  if (azp) {
    must_be("azp", *azp, ScalarType::Int);
    must_share_device("azp", *azp, "b", b);
    if (azp->numel() != 1) refuse("azp", "have 1 element (one zero point per tensor)", shape(*azp));
    checked.problem.azp = static_cast<const int32_t*>(azp->const_data_ptr());
  }
  const Tensor& out =
      checked.outputs.emplace_back(new_empty(b, {1, checked.problem.b.n}, ScalarType::Int));
  checked.problem.out = static_cast<int32_t*>(out.mutable_data_ptr());
  return checked;
}

Checked<Weight> check_pack_weight(const Tensor& b) {
  Checked<Weight> checked;
  checked.problem = check_weight(b, std::nullopt);
  const int64_t bytes = packed_weight_bytes(checked.problem.k, checked.problem.n);
  checked.outputs.push_back(new_empty(b, {bytes}, ScalarType::Byte));
  return checked;
}

Checked<QuantizeProblem> check_quantize(const Tensor& x, bool symmetric, bool per_token) {
  Checked<QuantizeProblem> checked = check_quantizable("x", x);
  std::vector<int64_t> sizes{1};
  if (per_token) {
    sizes.assign(x.sizes().begin(), x.sizes().end());
    sizes.back() = 1;
  }
  add_scales(checked, x, sizes, symmetric, per_token);
  return checked;
}

Checked<QuantizeProblem> check_quantize_weight(const Tensor& w, bool per_channel) {
  if (w.dim() != 2) refuse("w", "be a matrix [N, K]", shape(w));
  Checked<QuantizeProblem> checked = check_quantizable("w", w);
  add_scales(checked, w, {1, per_channel ? w.size(0) : 1}, true, per_channel);
  return checked;
}

Checked<QuantizeProblem> check_quantize_static(const Tensor& x, const Tensor& scale,
                                               const std::optional<Tensor>& azp) {
  Checked<QuantizeProblem> checked = check_quantizable("x", x);
  QuantizeProblem& p = checked.problem;
  p.given = true;
  p.symmetric = !azp;
  p.scale_stride = check_given("scale", scale, x, ScalarType::Float, p.scale, checked);
  if (azp) p.azp_stride = check_given("azp", *azp, x, ScalarType::Int, p.azp, checked);
  return checked;
}

}  // namespace scaled_mm
