// The int8 family: products with an epilogue, and what is prepared from a weight.
#pragma once

#include "epilogue/registry.h"
#include "problems/tensors.h"

namespace scaled_mm {

// The largest K for which no sum of products of any int8 values leaves int32
// (131072 * 128 * 128 = 2^31 is the first that does).
inline constexpr int64_t kMaxK = 131071;

// The weight B [K, N]: plain int8 with any strides, or a buffer that pack_weight_int8 made.
struct Weight {
  int64_t k = 0;
  int64_t n = 0;
  Matrix<const int8_t> plain;       // row index k, column index n
  const uint8_t* packed = nullptr;  // when set, plain is empty
  // Of a packed one: a kernel may read it while those queued before it still run, for none of them
  // writes it (docs/tuning.md, "Early weights").
  bool settled = false;
};

struct Program;

// D [M, N / columns] = epilogue(A [M, K] B [K, N]), where the epilogue makes one column of D of so
// many of B. D is row-major without gaps.
struct Int8Problem {
  // All that the choice of a kernel may depend on.
  struct Size {
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    epilogue::Id epilogue = epilogue::Id::ScaledEpilogue;
    DType out_dtype = DType::bfloat16;   // of D, unless it holds int32 accumulators
    Function function = Function::none;  // of an epilogue that has one

    bool operator==(const Size&) const = default;
    bool is_raw() const { return epilogue == epilogue::Id::RawAccumulator; }
    Form form() const { return epilogue::entry(epilogue).form; }
    bool has_ending() const { return epilogue::entry(epilogue).has_ending; }
    int64_t out_columns() const { return n / epilogue::entry(epilogue).columns(); }
    int out_bytes() const { return is_raw() ? 4 : size_of(out_dtype); }  // of an element of D
    // Of the weight; of every operand once and of D.
    double weight_bytes() const { return double(n) * double(k); }
    double bytes() const {
      return weight_bytes() + double(m) * double(k) +
             double(m) * double(out_columns()) * out_bytes();
    }
  };

  Size size;
  Matrix<const int8_t> a;
  const int32_t* gather = nullptr;  // [M]: the row of A that each row is; null: the same. CPU only
  Weight b;
  EpilogueOperand acc;  // int32 [M, N], columns side by side: sums that stand in A and B's place
  EpilogueOperand operands[kNumOperands];  // by Operand
  const Program* program = nullptr;        // what ends the sums in an epilogue's place
  void* d = nullptr;
};

using Shape = std::optional<std::vector<int64_t>>;

// What a call of scaled_mm may give besides its factors and their scales, and where D goes.
struct Int8Ending {
  std::optional<Tensor> bias, azp, azp_adj, azp_with_adj, residual;
  std::optional<std::string> activation;
  std::optional<ScalarType> out_dtype;
  std::optional<Tensor> out_scale, out_azp, out;
};

// Each refuses with an error or returns a problem that a kernel can run as it stands. `b_shape` is
// the shape (K, N) of the weight when b is a packed buffer, and absent when b is the weight itself;
// `b_settled` is for packed buffers (Weight::settled).
// outputs[0] is D: `out`, where it is given.
Checked<Int8Problem> check_scaled_mm(const Tensor& a, const Tensor& b, const Tensor& scale_a,
                                     const Tensor& scale_b, const Int8Ending& ending,
                                     const Shape& b_shape, bool b_settled);
Checked<Int8Problem> check_int8_mm(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                   bool b_settled, const std::optional<Tensor>& out);
// The sums without an output.
Checked<Int8Problem> check_sums(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                bool b_settled);
Checked<Int8Problem> check_scaled_epilogue(const Tensor& acc, const Tensor& scale_a,
                                           const Tensor& scale_b, const std::optional<Tensor>& bias,
                                           const std::optional<Tensor>& azp,
                                           const std::optional<Tensor>& azp_adj,
                                           const std::optional<Tensor>& azp_with_adj,
                                           ScalarType out_dtype);

// --- parts of these, for problems that are made of an int8 product (k_scales.h) ---

// The factors, by their names in a refusal.
struct Factors {
  const char* a_name;
  const Tensor& a;
  const char* b_name;
  const Tensor& b;
};
// A and B, and the sizes.
Checked<Int8Problem> check_product(const Tensor& a, const Tensor& b, const Shape& b_shape,
                                   bool b_settled);
// scale_a and azp of a product with the size in `checked`. They are in no epilogue's choice.
void check_row_operands(const Factors& factors, const Tensor& scale_a,
                        const std::optional<Tensor>& azp, const std::optional<Tensor>& out,
                        Checked<Int8Problem>& checked);
// Everything behind the zero points, and D. `given`: operands that are in the problem already.
void check_ending(const Factors& factors, const Int8Ending& ending, Checked<Int8Problem>& checked,
                  OperandSet given = 0);
// The dtype of D. The dtype of an operand, of a product with that one.
DType check_out_dtype(const Int8Ending& ending);
void check_operand_dtype(Operand operand, const Tensor& t, DType out_dtype);
// K and N of a weight.
void check_weight_sizes(int64_t k, int64_t n);
// A buffer from pack_weight_int8, of a weight [K, N].
Weight check_packed_weight(const char* argument, const Tensor& b, int64_t k, int64_t n);

// outputs[0] is the int32 [1, N] row to fill; azp is what its sums are multiplied by, or absent.
struct ColumnSums {
  Weight b;
  const int32_t* azp = nullptr;
  int32_t* out = nullptr;
};
Checked<ColumnSums> check_azp_adj(const Tensor& b, const std::optional<Tensor>& azp,
                                  const Shape& b_shape);

// outputs[0] is the uint8 buffer of packed_weight_bytes(K, N) bytes to fill.
Checked<Weight> check_pack_weight(const Tensor& b);

// Size of a packed weight; each backend has its own layout and defines it.
int64_t packed_weight_bytes(int64_t k, int64_t n);

}  // namespace scaled_mm
