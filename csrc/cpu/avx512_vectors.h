// The vectors of vnni_micro.h in AVX512: 64 bytes, 32 registers. A tile of 6 rows by 4 panels holds
// 24 sums.
//
// No include guard: an isa_*.cpp includes this inside its own namespace.

#define SCALED_MM_HAS_AVX512

using V = __m512i;
inline constexpr int kTileRows = 6, kTilePanels = 4, kDotTileRows = 6, kDotTileCols = 4;

inline V load(const void* from) { return _mm512_loadu_si512(from); }
inline void store(void* to, V x) { _mm512_storeu_si512(to, x); }
inline V broadcast(int32_t x) { return _mm512_set1_epi32(x); }
// The lower and the upper halves of each 16 bytes, by turns.
inline V low_bytes(V x, V y) { return _mm512_unpacklo_epi8(x, y); }
inline V high_bytes(V x, V y) { return _mm512_unpackhi_epi8(x, y); }
inline V low_pairs(V x, V y) { return _mm512_unpacklo_epi16(x, y); }
inline V high_pairs(V x, V y) { return _mm512_unpackhi_epi16(x, y); }
inline V dpbusd(V sum, V u8, V s8) { return _mm512_dpbusd_epi32(sum, u8, s8); }
inline V flip_sign(V x) { return _mm512_xor_si512(x, _mm512_set1_epi8(-128)); }
inline uint32_t horizontal_sum(V x) {
  __m256i half[2];  // by memcpy: g++ 12 warns of its own header in _mm512_castsi512_si256
  std::memcpy(half, &x, sizeof half);
  const __m256i halves = _mm256_add_epi32(half[0], half[1]);
  __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(halves), _mm256_extracti128_si256(halves, 1));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
  sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(sum));
}

using F = __m512;
inline constexpr int kFloatTileRows = 12, kFloatTileVectors = 2;  // 24 sums of 32 registers
inline F fused(F x, F y, F sum) { return _mm512_fmadd_ps(x, y, sum); }
inline F broadcast_float(float x) { return _mm512_set1_ps(x); }
