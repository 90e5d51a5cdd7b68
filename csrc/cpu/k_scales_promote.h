// A tile whose pieces are whole groups: the int32 sums of a group and the float sums of its slice
// stay in registers.
//
// No include guard: k_scales.h includes this.

// Of R rows so many panels are registers, and enough to hide how long vpdpbusd takes.
constexpr int promoted_panels(int rows) { return rows == 1 ? 8 : rows < 4 ? 4 : 2; }

template <class Columns, int R, int P>
struct Promotion {
#if defined(SCALED_MM_HAS_AVX512)
  const Columns& columns;
  const Pieces& pieces;
  const Place* places;  // of the span
  const RowBlock& rows;
  int64_t row;  // the first

  // The span [first, end), whose first piece has that number, by P panels from `panel` on.
  // of_columns: their sums in each piece, where there is azp. slices, sums: of the tile's columns.
  void run(int64_t first, int64_t end, int64_t piece, int panel, const EpilogueOperand& azp,
           const int32_t* of_columns, float* slices, float* sums) const {
    F slice[R][P] = {};
    const auto each = [&](const auto& use) __attribute__((always_inline)) {
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) use(slice[r][p], r * kKScalesCols + p * kPanel);
      }
    };
    if (!places->begins_slice) each([&](F& x, int at) { x = floats(slices + at); });
    const Place* place = places;
    for (int64_t k = first, stop; k < end; k = stop, ++piece, ++place) {
      stop = pieces.end(k);
      if (place->begins_slice) each([](F& x, int) { x = broadcast_float(-0.0f); });
      V t[R][P];
      const ARows a = rows.from(row, k, piece);
      multiply(a, columns.at(k) + panel * columns.stride(), stop - k, t);
      if (of_columns) {
        take_azp(azp, of_columns, t);
        of_columns += kKScalesCols;
      }
      add(place->group, panel, t, slice);
      if (place->ends_slice) {
        each([&](F& x, int at) { put(sums + at, floats(sums + at) + x); });
      }
    }
    if (!place[-1].ends_slice) each([&](F& x, int at) { put(slices + at, x); });
  }

 private:
  using Ints = int32_t __attribute__((vector_size(sizeof(V))));

  static F floats(const float* from) {
    F x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static void put(float* to, F x) { std::memcpy(to, &x, sizeof x); }

  [[gnu::always_inline]] void multiply(const ARows& a, const uint8_t* b, int64_t depth,
                                       V (&t)[R][P]) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) t[r][p] = broadcast(a.init[r]);
    }
    for (int64_t g = 0; g < groups(depth); ++g) {
      V w[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const uint8_t* const from = b + p * columns.stride() + g * kGroupBytes;
        if constexpr (Columns::kInBlocks) _mm_prefetch(from + kPrefetchBytes, _MM_HINT_T0);
        w[p] = load(from);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        int32_t four;
        std::memcpy(&four, a.row<char>(r) + g * kGroup, sizeof four);
        const V x = broadcast(four);
#pragma GCC unroll 8
        for (int p = 0; p < P; ++p) t[r][p] = dpbusd(t[r][p], w[p], x);
      }
    }
  }

  void take_azp(const EpilogueOperand& azp, const int32_t* of_columns, V (&t)[R][P]) const {
    using Words = uint32_t __attribute__((vector_size(sizeof(V))));  // they wrap
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t m = rows.first() + row + r;
      const Words own = Words{} + static_cast<const uint32_t*>(azp.data)[m * azp.row_stride];
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        const Words sum = __builtin_bit_cast(Words, load(of_columns + p * kPanel));
        t[r][p] = __builtin_bit_cast(V, __builtin_bit_cast(Words, t[r][p]) - own * sum);
      }
    }
  }

  [[gnu::always_inline]] void add(int64_t group, int panel, const V (&t)[R][P],
                                  F (&slice)[R][P]) const {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
      for (int p = 0; p < P; ++p) {
        F scale;
        if constexpr (Columns::kInBlocks) {
          scale = broadcast_float(columns.scale(group, rows.first() + row + r));
        } else {
          scale = floats(columns.scales(group, 0) + (panel + p) * kPanel);
        }
        const F sum = __builtin_convertvector(__builtin_bit_cast(Ints, t[r][p]), F);
        slice[r][p] = fused(scale, sum, slice[r][p]);
      }
    }
  }
#endif
};
