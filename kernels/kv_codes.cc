#include "kernels/kv_codes.h"

#include <cmath>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr Half kNaN = {0x7e00};
constexpr float kLargestHalf = 65504.0f;

struct Plane {
  std::byte* data;
  int bits;
  int code_shift;  // of its bits within a code
};

float RangeFactor(int bits) { return bits == 4 ? 0.95f : (bits == 3 ? 0.85f : 1.0f); }

int TopLevel(int bits) { return (1 << (bits == 8 ? 7 : bits)) - 1; }

// For |x| < 2^22: the sum leaves no fraction bits.
float RoundToEven(float x) { return (x + 12582912.0f) - 12582912.0f; }

uint8_t ReadBits(const Plane& plane, int64_t cols, int64_t row, int64_t col) {
  const KvCodeSpot spot = KvFindCode(cols, plane.bits, col);
  const int byte =
      std::to_integer<int>(plane.data[row * KvPlaneRowBytes(cols, plane.bits) + spot.byte]);
  return static_cast<uint8_t>(((byte >> spot.shift) & ((1 << plane.bits) - 1)) << plane.code_shift);
}

void WriteBits(const Plane& plane, int64_t cols, int64_t row, int64_t col, uint8_t code) {
  const KvCodeSpot spot = KvFindCode(cols, plane.bits, col);
  std::byte& byte = plane.data[row * KvPlaneRowBytes(cols, plane.bits) + spot.byte];
  const int mask = (1 << plane.bits) - 1;
  const int bits = (code >> plane.code_shift) & mask;
  byte = static_cast<std::byte>((std::to_integer<int>(byte) & ~(mask << spot.shift)) |
                                (bits << spot.shift));
}

}  // namespace

uint8_t KvReadCode(const KvCodePlanes& planes, int bits, int64_t cols, int64_t row, int64_t col) {
  const int lower = KvLowerBits(bits);
  uint8_t code = ReadBits({planes.lower, lower, 0}, cols, row, col);
  if (lower < bits) code |= ReadBits({planes.upper, bits - lower, lower}, cols, row, col);
  return code;
}

void KvWriteCode(const KvCodePlanes& planes, int bits, int64_t cols, int64_t row, int64_t col,
                 uint8_t code) {
  const int lower = KvLowerBits(bits);
  WriteBits({planes.lower, lower, 0}, cols, row, col, code);
  if (lower < bits) WriteBits({planes.upper, bits - lower, lower}, cols, row, col, code);
}

Half KvScale(float largest, int bits) {
  if (std::isnan(largest)) return kNaN;
  return ToHalf(
      std::min(kLargestHalf, largest * RangeFactor(bits) / static_cast<float>(TopLevel(bits))));
}

uint8_t KvCode(int bits, float level) {
  const float limit = static_cast<float>(TopLevel(bits));
  const float inside = std::clamp(level, -limit, limit);
  return bits == 8 ? static_cast<uint8_t>(static_cast<int8_t>(RoundToEven(inside)))
                   : static_cast<uint8_t>((inside + limit + 1.0f) * 0.5f);
}

}  // namespace condense
