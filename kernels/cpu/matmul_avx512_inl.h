#ifndef CONDENSE_KERNELS_CPU_MATMUL_AVX512_INL_H_
#define CONDENSE_KERNELS_CPU_MATMUL_AVX512_INL_H_

// What the AVX-512 and AMX products share: how a tile of weights is unpacked, and the float
// operations of a block. Both do the same ones in the same order, so that they give the same
// result, bit for bit.

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/packed_weights.h"

#define CONDENSE_AVX512 \
  __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")))
#define CONDENSE_AVX512_INLINE CONDENSE_AVX512 __attribute__((always_inline)) inline

namespace condense::cpu {

inline constexpr int kQuads = kWeightBlock / 4;

struct Tile {
  __m512i quads[kQuads];  // unsigned codes
  __m512i bases[kQuads];  // codes times kCodeBase where that fits a byte: kPacked4
  __m512 scale;
  __m512 min;
};

CONDENSE_AVX512_INLINE __m512 LoadHalves(const std::byte* from) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
}

template <WeightFormat kFormat>
CONDENSE_AVX512_INLINE void PrefetchTile(const std::byte* tile) {
  for (int64_t line = 0; line < kTileBytes<kFormat>; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(tile + line), _MM_HINT_T0);
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX512_INLINE Tile LoadTile(const std::byte* from) {
  Tile tile;
  if constexpr (kFormat == WeightFormat::kPacked4) {
    static_assert(kCodeBase == 16);
    const __m512i nibble = _mm512_set1_epi8(0xf);
#pragma GCC unroll 4
    for (int i = 0; i < kQuads / 2; ++i) {
      const int j = i + kQuads / 2;
      const __m512i pair = _mm512_loadu_si512(from + 64 * i);
      tile.quads[i] = _mm512_and_si512(pair, nibble);
      tile.bases[i] = _mm512_slli_epi16(tile.quads[i], 4);
      tile.bases[j] = _mm512_andnot_si512(nibble, pair);
      tile.quads[j] = _mm512_srli_epi16(tile.bases[j], 4);
    }
    tile.scale = LoadHalves(from + 256);
    tile.min = LoadHalves(from + 288);
  } else {
    const __m512i bias = _mm512_set1_epi8(-128);
#pragma GCC unroll 8
    for (int i = 0; i < kQuads; ++i) {
      tile.quads[i] = _mm512_xor_si512(_mm512_loadu_si512(from + 64 * i), bias);
      tile.bases[i] = _mm512_setzero_si512();
    }
    tile.scale = LoadHalves(from + 512);
    tile.min = _mm512_setzero_ps();
  }
  return tile;
}

// A dot from those with the high and the low parts of x.
CONDENSE_AVX512_INLINE __m512i AddParts(__m512i high, __m512i low) {
  static_assert(kCodeBase == 16);
  return _mm512_add_epi32(_mm512_slli_epi32(high, 4), low);
}

// sum + scale * dot + min * (sum of x): one block of one token. x_scale and x_sum are the token's.
template <WeightFormat kFormat>
CONDENSE_AVX512_INLINE __m512 AddProducts(__m512 sum, __m512i dot, __m512 scale, __m512 min,
                                          float x_scale, float x_sum) {
  const __m512 both_scales = _mm512_mul_ps(scale, _mm512_set1_ps(x_scale));
  sum = _mm512_fmadd_ps(both_scales, _mm512_cvtepi32_ps(dot), sum);
  if constexpr (kFormat == WeightFormat::kPacked4) {
    sum = _mm512_fmadd_ps(min, _mm512_set1_ps(x_sum), sum);
  }
  return sum;
}

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_MATMUL_AVX512_INL_H_
