#ifndef CONDENSE_KERNELS_CPU_SIMD_AVX512_H_
#define CONDENSE_KERNELS_CPU_SIMD_AVX512_H_

// The AVX-512 (F, BW, VL, DQ) body of the vector vocabulary: 16 lanes. See simd_scalar.h for what
// each name promises.

// GCC 12 takes the "undefined" operand of its own AVX-512 intrinsics for an uninitialized variable.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic pop
#endif

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/kv_kernel_args.h"
#include "kernels/kv_codes.h"

#define CONDENSE_SIMD_NAMESPACE avx512
#define CONDENSE_SIMD_TARGET \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")))
#define CONDENSE_SIMD_INLINE                                                                 \
  inline __attribute__((always_inline, target("avx512f,avx512bw,avx512vl,avx512dq,avx2,fma," \
                                              "f16c")))

namespace condense::cpu::avx512 {

inline constexpr int kLanes = 16;
// 32 registers: 8 rows x 2 vectors hide the latency of FMA; with few rows more vectors do.
inline constexpr int kMaxRows = 8;
inline constexpr int VectorsPerRow(int rows) { return rows <= 3 ? 4 : 2; }

using Vec = __m512;

CONDENSE_SIMD_INLINE __mmask16 FirstLanesMask(int n) {
  return static_cast<__mmask16>(n <= 0 ? 0u : (n >= kLanes ? 0xffffu : (1u << n) - 1u));
}

CONDENSE_SIMD_INLINE Vec Set(float x) { return _mm512_set1_ps(x); }
CONDENSE_SIMD_INLINE Vec Load(const float* p) { return _mm512_loadu_ps(p); }
CONDENSE_SIMD_INLINE Vec LoadFirst(const float* p, int n) {
  return _mm512_maskz_loadu_ps(FirstLanesMask(n), p);
}
CONDENSE_SIMD_INLINE Vec LoadHalf(const Half* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
CONDENSE_SIMD_INLINE Vec LoadHalfFirst(const Half* p, int n) {
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(FirstLanesMask(n), p));
}
CONDENSE_SIMD_INLINE void Store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
CONDENSE_SIMD_INLINE void StoreFirst(float* p, Vec v, int n) {
  _mm512_mask_storeu_ps(p, FirstLanesMask(n), v);
}
CONDENSE_SIMD_INLINE void StoreHalf(Half* p, Vec v) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
}

CONDENSE_SIMD_INLINE Vec Add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
CONDENSE_SIMD_INLINE Vec FmaNegated(Vec a, Vec b, Vec c) { return _mm512_fnmadd_ps(a, b, c); }
CONDENSE_SIMD_INLINE Vec Max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
CONDENSE_SIMD_INLINE Vec Round(Vec a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
CONDENSE_SIMD_INLINE Vec Scale2(Vec a, Vec n) { return _mm512_scalef_ps(a, n); }
CONDENSE_SIMD_INLINE Vec ZeroWhereLess(Vec a, Vec x, float limit) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, _mm512_set1_ps(limit), _CMP_NLT_UQ), a);
}
CONDENSE_SIMD_INLINE Vec KeepLanes(Vec v, int from, int to, float fill) {
  const __mmask16 keep = FirstLanesMask(to) & static_cast<__mmask16>(~FirstLanesMask(from));
  return _mm512_mask_mov_ps(_mm512_set1_ps(fill), keep, v);
}
CONDENSE_SIMD_INLINE bool AllBelowInfinity(Vec v) {
  return _mm512_cmp_ps_mask(v, _mm512_set1_ps(__builtin_inff()), _CMP_LT_OQ) == 0xffff;
}
CONDENSE_SIMD_INLINE float ReduceAdd(Vec v) { return _mm512_reduce_add_ps(v); }
CONDENSE_SIMD_INLINE float ReduceMax(Vec v) { return _mm512_reduce_max_ps(v); }
CONDENSE_SIMD_INLINE Vec RotatePairs(Vec x, const float* cos, const float* sin) {
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  const Vec c = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(cos)));
  const Vec s = _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(sin)));
  return _mm512_fmaddsub_ps(x, c, _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), s));
}

CONDENSE_SIMD_INLINE void StoreBytes(uint8_t* p, Vec v) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(v)));
}
CONDENSE_SIMD_INLINE Vec Abs(Vec v) { return _mm512_abs_ps(v); }

template <int kRun>
CONDENSE_SIMD_INLINE Vec SwapRuns(Vec v) {
  if constexpr (kRun == 1) return _mm512_permute_ps(v, 0xb1);
  if constexpr (kRun == 2) return _mm512_permute_ps(v, 0x4e);
  if constexpr (kRun == 4) return _mm512_shuffle_f32x4(v, v, 0xb1);
  if constexpr (kRun == 8) return _mm512_shuffle_f32x4(v, v, 0x4e);
}
template <int kRun>
CONDENSE_SIMD_INLINE Vec NegateOddRuns(Vec v) {
  constexpr __mmask16 kOdd = kRun == 1 ? 0xaaaa : kRun == 2 ? 0xcccc : kRun == 4 ? 0xf0f0 : 0xff00;
  return _mm512_mask_xor_ps(v, kOdd, v, Set(-0.0f));
}

CONDENSE_SIMD_INLINE void TransposeLanes(Vec (&x)[kLanes]) {
  Vec y[kLanes];  // y[4 i + j]: in quarter q column 4 q + j of the rows 4 i ... 4 i + 3
  for (int i = 0; i < kLanes; i += 4) {
    const __m512d a = _mm512_castps_pd(_mm512_unpacklo_ps(x[i], x[i + 1]));
    const __m512d b = _mm512_castps_pd(_mm512_unpackhi_ps(x[i], x[i + 1]));
    const __m512d c = _mm512_castps_pd(_mm512_unpacklo_ps(x[i + 2], x[i + 3]));
    const __m512d d = _mm512_castps_pd(_mm512_unpackhi_ps(x[i + 2], x[i + 3]));
    y[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(a, c));
    y[i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(a, c));
    y[i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(b, d));
    y[i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(b, d));
  }
  for (int j = 0; j < 4; ++j) {
    const Vec a = _mm512_shuffle_f32x4(y[j], y[4 + j], 0x44);
    const Vec b = _mm512_shuffle_f32x4(y[8 + j], y[12 + j], 0x44);
    const Vec c = _mm512_shuffle_f32x4(y[j], y[4 + j], 0xee);
    const Vec d = _mm512_shuffle_f32x4(y[8 + j], y[12 + j], 0xee);
    x[j] = _mm512_shuffle_f32x4(a, b, 0x88);
    x[4 + j] = _mm512_shuffle_f32x4(a, b, 0xdd);
    x[8 + j] = _mm512_shuffle_f32x4(c, d, 0x88);
    x[12 + j] = _mm512_shuffle_f32x4(c, d, 0xdd);
  }
}

inline constexpr AngleDigits kAngleDigits = {5, 2};
CONDENSE_SIMD_INLINE Vec Gather(const float* from, const int32_t* index) {
  return _mm512_i32gather_ps(_mm512_loadu_si512(index), from, 4);
}
using Index = __m512i;
CONDENSE_SIMD_INLINE Index LoadIndex(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
CONDENSE_SIMD_INLINE Index ShiftIndex(Index i, int bits) { return _mm512_srli_epi32(i, bits); }
CONDENSE_SIMD_INLINE Vec LookUp(const float* table, Index i) {
  return _mm512_permutex2var_ps(Load(table), i, Load(table + kLanes));
}
CONDENSE_SIMD_INLINE Vec KeepWhereBelow(Vec v, Index i, int limit) {
  return _mm512_maskz_mov_ps(_mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(limit)), v);
}
CONDENSE_SIMD_INLINE bool AllBelow(Index i, int limit) {
  return _mm512_cmplt_epi32_mask(i, _mm512_set1_epi32(limit)) == 0xffff;
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
template <int kBits, int kFirst, int kVectors>
CONDENSE_SIMD_INLINE void LoadLevels(const std::byte* lower, const std::byte* upper, Vec* out) {
  static_assert(kFirst == 0 && kVectors == 2);
  if constexpr (kBits == 4) {
    // The permutation looks at the lowest 4 bits of an index only.
    const Vec levels = _mm512_setr_ps(-15, -13, -11, -9, -7, -5, -3, -1, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m512i pairs =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lower)));
    out[0] = _mm512_permutexvar_ps(pairs, levels);
    out[1] = _mm512_permutexvar_ps(_mm512_srli_epi32(pairs, 4), levels);
  } else {
    const __m256i bytes = LoadLevelBytes<kBits>(lower, upper);
    out[0] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_castsi256_si128(bytes)));
    out[1] = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm256_extracti128_si256(bytes, 1)));
  }
}

}  // namespace condense::cpu::avx512

#endif  // CONDENSE_KERNELS_CPU_SIMD_AVX512_H_
