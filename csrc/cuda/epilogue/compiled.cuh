// A program (problems/program.h) as a type that source code defines, which scaled_mm/compiled
// writes:
//
//   struct P {
//     static constexpr int kColumns;       // of B for each element of D
//     static constexpr int kOperands;
//     static constexpr int kDtypes[];      // of the outputs: places in kProgramDtypes
//     static constexpr bool kIsLight;      // problems/program.h
//     using Staged = Leaves<CompiledLeaf...>;  // one element for each column of B, or for each row
//     using Direct = Leaves<CompiledLeaf...>;  // the others
//     // out = the bits of an element of every output, from kColumns sums. Floats are not yet
//     // rounded to their dtype. get(leaf, c): an operand's value, of the c-th of the columns.
//     template <class Get>
//     static __device__ void at(const int32_t* acc, const Get& get, uint32_t* out);
//   };
//
// CompiledEpilogue<P> is to kernels what an epilogue's type is (lower.cuh): they stage its
// operands, and have its code for each element.
#pragma once

#include <utility>

#include "cuda/epilogue/compiled_ops.cuh"

namespace scaled_mm::cuda {

// Operand `place`, of T. columns: of B for each element along N. order: its place in its list.
template <int place_, class T, epilogue::Axis A, int columns_, int order_>
struct CompiledLeaf {
  using value = T;
  static constexpr int place = place_, columns = columns_, order = order_;
  static constexpr epilogue::Axis axis = A;
  static constexpr Operand id = static_cast<Operand>(kNumOperands + place);  // of no epilogue
};

template <class P>
struct CompiledEpilogue {
  using program = P;
  static constexpr OperandSet reads = 0;
  static constexpr Form form = P::kColumns == 2 ? Form::gated : Form::none;
};
template <class E>
inline constexpr bool is_compiled = false;
template <class P>
inline constexpr bool is_compiled<CompiledEpilogue<P>> = true;

}  // namespace scaled_mm::cuda

namespace scaled_mm::epilogue {
template <class P>
  requires(!P::kIsLight)
struct BodyOf<cuda::CompiledEpilogue<P>> {
  using type = void;  // has_ending
};
}  // namespace scaled_mm::epilogue

namespace scaled_mm::cuda {

template <class P>
struct Lower<CompiledEpilogue<P>> {
  using List = typename P::Staged;
};

// By the ids of leaves.
template <int kCount>
struct CompiledOperands {
  EpilogueOperand all[kCount > 0 ? kCount : 1];
  __host__ __device__ const EpilogueOperand& operator[](int id) const {
    return all[id - kNumOperands];
  }
};

// Elements (m, n) to (m, n + kSize - 1) of an operand as 32-bit words, `count` of which are there.
template <class L, int kSize>
__device__ inline void load_words(const EpilogueOperand& operand, int64_t m, int64_t n, int count,
                                  uint32_t* word) {
  constexpr bool kIsFloat = std::is_same_v<typename L::value, float>;
  if constexpr (kIsFloat && L::axis == epilogue::Axis::Full && kSize > 1) {
    float value[kSize];
    load_elements<L>(operand, m, n, count, value);
#pragma unroll
    for (int i = 0; i < kSize; ++i) word[i] = __float_as_uint(value[i]);
  } else {
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      if (i >= count) {
        word[i] = 0;
      } else if constexpr (kIsFloat) {
        word[i] = __float_as_uint(load_float(operand, m, n + i));
      } else {
        word[i] = static_cast<const uint32_t*>(
            operand.data)[m * operand.row_stride + (n + i) * operand.col_stride];
      }
    }
  }
}

// The operands that are not staged, for kChannels neighbouring columns of B of a row.
template <class List, int kChannels>
struct DirectElements;
template <class... Ls, int kChannels>
struct DirectElements<Leaves<Ls...>, kChannels> {
  uint32_t word[sizeof...(Ls) + 1][kChannels];

  // From column `channel` on, of which `inside` are there.
  template <class Operands>
  __device__ void load(const Operands& operands, int64_t m, int64_t channel, int inside) {
    const auto load_one = [&](auto leaf) {
      using L = decltype(leaf);
      load_words<L, kChannels / L::columns>(operands[static_cast<int>(L::id)], m,
                                            channel / L::columns, inside / L::columns,
                                            word[L::order]);
    };
    (load_one(Ls{}), ...);
  }
  template <class L>
  __device__ typename L::value at(L, int channel) const {
    const uint32_t bits = word[L::order][channel / L::columns];
    if constexpr (std::is_same_v<typename L::value, float>) {
      return __uint_as_float(bits);
    } else {
      return static_cast<int32_t>(bits);
    }
  }
};
template <class L>
inline constexpr bool is_direct = L::axis == epilogue::Axis::Full || L::columns == 2;

// The bits of kSize neighbouring elements of an output as words, rounded to its dtype: kSize words,
// of which those that are filled lie side by side.
template <int kDtype>
struct CompiledFormat {
  static constexpr int kBytes = kDtype == 0 || kDtype == 3 ? 4 : kDtype < 3 ? 2 : 1;
  using storage =
      std::conditional_t<kBytes == 4, uint32_t, std::conditional_t<kBytes == 2, uint16_t, uint8_t>>;

  template <int kSize>
  static __device__ void pack(const uint32_t (&bits)[kSize], uint32_t (&words)[kSize]) {
    if constexpr (kBytes == 4) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) words[i] = bits[i];
    } else if constexpr (kBytes == 2) {
      using To = Format<kDtype == 1 ? DType::bfloat16 : DType::float16>;
#pragma unroll
      for (int i = 0; i < kSize; i += 2) {
        words[i / 2] = To::narrow(__uint_as_float(bits[i]), __uint_as_float(bits[i + 1]));
      }
    } else {
#pragma unroll
      for (int i = 0; i < kSize; i += 4) {
        uint32_t word = 0;
#pragma unroll
        for (int e = 0; e < 4 && i + e < kSize; ++e) word |= (bits[i + e] & 0xff) << 8 * e;
        words[i / 4] = word;
      }
    }
  }
};

// Where the outputs go: rows `ldd` elements apart.
template <class P>
struct CompiledDestination {
  static constexpr int kOutputs = std::size(P::kDtypes);
  void* d[kOutputs];
  int64_t ldd;
  bool vectors;  // rows begin at multiples of four columns of B
};

// The outputs at four neighbouring channels of one token, as finish_four. get(leaf, e): of a staged
// operand.
template <class P, class Get>
__device__ inline void finish_four(const CompiledDestination<P>& to,
                                   const CompiledOperands<P::kOperands>& operands,
                                   const int32_t (&acc)[4], int64_t token, int64_t channel,
                                   int inside, const Get& get) {
  constexpr int kSize = 4 / P::kColumns, kOutputs = CompiledDestination<P>::kOutputs;
  DirectElements<typename P::Direct, 4> direct;
  direct.load(operands, token, channel, inside);
  uint32_t made[kOutputs][kSize];
#pragma unroll
  for (int i = 0; i < kSize; ++i) {
    const auto value = [&](auto leaf, int c) {
      if constexpr (is_direct<decltype(leaf)>) {
        return direct.at(leaf, P::kColumns * i + c);
      } else {
        return get(leaf, P::kColumns * i + c);
      }
    };
    uint32_t out[kOutputs];
    P::at(acc + P::kColumns * i, value, out);
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) made[o][i] = out[o];
  }
  const int64_t at = token * to.ldd + channel / P::kColumns;
  [&]<size_t... o>(std::index_sequence<o...>) {
    const auto store = [&](auto output) {
      constexpr int kOutput = decltype(output)::value;
      using Of = CompiledFormat<P::kDtypes[kOutput]>;
      uint32_t words[kSize];
      Of::pack(made[kOutput], words);
      detail::store_words<kSize>(static_cast<typename Of::storage*>(to.d[kOutput]) + at, words,
                                 inside / P::kColumns, to.vectors);
    };
    (store(std::integral_constant<int, o>{}), ...);
  }(std::make_index_sequence<kOutputs>{});
}

}  // namespace scaled_mm::cuda
