#ifndef CONDENSE_KERNELS_CPU_SIMD_AVX2_H_
#define CONDENSE_KERNELS_CPU_SIMD_AVX2_H_

// The AVX2 + FMA + F16C body of the vector vocabulary: 8 lanes. See simd_scalar.h for what each
// name promises.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/kv_kernel_args.h"
#include "kernels/kv_codes.h"

#define CONDENSE_SIMD_NAMESPACE avx2
#define CONDENSE_SIMD_TARGET __attribute__((target("avx2,fma,f16c")))
#define CONDENSE_SIMD_INLINE inline __attribute__((always_inline, target("avx2,fma,f16c")))

namespace condense::cpu::avx2 {

inline constexpr int kLanes = 8;
// 16 registers: 3 rows x 4 vectors or 6 rows x 2 vectors of accumulators, the rest for operands.
inline constexpr int kMaxRows = 6;
inline constexpr int VectorsPerRow(int rows) { return rows <= 3 ? 4 : 2; }

using Vec = __m256;

CONDENSE_SIMD_INLINE __m256i FirstLanesMask(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

CONDENSE_SIMD_INLINE Vec Set(float x) { return _mm256_set1_ps(x); }
CONDENSE_SIMD_INLINE Vec Load(const float* p) { return _mm256_loadu_ps(p); }
CONDENSE_SIMD_INLINE Vec LoadFirst(const float* p, int n) {
  return _mm256_maskload_ps(p, FirstLanesMask(n));
}
CONDENSE_SIMD_INLINE Vec LoadHalf(const Half* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CONDENSE_SIMD_INLINE Vec LoadHalfFirst(const Half* p, int n) {
  alignas(16) Half padded[kLanes] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return LoadHalf(padded);
}
CONDENSE_SIMD_INLINE void Store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
CONDENSE_SIMD_INLINE void StoreFirst(float* p, Vec v, int n) {
  _mm256_maskstore_ps(p, FirstLanesMask(n), v);
}
CONDENSE_SIMD_INLINE void StoreHalf(Half* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

CONDENSE_SIMD_INLINE Vec Add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
CONDENSE_SIMD_INLINE Vec FmaNegated(Vec a, Vec b, Vec c) { return _mm256_fnmadd_ps(a, b, c); }
CONDENSE_SIMD_INLINE Vec Max(Vec a, Vec b) { return _mm256_max_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Round(Vec a) {
  return _mm256_round_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
CONDENSE_SIMD_INLINE Vec Scale2(Vec a, Vec n) {
  const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23)));
}
CONDENSE_SIMD_INLINE Vec ZeroWhereLess(Vec a, Vec x, float limit) {
  return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(limit), _CMP_LT_OQ), a);
}
CONDENSE_SIMD_INLINE Vec KeepLanes(Vec v, int from, int to, float fill) {
  const __m256i keep = _mm256_andnot_si256(FirstLanesMask(from), FirstLanesMask(to));
  return _mm256_blendv_ps(_mm256_set1_ps(fill), v, _mm256_castsi256_ps(keep));
}
CONDENSE_SIMD_INLINE bool AllBelowInfinity(Vec v) {
  const __m256 below = _mm256_cmp_ps(v, _mm256_set1_ps(__builtin_inff()), _CMP_LT_OQ);
  return _mm256_movemask_ps(below) == 0xff;
}
CONDENSE_SIMD_INLINE float ReduceAdd(Vec v) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
CONDENSE_SIMD_INLINE float ReduceMax(Vec v) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}
CONDENSE_SIMD_INLINE Vec RotatePairs(Vec x, const float* cos, const float* sin) {
  const __m256i twice = _mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3);
  const Vec c = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(cos)), twice);
  const Vec s = _mm256_permutevar8x32_ps(_mm256_castps128_ps256(_mm_loadu_ps(sin)), twice);
  return _mm256_fmaddsub_ps(x, c, _mm256_mul_ps(_mm256_permute_ps(x, 0xb1), s));
}

CONDENSE_SIMD_INLINE void StoreBytes(uint8_t* p, Vec v) {
  const __m256i x = _mm256_cvttps_epi32(v);
  const __m128i pairs = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(pairs, pairs));
}
CONDENSE_SIMD_INLINE Vec Abs(Vec v) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v); }

template <int kRun>
CONDENSE_SIMD_INLINE Vec SwapRuns(Vec v) {
  if constexpr (kRun == 1) return _mm256_permute_ps(v, 0xb1);
  if constexpr (kRun == 2) return _mm256_permute_ps(v, 0x4e);
  if constexpr (kRun == 4) return _mm256_permute2f128_ps(v, v, 0x01);
}
template <int kRun>
CONDENSE_SIMD_INLINE Vec NegateOddRuns(Vec v) {
  const float n = -0.0f;
  const Vec sign = kRun == 1   ? _mm256_setr_ps(0, n, 0, n, 0, n, 0, n)
                   : kRun == 2 ? _mm256_setr_ps(0, 0, n, n, 0, 0, n, n)
                               : _mm256_setr_ps(0, 0, 0, 0, n, n, n, n);
  return _mm256_xor_ps(v, sign);
}

CONDENSE_SIMD_INLINE void TransposeLanes(Vec (&x)[kLanes]) {
  Vec y[kLanes];  // y[4 i + j]: in half h column 4 h + j of the rows 4 i ... 4 i + 3
  for (int i = 0; i < kLanes; i += 4) {
    const __m256d a = _mm256_castps_pd(_mm256_unpacklo_ps(x[i], x[i + 1]));
    const __m256d b = _mm256_castps_pd(_mm256_unpackhi_ps(x[i], x[i + 1]));
    const __m256d c = _mm256_castps_pd(_mm256_unpacklo_ps(x[i + 2], x[i + 3]));
    const __m256d d = _mm256_castps_pd(_mm256_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm256_castpd_ps(_mm256_unpacklo_pd(a, c));
    y[i + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(a, c));
    y[i + 2] = _mm256_castpd_ps(_mm256_unpacklo_pd(b, d));
    y[i + 3] = _mm256_castpd_ps(_mm256_unpackhi_pd(b, d));
  }
  for (int j = 0; j < 4; ++j) {
    x[j] = _mm256_permute2f128_ps(y[j], y[4 + j], 0x20);
    x[4 + j] = _mm256_permute2f128_ps(y[j], y[4 + j], 0x31);
  }
}

inline constexpr AngleDigits kAngleDigits = {3, 3};
CONDENSE_SIMD_INLINE Vec Gather(const float* from, const int32_t* index) {
  return _mm256_i32gather_ps(from, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(index)), 4);
}
using Index = __m256i;
CONDENSE_SIMD_INLINE Index LoadIndex(const uint16_t* p) {
  return _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
CONDENSE_SIMD_INLINE Index ShiftIndex(Index i, int bits) { return _mm256_srli_epi32(i, bits); }
CONDENSE_SIMD_INLINE Vec LookUp(const float* table, Index i) {
  return _mm256_permutevar8x32_ps(Load(table), i);
}
CONDENSE_SIMD_INLINE __m256i BelowMask(Index i, int limit) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(limit), i);
}
CONDENSE_SIMD_INLINE Vec KeepWhereBelow(Vec v, Index i, int limit) {
  return _mm256_and_ps(v, _mm256_castsi256_ps(BelowMask(i, limit)));
}
CONDENSE_SIMD_INLINE bool AllBelow(Index i, int limit) {
  return _mm256_movemask_epi8(BelowMask(i, limit)) == -1;
}

// The 32 codes of a group as signed bytes: their levels. A plane's bytes are repeated over the
// register and shifted so that codes come out in order; a table turns them into levels, which
// leaves the offsets of both planes in their tables.
template <int kBits>
CONDENSE_SIMD_INLINE __m256i LoadLevelBytes(const std::byte* lower, const std::byte* upper) {
  if constexpr (kBits == 8) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lower));
  } else if constexpr (kBits == 3) {
    int64_t quads;
    std::memcpy(&quads, lower, sizeof(quads));
    const __m256i low = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(quads), _mm256_setr_epi64x(0, 2, 4, 6)),
        _mm256_set1_epi8(3));
    int32_t bits;
    std::memcpy(&bits, upper, sizeof(bits));
    const __m256i high = _mm256_and_si256(
        _mm256_srlv_epi32(_mm256_set1_epi32(bits), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)),
        _mm256_set1_epi8(1));
    // 2u - 7 = (2 low - 7) + 8 high
    const __m256i low_levels = _mm256_set1_epi32(static_cast<int>(0xfffdfbf9u));
    const __m256i high_levels = _mm256_set1_epi32(0x0800);
    return _mm256_add_epi8(_mm256_shuffle_epi8(low_levels, low),
                           _mm256_shuffle_epi8(high_levels, high));
  } else {
    const __m256i pairs =
        _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lower)));
    const __m256i low = _mm256_and_si256(_mm256_srlv_epi64(pairs, _mm256_setr_epi64x(0, 0, 4, 4)),
                                         _mm256_set1_epi8(15));
    // 2u - 15, and for 6 bits 2u - 63 = (2 low - 15) + (32 high - 48)
    const __m256i low_levels = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15));
    const __m256i levels = _mm256_shuffle_epi8(low_levels, low);
    if constexpr (kBits == 4) return levels;
    int64_t quads;
    std::memcpy(&quads, upper, sizeof(quads));
    const __m256i high = _mm256_and_si256(
        _mm256_srlv_epi64(_mm256_set1_epi64x(quads), _mm256_setr_epi64x(0, 2, 4, 6)),
        _mm256_set1_epi8(3));
    const __m256i high_levels = _mm256_set1_epi32(0x3010f0d0);
    return _mm256_add_epi8(levels, _mm256_shuffle_epi8(high_levels, high));
  }
}
template <int kVector>
CONDENSE_SIMD_INLINE Vec LevelsAt(__m256i bytes) {
  __m128i half = kVector < 2 ? _mm256_castsi256_si128(bytes) : _mm256_extracti128_si256(bytes, 1);
  if constexpr (kVector % 2 == 1) half = _mm_srli_si128(half, 8);
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(half));
}
template <int kBits, int kFirst, int kVectors>
CONDENSE_SIMD_INLINE void LoadLevels(const std::byte* lower, const std::byte* upper, Vec* out) {
  const __m256i bytes = LoadLevelBytes<kBits>(lower, upper);
  out[0] = LevelsAt<kFirst>(bytes);
  if constexpr (kVectors > 1) out[1] = LevelsAt<kFirst + 1>(bytes);
  if constexpr (kVectors > 2) out[2] = LevelsAt<kFirst + 2>(bytes);
  if constexpr (kVectors > 3) out[3] = LevelsAt<kFirst + 3>(bytes);
}

}  // namespace condense::cpu::avx2

#endif  // CONDENSE_KERNELS_CPU_SIMD_AVX2_H_
