// The sum of a token's parts, of several experts (problems/groups.h).
//
// No include guard: every isa_*.cpp includes this once, inside its own namespace.

// Tokens [begin, end).
inline void combine(const CombinedTokens& p, int64_t begin, int64_t end) {
  const FloatEnvironment environment;
  alignas(64) float sum[kColBlock], part[kColBlock];
  for (int64_t token = begin; token < end; ++token) {
    for (int64_t col = 0; col < p.columns; col += kColBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kColBlock, p.columns - col));
      std::fill(sum, sum + kColBlock, 0.0f);
      for (int j = 0; j < p.top_k; ++j) {
        float weight;
        widen_columns(p.weights, token, j, &weight, 1);
        float* const to = j == 0 ? sum : part;
        widen_columns(p.y, p.places[token * p.top_k + j], col, to, count);
        for (int n = 0; n < count; ++n) to[n] *= weight;
        if (j == 0) continue;
        for (int n = 0; n < count; ++n) sum[n] += part[n];
      }
      if (p.residual.data) {
        widen_columns(p.residual, token, col, part, count);
        for (int n = 0; n < count; ++n) sum[n] += part[n];
      }
      with_dtype(p.dtype, [&](auto to) {
        auto* const d = static_cast<typename Format<to>::storage*>(p.d);
        narrow_row<Format<to>>(sum, d + token * p.columns + col, count);
      });
    }
  }
}
