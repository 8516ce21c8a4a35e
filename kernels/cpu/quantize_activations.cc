#include "kernels/cpu/quantize_activations.h"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace condense::cpu {
namespace {

constexpr uint32_t kMagnitude = 0x7fffffffu;
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr int kLowBits = 4;
static_assert(kCodeBase == 1 << kLowBits);

struct BlockScale {
  float scale;    // stored
  float inverse;  // multiplies x; 0 when the codes are 0
};

// From the bits of the largest magnitude: as integers they order like the values, with NaN above
// infinity.
BlockScale ScaleOf(uint32_t magnitude) {
  const float largest = std::bit_cast<float>(magnitude);
  if (magnitude >= kInfinity) return {largest, 0.0f};
  if (largest < kSmallestActivation) return {0.0f, 0.0f};
  return {largest / kLargestCode, kLargestCode / largest};
}

void StoreBlock(const QuantizedTile& to, int64_t index, float scale, int32_t sum) {
  to.scale[index] = scale;
  to.scaled_sum[index] = scale * static_cast<float>(sum);
  to.unbias[index] = -128 * sum;
}

void QuantizeBlockScalar(const float* x, int64_t index, const QuantizedTile& to) {
  int8_t* high = to.codes + index * kCodeBlockBytes;
  int8_t* low = high + kWeightBlock;
  uint32_t magnitude = 0;
  for (int i = 0; i < kWeightBlock; ++i) {
    const uint32_t bits = std::bit_cast<uint32_t>(x[i]) & kMagnitude;
    magnitude = magnitude < bits ? bits : magnitude;
  }
  const BlockScale block = ScaleOf(magnitude);
  int32_t sum = 0;
  if (block.inverse == 0.0f) {
    std::memset(high, 0, kCodeBlockBytes);
  } else {
    for (int i = 0; i < kWeightBlock; ++i) {
      const int32_t code = _mm_cvtss_si32(_mm_set_ss(x[i] * block.inverse));
      const int32_t upper = (code + kCodeBase / 2) >> kLowBits;
      high[i] = static_cast<int8_t>(upper);
      low[i] = static_cast<int8_t>(code - upper * kCodeBase);
      sum += code;
    }
  }
  StoreBlock(to, index, block.scale, sum);
}

__attribute__((target("avx2"))) uint32_t LargestMagnitude(const __m256 v[4]) {
  const __m256i mask = _mm256_set1_epi32(static_cast<int>(kMagnitude));
  __m256i largest = _mm256_and_si256(_mm256_castps_si256(v[0]), mask);
  for (int i = 1; i < 4; ++i) {
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), mask));
  }
  __m128i half =
      _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(half));
}

__attribute__((target("avx2"))) int32_t SumOfCodes(const __m256i codes[2]) {
  const __m256i one = _mm256_set1_epi16(1);
  const __m256i pairs =
      _mm256_add_epi32(_mm256_madd_epi16(codes[0], one), _mm256_madd_epi16(codes[1], one));
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(1, 0, 3, 2)));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, _MM_SHUFFLE(2, 3, 0, 1)));
  return _mm_cvtsi128_si32(half);
}

// Packing works inside 128-bit lanes, from 32 to 16 bits and again to 8: the groups of four are put
// back in order.
__attribute__((target("avx2"))) void StoreBytes(__m256i first, __m256i second, int8_t* to) {
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(first, second), order);
  _mm256_store_si256(reinterpret_cast<__m256i*>(to), bytes);
}

__attribute__((target("avx2"))) void QuantizeBlockAvx2(const float* x, int64_t index,
                                                       const QuantizedTile& to) {
  __m256 v[4];
  for (int i = 0; i < 4; ++i) v[i] = _mm256_loadu_ps(x + 8 * i);
  const BlockScale block = ScaleOf(LargestMagnitude(v));
  __m256i codes[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
  if (block.inverse != 0.0f) {
    const __m256 inverse = _mm256_set1_ps(block.inverse);
    __m256i rounded[4];
    for (int i = 0; i < 4; ++i) rounded[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    codes[0] = _mm256_packs_epi32(rounded[0], rounded[1]);
    codes[1] = _mm256_packs_epi32(rounded[2], rounded[3]);
  }
  __m256i high[2];
  __m256i low[2];
  for (int i = 0; i < 2; ++i) {
    const __m256i half = _mm256_set1_epi16(kCodeBase / 2);
    high[i] = _mm256_srai_epi16(_mm256_add_epi16(codes[i], half), kLowBits);
    low[i] = _mm256_sub_epi16(codes[i], _mm256_slli_epi16(high[i], kLowBits));
  }
  int8_t* const bytes = to.codes + index * kCodeBlockBytes;
  StoreBytes(high[0], high[1], bytes);
  StoreBytes(low[0], low[1], bytes + kWeightBlock);
  StoreBlock(to, index, block.scale, SumOfCodes(codes));
}

// Kernels that take 16 rows at a time read behind the last one.
constexpr size_t kReadAhead = 16 * kCodeBlockBytes;

constexpr size_t RoundUp64(size_t size) { return (size + 63) / 64 * 64; }

}  // namespace

size_t QuantizedActivationsBytes(int64_t rows, int64_t cols) {
  const int64_t count = rows * (cols / kWeightBlock);
  return count * kCodeBlockBytes + 3 * RoundUp64(count * sizeof(float)) + kReadAhead;
}

QuantizedTile QuantizedActivations::Tile(int32_t first_row) const {
  const int64_t start = static_cast<int64_t>(first_row) * blocks;
  QuantizedTile tile;
  tile.rows = std::min(kActivationTile, rows - first_row);
  tile.blocks = blocks;
  tile.codes = codes + start * kCodeBlockBytes;
  tile.scale = scale + start;
  tile.scaled_sum = scaled_sum + start;
  tile.unbias = unbias + start;
  return tile;
}

QuantizedActivations PlaceQuantizedActivations(std::byte* memory, int32_t rows, int32_t cols) {
  QuantizedActivations placed;
  placed.rows = rows;
  placed.blocks = cols / kWeightBlock;
  const int64_t count = static_cast<int64_t>(rows) * placed.blocks;
  const size_t array = RoundUp64(count * sizeof(float));
  std::byte* const after_codes = memory + count * kCodeBlockBytes;
  placed.codes = reinterpret_cast<int8_t*>(memory);
  placed.scale = reinterpret_cast<float*>(after_codes);
  placed.scaled_sum = reinterpret_cast<float*>(after_codes + array);
  placed.unbias = reinterpret_cast<int32_t*>(after_codes + 2 * array);
  return placed;
}

void QuantizeRow(const float* x, int32_t row, CpuIsa isa, const QuantizedActivations& to) {
  const auto quantize_block = isa == CpuIsa::kScalar ? QuantizeBlockScalar : QuantizeBlockAvx2;
  const int32_t row_in_tile = row % kActivationTile;
  const QuantizedTile tile = to.Tile(row - row_in_tile);
  for (int64_t block = 0; block < tile.blocks; ++block) {
    quantize_block(x + block * kWeightBlock, block * tile.rows + row_in_tile, tile);
  }
}

}  // namespace condense::cpu
