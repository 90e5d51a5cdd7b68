// 32-byte vectors, for the instruction sets that have no more.
//
// No include guard: an isa_*.cpp includes this inside its own namespace.

using V = __m256i;

inline V load(const void* from) { return _mm256_loadu_si256(static_cast<const V*>(from)); }
inline void store(void* to, V x) { _mm256_storeu_si256(static_cast<V*>(to), x); }
inline V broadcast(int32_t x) { return _mm256_set1_epi32(x); }
inline V flip_sign(V x) { return _mm256_xor_si256(x, _mm256_set1_epi8(-128)); }
// The lower and the upper halves of each 16 bytes, by turns.
inline V low_bytes(V x, V y) { return _mm256_unpacklo_epi8(x, y); }
inline V high_bytes(V x, V y) { return _mm256_unpackhi_epi8(x, y); }
inline V low_pairs(V x, V y) { return _mm256_unpacklo_epi16(x, y); }
inline V high_pairs(V x, V y) { return _mm256_unpackhi_epi16(x, y); }
inline uint32_t horizontal_sum(V x) {
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(sum));
}

using F = __m256;
inline constexpr int kFloatTileRows = 6, kFloatTileVectors = 2;  // 12 sums of 16 registers
inline F fused(F x, F y, F sum) { return _mm256_fmadd_ps(x, y, sum); }
inline F broadcast_float(float x) { return _mm256_set1_ps(x); }
