// A tile of a weight, in L1: dequantised, and multiplied.
//
// No include guard: lowbit_rows.h includes this.

// Columns [col, col + kLowbitCols) of the weight and some rows of it, all of one group.
struct WeightTile {
  const uint32_t* q;     // the words of the first row, of kLowbitCols columns readable in each
  int64_t stride;        // words to the next row
  int depth;             // rows
  int vectors;           // kLowbitVectors, or fewer where the weight ends: a multiple of 8
  const uint32_t* next;  // the words to be fetched meanwhile, as many rows; or null
  int64_t next_stride;
};

// While row k of vectors v and v + 1 is worked on: every eighth time, a row of the next tile. All
// at once would be more lines than may be under way.
template <class Words>
inline void fetch_next(const WeightTile& tile, int v, int k) {
  if (!tile.next || k % 8 != 0) return;
  constexpr int kLine = 16;  // words of a cache line
  const uint32_t* const row = tile.next + (tile.depth * v / 2 + k) / 8 * tile.next_stride;
  for (int word = 0; word < Words::kWords; word += kLine) __builtin_prefetch(row + word);
}

// Vectors v and v + 1 of all rows, rounded to 16 bits, to places kFloatPanel apart.
template <class Group>
inline void dequantize_plain(const WeightTile& tile, const Group& group, int v, float* const* to) {
  const uint32_t* q = tile.q;
  float *even = to[0], *odd = to[1];
  const Eight base[2] = {group.base[v], group.base[v + 1]};
  const Eight less[2] = {group.less[v], group.less[v + 1]};
  const Eight high[2] = {group.high[v], group.high[v + 1]};
  for (int k = 0; k < tile.depth; ++k, q += tile.stride) {
    fetch_next<typename Group::Words>(tile, v, k);
    Eight w[2];
    Group::Words::widen(q, v, w[0], w[1]);
    for (int j = 0; j < 2; ++j) Group::weight(w[j] - base[j], less[j], high[j], w[j]);
    std::memcpy(even + k * kFloatPanel, &w[0], sizeof w[0]);
    std::memcpy(odd + k * kFloatPanel, &w[1], sizeof w[1]);
  }
}

// Sixteen products with their scales, or those and the zero points: rounded to 16 bits.
template <class Of, bool kReal>
inline void round_exactly(const float* d, const float* scale, const float* zero, int count,
                          uint16_t* rounded) {
  float wide[16];
  for (int i = 0; i < count; ++i) {
    wide[i] = kReal ? product_plus(d[i], scale[i], zero[i]) : d[i] * scale[i];
  }
  Of::narrow(wide, rounded, count);
}

// The same for any scales.
template <class Of, class Group, bool kReal>
inline void dequantize_exact(const WeightTile& tile, const Group& group, int v, float* const* to) {
  float scale[16], zero[16];
  std::memcpy(scale, group.scale + v, sizeof scale);
  std::memcpy(zero, group.high + v, sizeof zero);
  for (int k = 0; k < tile.depth; ++k) {
    Eight d[2];
    float differences[16];
    uint16_t rounded[16];
    Group::Words::widen(tile.q + k * tile.stride, v, d[0], d[1]);
    for (int j = 0; j < 2; ++j) d[j] = (d[j] - group.base[v + j]) * (1.0f / Group::Words::unit(v));
    std::memcpy(differences, d, sizeof d);
    round_exactly<Of, kReal>(differences, scale, zero, 16, rounded);
    Of::widen(rounded, to[0] + k * kFloatPanel, 8);
    Of::widen(rounded + 8, to[1] + k * kFloatPanel, 8);
  }
}

// b [panel][depth][kFloatPanel] = the tile, dequantised.
template <class Of, class W>
inline void dequantize_tile(const WeightTile& tile, const GroupTerms<Of, W>& group, float* b) {
  using Group = GroupTerms<Of, W>;
  for (int v = 0; v < tile.vectors; v += 2) {
    float* to[2];
    for (int j = 0; j < 2; ++j) {
      const int n = 8 * (v + j);
      to[j] = b + n / kFloatPanel * tile.depth * kFloatPanel + n % kFloatPanel;
    }
    if (group.plain) {
      dequantize_plain(tile, group, v, to);
    } else {
      dequantize_exact<Of, Group, W::kReal>(tile, group, v, to);
    }
  }
}

// sums [R][kFloatPanel] += x [R][depth] b [depth][kFloatPanel]
template <int R>
inline void multiply_floats(const float* x, const float* b, int depth, float* sums) {
  constexpr int kVectors = kFloatTileVectors, kLanes = sizeof(F) / sizeof(float);
  F sum[R][kVectors];
  for (int r = 0; r < R; ++r) std::memcpy(sum[r], sums + r * kLowbitCols, sizeof sum[r]);
  for (int64_t k = 0; k < depth; ++k) {
    F w[kVectors];
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v)
      std::memcpy(&w[v], b + k * kFloatPanel + v * kLanes, sizeof(F));
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const F value = broadcast_float(x[r * kLowbitXStride + k]);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fused(value, w[v], sum[r][v]);
    }
  }
  for (int r = 0; r < R; ++r) std::memcpy(sums + r * kLowbitCols, sum[r], sizeof sum[r]);
}
