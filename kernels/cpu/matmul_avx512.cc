#include <algorithm>
#include <cstring>

#include "kernels/cpu/matmul_avx512_inl.h"
#include "kernels/cpu/matmul_kernels.h"

// A kernel holds the weights of a few columns in registers and walks over the tokens, whose sums
// lie in the first-level cache: weights are read and unpacked once for any number of tokens, and
// every token takes the same operations.

namespace condense::cpu {
namespace {

constexpr int kRows = kWeightRowGroup;
constexpr int kTokenStep = 4;    // tokens whose products run side by side
constexpr int kPrefetch = 1536;  // bytes ahead in the weight stream
constexpr int kFloatStep = 16;   // columns held in registers

CONDENSE_AVX512_INLINE __m512i BroadcastQuad(const int8_t* codes) {
  int32_t quad;
  std::memcpy(&quad, codes, sizeof(quad));
  return _mm512_set1_epi32(quad);
}

// One block of columns for kTokens neighbouring tokens, whose chains of products run side by side.
template <WeightFormat kFormat, int kTokens>
CONDENSE_AVX512_INLINE void AddBlock(const Tile& tile, const QuantizedTile& x, int64_t index,
                                     __m512* sums) {
  constexpr bool kHasBases = kFormat == WeightFormat::kPacked4;
  const int8_t* codes = x.codes + index * kCodeBlockBytes;
  __m512i high[kTokens];
  __m512i low[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    high[t] = _mm512_setzero_si512();
    low[t] = kHasBases ? _mm512_setzero_si512() : _mm512_set1_epi32(x.unbias[index + t]);
  }
#pragma GCC unroll 8
  for (int i = 0; i < kQuads; ++i) {
#pragma GCC unroll 8
    for (int t = 0; t < kTokens; ++t) {
      const int8_t* four = codes + t * kCodeBlockBytes + 4 * i;
      high[t] = _mm512_dpbusd_epi32(high[t], kHasBases ? tile.bases[i] : tile.quads[i],
                                    BroadcastQuad(four));
      low[t] = _mm512_dpbusd_epi32(low[t], tile.quads[i], BroadcastQuad(four + kWeightBlock));
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) {
    const __m512i dot = kHasBases ? _mm512_add_epi32(high[t], low[t]) : AddParts(high[t], low[t]);
    sums[t] = AddProducts<kFormat>(sums[t], dot, tile.scale, tile.min, x.scale[index + t],
                                   x.scaled_sum[index + t]);
  }
}

template <WeightFormat kFormat, int kTokens>
CONDENSE_AVX512_INLINE void AddBlockInMemory(const Tile& tile, const QuantizedTile& x,
                                             int64_t index, float* sums) {
  __m512 loaded[kTokens];
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) loaded[t] = _mm512_load_ps(sums + t * kRows);
  AddBlock<kFormat, kTokens>(tile, x, index, loaded);
#pragma GCC unroll 8
  for (int t = 0; t < kTokens; ++t) _mm512_store_ps(sums + t * kRows, loaded[t]);
}

template <WeightFormat kFormat>
CONDENSE_AVX512 void PackedGroup(const GroupArgs& args) {
  const QuantizedTile x = args.quantized;
  const std::byte* from = args.stream;
  if (args.num_tokens == 1) {
    __m512 sum = _mm512_setzero_ps();
    for (int64_t block = 0; block < x.blocks; ++block, from += kTileBytes<kFormat>) {
      PrefetchTile<kFormat>(from + kPrefetch);
      AddBlock<kFormat, 1>(LoadTile<kFormat>(from), x, block * x.rows, &sum);
    }
    _mm512_store_ps(args.sums, sum);
    return;
  }
  const int num_tokens = args.num_tokens;
  float* const sums = args.sums;
  std::memset(sums, 0, num_tokens * kRows * sizeof(float));
  for (int64_t block = 0; block < x.blocks; ++block, from += kTileBytes<kFormat>) {
    PrefetchTile<kFormat>(from + kPrefetch);
    const Tile tile = LoadTile<kFormat>(from);
    const int64_t first = block * x.rows;
    int token = 0;
    for (; token + kTokenStep <= num_tokens; token += kTokenStep) {
      AddBlockInMemory<kFormat, kTokenStep>(tile, x, first + token, sums + token * kRows);
    }
    for (; token < num_tokens; ++token) {
      AddBlockInMemory<kFormat, 1>(tile, x, first + token, sums + token * kRows);
    }
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX512_INLINE __m512 LoadColumn(const std::byte* from) {
  if constexpr (kFormat == WeightFormat::kF32) {
    return _mm512_loadu_ps(from);
  } else if constexpr (kFormat == WeightFormat::kF16) {
    return LoadHalves(from);
  } else {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }
}

// kSteps columns for every token, in chains side by side, so that a single token is not bound by
// the latency of one.
template <WeightFormat kFormat, int kSteps>
CONDENSE_AVX512_INLINE void AddColumns(const GroupArgs& args, int32_t col) {
  constexpr int kChains = std::min(kSteps, 4);
  __m512 w[kSteps];
#pragma GCC unroll 16
  for (int i = 0; i < kSteps; ++i) {
    w[i] = LoadColumn<kFormat>(args.stream + (col + i) * kTileBytes<kFormat>);
  }
  const float* x = args.x + col;
  float* sums = args.sums;
  for (int token = 0; token < args.num_tokens; ++token, x += args.cols, sums += kRows) {
    __m512 chains[kChains];
#pragma GCC unroll 4
    for (int i = 0; i < kChains; ++i) chains[i] = _mm512_mul_ps(w[i], _mm512_set1_ps(x[i]));
#pragma GCC unroll 16
    for (int i = kChains; i < kSteps; ++i) {
      chains[i % kChains] = _mm512_fmadd_ps(w[i], _mm512_set1_ps(x[i]), chains[i % kChains]);
    }
    __m512 sum = chains[0];
    if constexpr (kChains == 4) {
      sum = _mm512_add_ps(_mm512_add_ps(sum, chains[1]), _mm512_add_ps(chains[2], chains[3]));
    }
    _mm512_store_ps(sums, _mm512_add_ps(_mm512_load_ps(sums), sum));
  }
}

template <WeightFormat kFormat>
CONDENSE_AVX512 void FloatGroup(const GroupArgs& args) {
  for (int token = 0; token < args.num_tokens; ++token) {
    _mm512_store_ps(args.sums + token * kRows, _mm512_setzero_ps());
  }
  int32_t col = 0;
  for (; col + kFloatStep <= args.cols; col += kFloatStep) {
    AddColumns<kFormat, kFloatStep>(args, col);
  }
  for (; col < args.cols; ++col) AddColumns<kFormat, 1>(args, col);
}

}  // namespace

const MatmulKernels kAvx512VnniMatmulKernels = {{
    FloatGroup<WeightFormat::kF32>,
    FloatGroup<WeightFormat::kF16>,
    FloatGroup<WeightFormat::kBf16>,
    PackedGroup<WeightFormat::kPacked4>,
    PackedGroup<WeightFormat::kPacked8>,
}};

}  // namespace condense::cpu
