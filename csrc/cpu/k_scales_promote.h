// What becomes of the exact sums of a piece of K: those of a group, of a slice, of all.
//
// No include guard: k_scales.h includes this.

// Where a piece [begin, end) of K stands among groups and slices, and its number.
struct Place {
  int64_t begin, end, number, group;
  bool begins_group, ends_group, begins_slice, ends_slice;

  Place() = default;
  Place(const Pieces& pieces, int64_t first, int64_t piece)
      : begin(first), end(pieces.end(first)), number(piece), group(first / pieces.group) {
    const int64_t columns = slice_columns(pieces.k);
    const int64_t in_slice = group * pieces.group % columns;  // the column where the group begins
    begins_group = begin % pieces.group == 0;
    ends_group = end % pieces.group == 0 || end == pieces.k;
    begins_slice = group == 0 || in_slice < pieces.group;
    ends_slice = end == pieces.k || in_slice + pieces.group >= columns;
  }
};

// Takes the sums of rows and panels of a tile, which stand in registers. Its arrays are those of
// the tile's first row, kKScalesCols columns a row.
struct Promotion {
  const Place& place;
  const float* scales;
  int64_t scale_rows;         // from the scales of a row to those of the next
  const int32_t* of_columns;  // their sums in the piece, where there is azp
  const int32_t* azp;
  int64_t azp_rows;
  int32_t* group;
  float *slice, *all;

  template <int R, int P>
  [[gnu::always_inline]] void operator()(TileSums<R, P>& sums, int row, int panel) const {
    using Ints = int32_t __attribute__((vector_size(sizeof(V))));
    using Words = uint32_t __attribute__((vector_size(sizeof(V))));  // they wrap
    const auto each = [&](const auto& use) __attribute__((always_inline)) {
      each_vector<R, P>([&](int r, int p, int v) __attribute__((always_inline)) {
        const int col = (panel + p) * kPanel + v * kVectorLanes;
        use(sums[r][p][v], row + r, col, (row + r) * kKScalesCols + col);
      });
    };
    if (of_columns) {
      each([&](V& x, int r, int col, int) __attribute__((always_inline)) {
        const Words own = Words{} + static_cast<uint32_t>(azp[r * azp_rows]);
        x = V(Words(x) - own * Words(load(of_columns + col)));
      });
    }
    if (!place.begins_group) {
      each([&](V& x, int, int, int at)
               __attribute__((always_inline)) { x = V(Words(x) + Words(load(group + at))); });
    }
    if (!place.ends_group) {
      return each([&](V& x, int, int, int at)
                      __attribute__((always_inline)) { store(group + at, x); });
    }
    // Copies, which no store below can change.
    const float* const of = scales;
    const int64_t stride = scale_rows;
    float *const part = slice, *const whole = all;
    const auto added = [&](V x, int r, int col, Floats to) __attribute__((always_inline)) {
      const Floats scale = floats(of + r * stride + col);
      return fused_floats(scale, __builtin_convertvector(Ints(x), Floats), to);
    };
    const auto finish = [&](const auto& start) __attribute__((always_inline)) {
      if (place.ends_slice) {
        each([&](V& x, int r, int col, int at) __attribute__((always_inline)) {
          put(whole + at, floats(whole + at) + added(x, r, col, start(at)));
        });
      } else {
        each([&](V& x, int r, int col, int at)
                 __attribute__((always_inline)) { put(part + at, added(x, r, col, start(at))); });
      }
    };
    if (place.begins_slice) {
      finish([&](int) __attribute__((always_inline)) { return -Floats{}; });
    } else {
      finish([&](int at) __attribute__((always_inline)) { return floats(part + at); });
    }
  }

 private:
  using Floats = float __attribute__((vector_size(sizeof(V))));

  static Floats floats(const float* from) {
    Floats x;
    std::memcpy(&x, from, sizeof x);
    return x;
  }
  static void put(float* to, Floats x) { std::memcpy(to, &x, sizeof x); }

  static Floats fused_floats(Floats x, Floats y, Floats z) {
#if defined(SCALED_MM_HAS_FMA_F16C)
    return fused(x, y, z);
#else
    Floats sum{};
    for (int i = 0; i < kVectorLanes; ++i) sum[i] = fused_multiply_add(x[i], y[i], z[i]);
    return sum;
#endif
  }
};
