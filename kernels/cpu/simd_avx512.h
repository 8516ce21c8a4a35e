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

#include "kernels/base/dtype.h"

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

}  // namespace condense::cpu::avx512

#endif  // CONDENSE_KERNELS_CPU_SIMD_AVX512_H_
