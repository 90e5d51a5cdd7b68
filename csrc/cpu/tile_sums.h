// The sums of a tile in registers: of R rows by P panels.
//
// No include guard: an isa_*.cpp includes this inside its own namespace, after its vector type V.

inline constexpr int kPanelVectors = kGroupBytes / static_cast<int>(sizeof(V));  // of a panel's row
inline constexpr int kVectorLanes = kPanel / kPanelVectors;

template <int R, int P>
using TileSums = V[R][P][kPanelVectors];

// use(r, p, v) of every vector of a tile, in code without a loop.
template <int R, int P, class Use>
[[gnu::always_inline]] inline void each_vector(const Use& use) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int v = 0; v < kPanelVectors; ++v) use(r, p, v);
    }
  }
}

// Sums as they are.
struct ToMemory {
  int32_t* acc;  // [rows][kColBlock]

  template <int R, int P>
  [[gnu::always_inline]] void operator()(const V (&sums)[R][P][kPanelVectors], int row,
                                         int panel) const {
    each_vector<R, P>([&](int r, int p, int v) __attribute__((always_inline)) {
      store(acc + (row + r) * kColBlock + (panel + p) * kPanel + v * kVectorLanes, sums[r][p][v]);
    });
  }
};

// R rows by P panels of sums that stand in memory, each row `stride` from the last.
template <int R, int P, class End>
inline void block_from_memory(const End& end, const int32_t* from, int64_t stride, int row,
                              int panel) {
  TileSums<R, P> sums;
  each_vector<R, P>([&](int r, int p, int v) __attribute__((always_inline)) {
    sums[r][p][v] = load(from + (row + r) * stride + (panel + p) * kPanel + v * kVectorLanes);
  });
  end(sums, row, panel);
}

// All such sums to end(sums, row, panel), P panels at a time.
template <int P, class End>
inline void from_memory(const End& end, const int32_t* from, int64_t stride, int rows, int panels) {
  for (int p = 0; p < panels; p += P) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) block_from_memory<4, P>(end, from, stride, r, p);
    for (; r < rows; ++r) block_from_memory<1, P>(end, from, stride, r, p);
  }
}
