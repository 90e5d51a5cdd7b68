// A tile of a weight times rows of X. Of few rows the tile goes from its words into the sums
// without a stop: its weights are never in memory.
//
// No include guard: lowbit_rows.h includes this.

#if defined(SCALED_MM_HAS_FMA_F16C)
[[gnu::always_inline]] inline Wide wide_at(const float* from) {
  Wide x;
  std::memcpy(&x, from, sizeof x);
  return x;
}

// kPairs pairs of vectors from v on, of R rows: enough chains of sums to hide the latency of an
// addition, no more than there are registers for.
template <int R, int kPairs, class Group>
inline void stream_vectors(const WeightTile& tile, const Group& group, int v, const float* x,
                           float* sums) {
  constexpr int kLanes = sizeof(Wide) / sizeof(float), kWide = 16 * kPairs / kLanes;
  const auto part = [&](const Eight* of, int u) __attribute__((always_inline)) {
    return wide_at(reinterpret_cast<const float*>(of + v) + u * kLanes);
  };
  Wide sum[R][kWide], base[kWide], less[kWide], high[kWide];
  each<kWide>([&](auto u) __attribute__((always_inline)) {
    base[u] = part(group.base, u), less[u] = part(group.less, u), high[u] = part(group.high, u);
    each<R>([&](auto r) __attribute__((always_inline)) {
      sum[r][u] = wide_at(sums + r * kLowbitCols + 8 * v + u * kLanes);
    });
  });
  using Words = typename Group::Words;
  const uint32_t *q = tile.q, *next = tile.next ? tile.next : tile.q;
  next += v * Words::kWords / kLowbitVectors;
  // A line of the next tile with every row: a run of fetches would wait for each other.
  for (int64_t k = 0; k < tile.depth; ++k, q += tile.stride, next += tile.next_stride) {
    __builtin_prefetch(next);
    Wide w[kWide];
    Words::widen_pairs(q, v, w);
    each<kWide>([&](auto u) __attribute__((always_inline)) {
      Group::weight(w[u] - base[u], less[u], high[u], w[u]);
    });
    each<R>([&](auto r) __attribute__((always_inline)) {
      const Wide value = broadcast_float(x[r * kLowbitXStride + k]);
      each<kWide>([&](auto u) __attribute__((always_inline)) {
        sum[r][u] = fused(value, w[u], sum[r][u]);
      });
    });
  }
  each<R>([&](auto r) __attribute__((always_inline)) {
    each<kWide>([&](auto u) __attribute__((always_inline)) {
      std::memcpy(sums + r * kLowbitCols + 8 * v + u * kLanes, &sum[r][u], sizeof(Wide));
    });
  });
}

template <int R, class Group>
inline void stream_tile(const WeightTile& tile, const Group& group, const float* x, float* sums) {
  constexpr int kPairs = R <= kFewStreamRows ? kStreamPairs : kStreamPairs / 2;
  for (int v = 0; v < tile.vectors; v += 2 * kPairs) {
    stream_vectors<R, kPairs>(tile, group, v, x, sums);
  }
}
#endif

template <class Of, class W>
inline void multiply_tile(const WeightTile& tile, const GroupTerms<Of, W>& group, int64_t rows,
                          const float* x, float* b, float* sums) {
#if defined(SCALED_MM_HAS_FMA_F16C)
  if (rows <= kLowbitStreamRows && group.plain) {
    return with_constant<kLowbitStreamRows>(static_cast<int>(rows),
                                            [&](auto r) { stream_tile<r>(tile, group, x, sums); });
  }
#endif
  dequantize_tile(tile, group, b);
  for (int n = 0; n < 8 * tile.vectors; n += kFloatPanel, b += tile.depth * kFloatPanel) {
    for_each_tile(rows, kFloatTileRows, [&](int64_t first, int height) {
      with_constant<kFloatTileRows>(height, [&](auto r) {
        multiply_floats<r>(x + first * kLowbitXStride, b, tile.depth,
                           sums + first * kLowbitCols + n);
      });
    });
  }
}
