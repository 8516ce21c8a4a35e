#ifndef CONDENSE_KERNELS_KV_CODES_H_
#define CONDENSE_KERNELS_KV_CODES_H_

// Narrow keys and values: levels, scales, and where the bits of a code lie in its planes.
//
// An element is code level * scale, with one f16 scale per vector.
//   8 bits: the code is a signed byte c in [-127, 127], its level is c.
//   b = 6, 4, 3 bits: the code is u in [0, 2^b), its level the odd number 2u - (2^b - 1). There is
//   no level zero (mid-rise); a zero vector has scale 0.
// Codes lie in planes: 8; 4 (lower) + 2 (upper); 4; 2 (lower) + 1 (upper). Along a row, codes form
// groups of 32; the last group of a row has the rest, a multiple of 8. In a plane of w bits a group
// of n codes takes n * w / 8 bytes: code i is in byte i % (n * w / 8), above the codes i -
// n * w / 8, ... of the same byte. A vector of bytes shifted right by w thus yields the next codes.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "kernels/base/dtype.h"

namespace condense {

inline constexpr int kKvCodeGroup = 32;

constexpr int KvLowerBits(int bits) { return bits == 6 ? 4 : (bits == 3 ? 2 : bits); }
constexpr int KvUpperBits(int bits) { return bits - KvLowerBits(bits); }
// Bytes of a row of `cols` codes (a multiple of 8) in a plane of w bits.
constexpr int64_t KvPlaneRowBytes(int64_t cols, int plane_bits) { return cols * plane_bits / 8; }
constexpr float KvLevel(int bits, int code) {
  return static_cast<float>(bits == 8 ? static_cast<int8_t>(code) : 2 * code - ((1 << bits) - 1));
}

// Byte of a row, and shift in it, of code `col` of `cols` in a plane of w bits.
struct KvCodeSpot {
  int64_t byte = 0;
  int shift = 0;
};
constexpr KvCodeSpot KvFindCode(int64_t cols, int plane_bits, int64_t col) {
  const int64_t group = col / kKvCodeGroup;
  const int64_t width = std::min<int64_t>(kKvCodeGroup, cols - group * kKvCodeGroup);
  const int64_t bytes = width * plane_bits / 8;
  const int64_t i = col % kKvCodeGroup;
  return {group * kKvCodeGroup * plane_bits / 8 + i % bytes,
          static_cast<int>(i / bytes) * plane_bits};
}

// Two planes of codes, [rows, cols]. `upper` is not read where a width has no upper plane.
struct KvCodePlanes {
  std::byte* lower = nullptr;
  std::byte* upper = nullptr;
};
uint8_t KvReadCode(const KvCodePlanes& planes, int bits, int64_t cols, int64_t row, int64_t col);
void KvWriteCode(const KvCodePlanes& planes, int bits, int64_t cols, int64_t row, int64_t col,
                 uint8_t code);

// The scale of a vector whose largest magnitude is given: the largest level stands for that
// magnitude times 0.95 at 4 bits and 0.85 at 3 bits (which lowers the mean square error), 1
// otherwise. NaN for NaN: a vector that is not finite as a whole becomes NaN as a whole.
Half KvScale(float largest, int bits);
// The code of the level nearest to `level`, which may lie beyond the outermost ones.
uint8_t KvCode(int bits, float level);

}  // namespace condense

#endif  // CONDENSE_KERNELS_KV_CODES_H_
