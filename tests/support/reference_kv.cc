#include "tests/support/reference_kv.h"

#include <cmath>
#include <cstring>

#include "kernels/base/check.h"
#include "kernels/hadamard.h"
#include "kernels/kv_codes.h"

namespace condense {
namespace {

template <typename T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

double LoadHalf(const std::byte* from) { return ToFloat(Load<Half>(from)); }

// `n` bits of a plane at code `col` of row `row`.
int ReadBits(const std::byte* plane, int bits, int64_t cols, int64_t row, int64_t col) {
  const int64_t group = col / 32;
  const int64_t codes = std::min<int64_t>(32, cols - 32 * group);
  const int64_t bytes = codes * bits / 8;
  const int64_t i = col % 32;
  const int byte = std::to_integer<int>(plane[(row * cols + 32 * group) * bits / 8 + i % bytes]);
  return byte >> (i / bytes * bits) & ((1 << bits) - 1);
}

double ReadLevel(const std::byte* lower, const std::byte* upper, int bits, int64_t cols,
                 int64_t row, int64_t col) {
  switch (bits) {
    case 8:
      return static_cast<int8_t>(ReadBits(lower, 8, cols, row, col));
    case 6:
      return 2 * (ReadBits(lower, 4, cols, row, col) + 16 * ReadBits(upper, 2, cols, row, col)) -
             63;
    case 4:
      return 2 * ReadBits(lower, 4, cols, row, col) - 15;
    case 3:
      return 2 * (ReadBits(lower, 2, cols, row, col) + 4 * ReadBits(upper, 1, cols, row, col)) - 7;
    default:
      CheckFailed(__FILE__, __LINE__, "width without codes");
  }
}

std::vector<double> ReadKey(const std::byte* data, const KvBlockPieces& pieces, int bits,
                            const KvBlockShape& shape, int entry) {
  std::vector<double> key(shape.head_dim);
  for (int d = 0; d < shape.head_dim; ++d) {
    key[d] = bits == 16
                 ? LoadHalf(data + pieces.keys + 2 * (int64_t{d} * shape.block_tokens + entry))
                 : ReadLevel(data + pieces.keys, data + pieces.key_upper, bits, shape.block_tokens,
                             d, entry) *
                       LoadHalf(data + pieces.key_scales + 2 * entry);
  }
  return key;
}

std::vector<double> ReadValue(const std::byte* data, const KvBlockPieces& pieces, int bits,
                              const KvBlockShape& shape, int entry) {
  std::vector<double> value(shape.head_dim);
  for (int d = 0; d < shape.head_dim; ++d) {
    value[d] = bits == 16
                   ? LoadHalf(data + pieces.values + 2 * (int64_t{entry} * shape.head_dim + d))
                   : ReadLevel(data + pieces.values, data + pieces.value_upper, bits,
                               shape.head_dim, entry, d) *
                         LoadHalf(data + pieces.value_scales + 2 * entry);
  }
  return value;
}

}  // namespace

void ReferenceRotate(const PositionTable& positions, int64_t position, bool backwards,
                     std::vector<double>* x) {
  CHECK_LT(position, positions.num_positions);
  const int pairs = static_cast<int>(x->size()) / 2;
  const bool adjacent = positions.pairing == RopePairing::kAdjacent;
  for (int i = 0; i < pairs; ++i) {
    double& first = (*x)[adjacent ? 2 * i : i];
    double& second = (*x)[adjacent ? 2 * i + 1 : i + pairs];
    const double cos = positions.cos[position * pairs + i];
    const double sin = positions.sin[position * pairs + i] * (backwards ? -1.0 : 1.0);
    const double rotated = first * cos - second * sin;
    second = second * cos + first * sin;
    first = rotated;
  }
}

std::vector<double> ReferenceHadamard(const std::vector<double>& x) {
  const int n = static_cast<int>(x.size());
  const int width = HadamardWidth(n);
  // H of 2m elements is [H H; H -H] of m.
  std::vector<double> out = x;
  for (int m = 1; m < width; m *= 2) {
    const std::vector<double> in = out;
    for (int i = 0; i < n; ++i) out[i] = i / m % 2 == 0 ? in[i] + in[i + m] : in[i - m] - in[i];
  }
  for (double& element : out) element /= std::sqrt(static_cast<double>(width));
  return out;
}

ReferenceEntry ReadReferenceEntry(const std::byte* arena, const KvBlockRef& block,
                                  const KvBlockShape& shape, const float* mean,
                                  const PositionTable& positions, int entry) {
  const std::byte* data = arena + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape);
  ReferenceEntry read;
  read.key = ReadKey(data, pieces, KvKeyBits(block.format), shape, entry);
  read.value = ReadValue(data, pieces, KvValueBits(block.format), shape, entry);
  if (KvKeysRotated(block.format)) read.key = ReferenceHadamard(read.key);
  if (KvValuesRotated(block.format)) read.value = ReferenceHadamard(read.value);
  if ((block.flags & kKvBias) != 0) read.bias = LoadHalf(data + pieces.bias + 2 * entry);
  if ((block.flags & kKvCount) != 0) read.count = Load<uint8_t>(data + pieces.counts + entry);
  if ((block.flags & (kKvPosition | kKvRun)) != 0) {
    read.position = Load<uint32_t>(data + pieces.base);
    read.position +=
        (block.flags & kKvRun) != 0 ? entry : Load<uint16_t>(data + pieces.distances + 2 * entry);
  }
  if ((block.flags & kKvCentred) != 0) {
    std::vector<double> centre(mean, mean + shape.head_dim);
    ReferenceRotate(positions, read.position, false, &centre);
    for (int d = 0; d < shape.head_dim; ++d) read.key[d] += centre[d];
  }
  return read;
}

}  // namespace condense
