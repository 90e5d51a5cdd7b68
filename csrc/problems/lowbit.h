// The lowbit family: weights of few bits in groups, beside 16-bit activations.
//
//   W[k, n] = (q[k, n] - z[g, n]) * s[g, n],   g = k / group
//
// Bits, packing, group and kind of zero point are fields, so that a kernel can say which it takes.
#pragma once

#include "problems/tensors.h"

namespace scaled_mm {

// Where the values of a weight lie in its words.
//   awq: eight columns to a word of q [K, N / 8]; nibble i of word c belongs to column
//        8 c + {0, 2, 4, 6, 1, 3, 5, 7}[i] (docs/lowbit.md). Zero points are packed alike.
//   units: blocks of kUnitChannels x kUnitRows with their scales and zero points, in the order of
//        the tensor cores' registers (docs/lowbit.md, "The packed form").
enum class Packing : uint8_t { awq, units };

inline constexpr int kUnitChannels = 64, kUnitRows = 128;
// Of a unit's words; of one of its sets of scales (16 bits) and zero points (4 bits).
inline constexpr int kUnitWordBytes = kUnitChannels * kUnitRows / 2;
inline constexpr int kUnitSetBytes = kUnitChannels * 2 + kUnitChannels / 2;
// Sets of a unit, each of which serves as many of its rows; groups are multiples of 32.
constexpr int unit_sets(int64_t group) { return group % 128 == 0 ? 1 : group % 64 == 0 ? 2 : 4; }
constexpr int unit_bytes(int sets) { return kUnitWordBytes + sets * kUnitSetBytes; }

// What is taken from a value before it is scaled. integer: z has the bits and packing of q.
enum class ZeroPoint : uint8_t { integer };

// A weight W [K, N]. Rows may lie apart; the elements of a row lie side by side. Packed in units it
// has those instead of q, zeros and scales.
struct LowbitWeight {
  int64_t k = 0;
  int64_t n = 0;
  int64_t group = 0;  // rows of W that share a row of scales and zero points; divides k
  int bits = 4;       // of a value
  Packing packing = Packing::awq;
  ZeroPoint zero_point = ZeroPoint::integer;
  Matrix<const uint32_t> q;        // [K, N * bits / 32]
  Matrix<const uint32_t> zeros;    // [K / group, N * bits / 32]
  Matrix<const uint16_t> scales;   // [K / group, N]
  const uint8_t* units = nullptr;  // [ceil(K / kUnitRows), ceil(N / kUnitChannels)]
  DType dtype = DType::float16;    // of the scales and of W; a 16-bit one
};

// D [M, N] = X [M, K] W [K, N] + bias [N]; without X, D is W itself. D is row-major without gaps, X
// and D are of W's dtype, a bias is of that dtype or float32.
struct LowbitProblem {
  // All that the choice of a kernel may depend on.
  struct Size {
    int64_t m = 0;
    int64_t n = 0;
    int64_t k = 0;
    int64_t group = 0;
    int bits = 4;
    Packing packing = Packing::awq;
    ZeroPoint zero_point = ZeroPoint::integer;
    DType dtype = DType::float16;  // of X, W and D

    bool operator==(const Size&) const = default;
    // Of the weight: words, scales and zero points. Of every operand once and of D.
    double weight_bytes() const {
      const double weights = double(n) * double(k);
      return weights * bits / 8 + (group ? (2 + bits / 8.0) * weights / double(group) : 0.0);
    }
    double bytes() const { return weight_bytes() + 2 * double(m) * (double(n) + double(k)); }
  };

  int64_t m = 0;
  Matrix<const uint16_t> x;
  LowbitWeight w;
  EpilogueOperand bias;
  uint16_t* d = nullptr;

  Size size() const { return {m, w.n, w.k, w.group, w.bits, w.packing, w.zero_point, w.dtype}; }
};

// outputs[0] is D in both: `out`, where it is given.
Checked<LowbitProblem> check_awq_dequantize(const Tensor& qweight, const Tensor& scales,
                                            const Tensor& qzeros);
Checked<LowbitProblem> check_awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                                      const Tensor& qzeros, const std::optional<Tensor>& bias,
                                      const std::optional<Tensor>& out);

// A weight of `sizes` (K, N, G, layout) as pack_awq lays it out (scaled_mm/ops/packed_awq.py):
// layout 0, AWQ's tensors one behind the other, or 1, units, which is CUDA's.
Checked<LowbitProblem> check_awq_gemm_packed(const Tensor& x, const Tensor& packed,
                                             const std::vector<int64_t>& sizes,
                                             const std::optional<Tensor>& bias,
                                             const std::optional<Tensor>& out);

// awq_gemm as the dispatcher calls it, into a new tensor or into `out`, over what runs a checked
// problem on a backend; x is for a backend that has to copy it first.
template <void (*run)(Checked<LowbitProblem>&, const Tensor& x)>
struct LowbitOps {
  static Tensor awq_gemm(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                         const Tensor& qzeros, const std::optional<Tensor>& bias) {
    Checked<LowbitProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias, std::nullopt);
    run(checked, x);
    return checked.outputs[0];
  }
  static void awq_gemm_out(const Tensor& x, const Tensor& qweight, const Tensor& scales,
                           const Tensor& qzeros, const std::optional<Tensor>& bias,
                           const Tensor& out) {
    Checked<LowbitProblem> checked = check_awq_gemm(x, qweight, scales, qzeros, bias, out);
    run(checked, x);
  }
  static Tensor awq_gemm_packed(const Tensor& x, const Tensor& packed,
                                const std::vector<int64_t>& sizes,
                                const std::optional<Tensor>& bias) {
    Checked<LowbitProblem> checked = check_awq_gemm_packed(x, packed, sizes, bias, std::nullopt);
    run(checked, x);
    return checked.outputs[0];
  }
  static void awq_gemm_packed_out(const Tensor& x, const Tensor& packed,
                                  const std::vector<int64_t>& sizes,
                                  const std::optional<Tensor>& bias, const Tensor& out) {
    Checked<LowbitProblem> checked = check_awq_gemm_packed(x, packed, sizes, bias, out);
    run(checked, x);
  }
};

}  // namespace scaled_mm
