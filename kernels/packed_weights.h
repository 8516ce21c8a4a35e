#ifndef CONDENSE_KERNELS_PACKED_WEIGHTS_H_
#define CONDENSE_KERNELS_PACKED_WEIGHTS_H_

// The byte layout of weight matrices in memory, shared by every backend, and the functions that
// write and read it.
//
// A matrix [N rows (outputs), K columns (inputs)] is one sequential stream in the order in which a
// kernel reads it: row groups of 16 rows, and inside a group tiles along K. Rows past N are zero.
// Tiles by format:
//
//   kPacked4  32 columns: codes 256 bytes, scale f16[16], min f16[16]       = 320 bytes   w = scale
//   * code + min kPacked8  32 columns: codes 512 bytes, scale f16[16]                    = 544
//   bytes   w = scale * code kF16, kBf16  1 column: 16 values of 2 bytes = 32 bytes kF32         1
//   column: 16 floats                                        = 64 bytes
//
// Codes lie in quads of 4 columns, so that one 64-byte vector holds 16 rows x 4 columns (the
// operand order of vpdpbusd and of the AMX B tile). kPacked8: byte (quad * 64 + row * 4 + column %
// 4) is the int8 code. kPacked4: byte (pair * 64 + row * 4 + column % 4) holds the unsigned code of
// quad `pair` in its low nibble and of quad `pair + 4` in its high nibble, for pair 0..3. Scales
// and mins of a tile follow its codes. Every tile starts at a multiple of 32 bytes; the stream
// at 64.

#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace condense {

enum class WeightFormat : uint8_t { kF32, kF16, kBf16, kPacked4, kPacked8 };

inline constexpr int kWeightRowGroup = 16;
inline constexpr int kWeightBlock =
    32;  // columns that share a scale, and activations that share one

// Non-owning description of a packed matrix in backend memory.
struct WeightView {
  const std::byte* data = nullptr;
  WeightFormat format = WeightFormat::kF32;
  int32_t rows = 0;  // N, outputs
  int32_t cols = 0;  // K, inputs; a multiple of 32 for kPacked4 and kPacked8
};

const char* WeightFormatName(WeightFormat format);
// Columns per tile and bytes per tile of 16 rows.
int WeightTileCols(WeightFormat format);
int64_t WeightTileBytes(WeightFormat format);
// Bytes of the whole stream of a [rows, cols] matrix.
int64_t WeightBytes(WeightFormat format, int64_t rows, int64_t cols);

// One row of one tile, unpacked: what a file decoder hands to the packer.
struct WeightBlock4 {
  uint8_t codes[kWeightBlock];  // 0..15
  Half scale;
  Half min;
};
struct WeightBlock8 {
  int8_t codes[kWeightBlock];
  Half scale;
};

// Write row `row`, columns [32 * block, 32 * block + 32) of the matrix whose stream starts at
// `data`. REQUIRES: the stream was zeroed before the first write.
void PackBlock4(std::byte* data, int64_t cols, int64_t row, int64_t block,
                const WeightBlock4& source);
void PackBlock8(std::byte* data, int64_t cols, int64_t row, int64_t block,
                const WeightBlock8& source);
// Write `cols` floats as row `row` in format kF32, kF16 or kBf16.
void PackRow(std::byte* data, WeightFormat format, int64_t cols, int64_t row, const float* values);
// Read row `row` back as `weight.cols` floats, whatever the format: the embedding lookup and the
// oracle of the tests.
void UnpackRow(const WeightView& weight, int64_t row, float* values);

}  // namespace condense

#endif  // CONDENSE_KERNELS_PACKED_WEIGHTS_H_
