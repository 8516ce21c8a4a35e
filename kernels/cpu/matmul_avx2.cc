#include <immintrin.h>

#include <cstring>

#include "kernels/base/dtype.h"
#include "kernels/cpu/matmul_kernels.h"

#define CONDENSE_AVX2 __attribute__((target("avx2,fma,f16c")))
#define CONDENSE_AVX2_INLINE CONDENSE_AVX2 __attribute__((always_inline)) inline

// A kernel holds half a tile (8 weight rows) in registers and walks over the tokens, whose sums lie
// in the first-level cache: weights are read and unpacked once for any number of tokens, and every
// token takes the same operations.

namespace condense::cpu {
namespace {

constexpr int kRows = kWeightRowGroup;
constexpr int kHalfRows = kRows / 2;
constexpr int kQuads = kWeightBlock / 4;
constexpr int kFloatStep = 8;    // columns held in registers
constexpr int kPrefetch = 1536;  // bytes ahead in the weight stream

struct HalfTile {
  __m256i quads[kQuads];
  __m256 scale;
  __m256 min;
};

CONDENSE_AVX2_INLINE __m256i LoadBytes(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

CONDENSE_AVX2_INLINE __m256 LoadHalves(const std::byte* from) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
}

template <WeightFormat kFormat>
CONDENSE_AVX2_INLINE HalfTile LoadHalfTile(const std::byte* from, int half) {
  HalfTile tile;
  const std::byte* codes = from + half * 32;
  const std::byte* scales = from + half * kHalfRows * sizeof(Half);
  if constexpr (kFormat == WeightFormat::kPacked4) {
    const __m256i nibble = _mm256_set1_epi8(0xf);
#pragma GCC unroll 4
    for (int i = 0; i < kQuads / 2; ++i) {
      const __m256i pair = LoadBytes(codes + 64 * i);
      tile.quads[i] = _mm256_and_si256(pair, nibble);
      tile.quads[i + kQuads / 2] = _mm256_and_si256(_mm256_srli_epi16(pair, 4), nibble);
    }
    tile.scale = LoadHalves(scales + 256);
    tile.min = LoadHalves(scales + 288);
  } else {
#pragma GCC unroll 8
    for (int i = 0; i < kQuads; ++i) tile.quads[i] = LoadBytes(codes + 64 * i);
    tile.scale = LoadHalves(scales + 512);
    tile.min = _mm256_setzero_ps();
  }
  return tile;
}

CONDENSE_AVX2_INLINE __m256i BroadcastQuad(const int8_t* codes) {
  int32_t quad;
  std::memcpy(&quad, codes, sizeof(quad));
  return _mm256_set1_epi32(quad);
}

// Products of a 32-column block with one part of the activations, in pairs. 16-bit sums hold a
// whole block: 8 quads x 2 products x 15 x 127 = 30480.
CONDENSE_AVX2_INLINE __m256i Pairs4(const HalfTile& tile, const int8_t* part) {
  __m256i pairs = _mm256_maddubs_epi16(tile.quads[0], BroadcastQuad(part));
#pragma GCC unroll 8
  for (int i = 1; i < kQuads; ++i) {
    const __m256i products = _mm256_maddubs_epi16(tile.quads[i], BroadcastQuad(part + 4 * i));
    pairs = _mm256_add_epi16(pairs, products);
  }
  return pairs;
}

CONDENSE_AVX2_INLINE __m256i Dot4(const HalfTile& tile, const int8_t* codes) {
  const __m256i high = Pairs4(tile, codes);
  const __m256i low = Pairs4(tile, codes + kWeightBlock);
  return _mm256_add_epi32(_mm256_madd_epi16(high, _mm256_set1_epi16(kCodeBase)),
                          _mm256_madd_epi16(low, _mm256_set1_epi16(1)));
}

// |w| times x with the sign of w. High parts: 2 products x 128 x 127 fit in 16 bits, but no second
// pair does. Low parts: 8 quads x 2 products x 128 x 8 = 16384.
CONDENSE_AVX2_INLINE __m256i Dot8(const HalfTile& tile, const int8_t* codes) {
  __m256i dot = _mm256_setzero_si256();
  __m256i low_pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int i = 0; i < kQuads; ++i) {
    const __m256i w = tile.quads[i];
    const __m256i magnitude = _mm256_abs_epi8(w);
    const __m256i high = _mm256_sign_epi8(BroadcastQuad(codes + 4 * i), w);
    const __m256i low = _mm256_sign_epi8(BroadcastQuad(codes + kWeightBlock + 4 * i), w);
    const __m256i pairs = _mm256_maddubs_epi16(magnitude, high);
    dot = _mm256_add_epi32(dot, _mm256_madd_epi16(pairs, _mm256_set1_epi16(kCodeBase)));
    low_pairs = _mm256_add_epi16(low_pairs, _mm256_maddubs_epi16(magnitude, low));
  }
  return _mm256_add_epi32(dot, _mm256_madd_epi16(low_pairs, _mm256_set1_epi16(1)));
}

template <WeightFormat kFormat>
CONDENSE_AVX2_INLINE __m256 AddBlock(__m256 sum, const HalfTile& tile, const QuantizedTile& x,
                                     int64_t index) {
  const int8_t* codes = x.codes + index * kCodeBlockBytes;
  const __m256i dot = kFormat == WeightFormat::kPacked4 ? Dot4(tile, codes) : Dot8(tile, codes);
  const __m256 scale = _mm256_mul_ps(tile.scale, _mm256_broadcast_ss(x.scale + index));
  sum = _mm256_fmadd_ps(scale, _mm256_cvtepi32_ps(dot), sum);
  if constexpr (kFormat == WeightFormat::kPacked4) {
    sum = _mm256_fmadd_ps(tile.min, _mm256_broadcast_ss(x.scaled_sum + index), sum);
  }
  return sum;
}

template <WeightFormat kFormat>
CONDENSE_AVX2_INLINE void Prefetch(const std::byte* from) {
  for (int64_t line = 0; line < kTileBytes<kFormat>; line += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(from + kPrefetch + line), _MM_HINT_T0);
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX2 void PackedGroupOneToken(const GroupArgs& args) {
  const QuantizedTile& x = args.quantized;
  const std::byte* from = args.stream;
  __m256 low = _mm256_setzero_ps();
  __m256 high = _mm256_setzero_ps();
  for (int64_t block = 0; block < x.blocks; ++block, from += kTileBytes<kFormat>) {
    Prefetch<kFormat>(from);
    const int64_t index = block;
    low = AddBlock<kFormat>(low, LoadHalfTile<kFormat>(from, 0), x, index);
    high = AddBlock<kFormat>(high, LoadHalfTile<kFormat>(from, 1), x, index);
  }
  _mm256_store_ps(args.sums, low);
  _mm256_store_ps(args.sums + kHalfRows, high);
}

template <WeightFormat kFormat>
CONDENSE_AVX2 void PackedGroup(const GroupArgs& args) {
  if (args.num_tokens == 1) return PackedGroupOneToken<kFormat>(args);
  const QuantizedTile& x = args.quantized;
  std::memset(args.sums, 0, args.num_tokens * kRows * sizeof(float));
  const std::byte* from = args.stream;
  for (int64_t block = 0; block < x.blocks; ++block, from += kTileBytes<kFormat>) {
    Prefetch<kFormat>(from);
    const int64_t first = block * x.rows;
    for (int half = 0; half < 2; ++half) {
      const HalfTile tile = LoadHalfTile<kFormat>(from, half);
      float* sums = args.sums + half * kHalfRows;
      for (int token = 0; token < args.num_tokens; ++token, sums += kRows) {
        _mm256_store_ps(sums, AddBlock<kFormat>(_mm256_load_ps(sums), tile, x, first + token));
      }
    }
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX2_INLINE __m256 LoadColumn(const std::byte* from, int half) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return _mm256_loadu_ps(reinterpret_cast<const float*>(from) + half * kHalfRows);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return LoadHalves(from + half * kHalfRows * sizeof(Half));
  } else {
    const std::byte* bits = from + half * kHalfRows * sizeof(BFloat16);
    const __m128i narrow = _mm_loadu_si128(reinterpret_cast<const __m128i*>(bits));
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(narrow), 16));
  }
}

// kSteps columns of 8 weight rows for every token; two chains, so that a single token is not bound
// by the latency of one.
template <WeightFormat kFormat, int kSteps>
CONDENSE_AVX2_INLINE void AddColumns(const GroupArgs& args, int32_t col, int half) {
  __m256 w[kSteps];
#pragma GCC unroll 8
  for (int i = 0; i < kSteps; ++i) {
    w[i] = LoadColumn<kFormat>(args.stream + (col + i) * kTileBytes<kFormat>, half);
  }
  const float* x = args.x + col;
  float* sums = args.sums + half * kHalfRows;
  for (int token = 0; token < args.num_tokens; ++token, x += args.cols, sums += kRows) {
    __m256 even = _mm256_mul_ps(w[0], _mm256_broadcast_ss(x));
    if constexpr (kSteps > 1) {
      __m256 odd = _mm256_mul_ps(w[1], _mm256_broadcast_ss(x + 1));
#pragma GCC unroll 4
      for (int i = 2; i < kSteps; i += 2) {
        even = _mm256_fmadd_ps(w[i], _mm256_broadcast_ss(x + i), even);
        odd = _mm256_fmadd_ps(w[i + 1], _mm256_broadcast_ss(x + i + 1), odd);
      }
      even = _mm256_add_ps(even, odd);
    }
    _mm256_store_ps(sums, _mm256_add_ps(_mm256_load_ps(sums), even));
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX2 void FloatGroup(const GroupArgs& args) {
  std::memset(args.sums, 0, args.num_tokens * kRows * sizeof(float));
  int32_t col = 0;
  for (; col + kFloatStep <= args.cols; col += kFloatStep) {
    AddColumns<kFormat, kFloatStep>(args, col, 0);
    AddColumns<kFormat, kFloatStep>(args, col, 1);
  }
  for (; col < args.cols; ++col) {
    AddColumns<kFormat, 1>(args, col, 0);
    AddColumns<kFormat, 1>(args, col, 1);
  }
}

}  // namespace

const MatmulKernels kAvx2MatmulKernels = {{
    FloatGroup<WeightFormat::kF32>,
    FloatGroup<WeightFormat::kF16>,
    FloatGroup<WeightFormat::kBf16>,
    PackedGroup<WeightFormat::kPacked4>,
    PackedGroup<WeightFormat::kPacked8>,
}};

}  // namespace condense::cpu
