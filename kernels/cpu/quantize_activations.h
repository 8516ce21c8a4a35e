#ifndef CONDENSE_KERNELS_CPU_QUANTIZE_ACTIVATIONS_H_
#define CONDENSE_KERNELS_CPU_QUANTIZE_ACTIVATIONS_H_

// Activations in the form that packed matrix products read: 12-bit codes with one scale per row and
// 32 columns, each code cut into two bytes.

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/cpu_features.h"
#include "kernels/packed_weights.h"

namespace condense::cpu {

// scale = max|x| / kLargestCode of the block, code = x / scale rounded to nearest even. A block
// without a value of at least kSmallestActivation has scale 0 and codes 0; one with NaN or infinity
// has that as its scale, and codes 0.
inline constexpr float kSmallestActivation = 1e-30f;

// A code is 16 * high + low with low in [-8, 7], so that high fits the signed byte of an integer
// product up to 127. Eight bits alone would cost accuracy: their rounding changes answers.
inline constexpr int kCodeBase = 16;
inline constexpr int kLargestCode = 127 * kCodeBase;
// Bytes of a block of codes: 32 high parts, then 32 low parts.
inline constexpr int kCodeBlockBytes = 2 * kWeightBlock;

// Rows are kept in tiles of kActivationTile neighbours (the last may be shorter), and inside a tile
// block by block, so that a kernel which holds a block of weights reads all rows of a tile in
// sequence.
inline constexpr int kActivationTile = 32;

// R rows of one tile. Element (block b, row r) of every array is at index b * R + r. Non-owning.
struct QuantizedTile {
  int32_t rows = 0;         // R
  int32_t blocks = 0;       // K / 32
  int8_t* codes = nullptr;  // [blocks, R, kCodeBlockBytes], aligned to 64 bytes
  float* scale = nullptr;   // [blocks, R]
  float* scaled_sum =
      nullptr;  // [blocks, R], scale * sum of codes: what a block's min is multiplied with
  int32_t* unbias =
      nullptr;  // [blocks, R], -128 * sum of codes: undoes weights that are stored plus 128
};

// All tiles of a matrix [T, K], one behind the other. Non-owning.
struct QuantizedActivations {
  int32_t rows = 0;         // T
  int32_t blocks = 0;       // K / 32
  int8_t* codes = nullptr;  // aligned to 64 bytes
  float* scale = nullptr;
  float* scaled_sum = nullptr;
  int32_t* unbias = nullptr;

  // REQUIRES: first_row is a multiple of kActivationTile below `rows`.
  QuantizedTile Tile(int32_t first_row) const;
};

// Bytes for all arrays of [rows, cols].
size_t QuantizedActivationsBytes(int64_t rows, int64_t cols);
// Lays the arrays out in `memory`, aligned to 64 bytes.
QuantizedActivations PlaceQuantizedActivations(std::byte* memory, int32_t rows, int32_t cols);

// Quantizes x [K] into row `row`. The result does not depend on `isa`.
void QuantizeRow(const float* x, int32_t row, CpuIsa isa, const QuantizedActivations& to);

}  // namespace condense::cpu

#endif  // CONDENSE_KERNELS_CPU_QUANTIZE_ACTIVATIONS_H_
