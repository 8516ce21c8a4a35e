#include "engine/tensor_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int kBlock = kWeightBlock;

Half LoadHalf(const std::byte* from) {
  Half half;
  std::memcpy(&half.bits, from, sizeof(half.bits));
  return half;
}

uint8_t LoadByte(const std::byte* from) { return static_cast<uint8_t>(*from); }

bool IsFinite(Half half) { return (half.bits & 0x7c00u) != 0x7c00u; }

// Low nibbles are columns 0..15, high nibbles columns 16..31.
void SplitNibbles(const std::byte* packed, uint8_t* codes) {
  for (int i = 0; i < kBlock / 2; ++i) {
    codes[i] = LoadByte(packed + i) & 0xf;
    codes[i + kBlock / 2] = LoadByte(packed + i) >> 4;
  }
}

// Adds the fifth bits of Q5_0 and Q5_1: bit i of a little-endian word belongs to column i.
void AddFifthBits(const std::byte* bits, uint8_t* codes) {
  uint32_t word;
  std::memcpy(&word, bits, sizeof(word));
  for (int i = 0; i < kBlock; ++i) codes[i] |= static_cast<uint8_t>(((word >> i) & 1u) << 4);
}

// Scale and min (6 bits each) of sub-block `index` of a Q4_K or Q5_K block, from its 12 bytes. The
// last four sub-blocks keep their top two bits in the spare bits of the first eight bytes.
void SubBlockScale(const std::byte* packed, int index, int* scale, int* min) {
  const auto byte = [packed](int i) { return static_cast<int>(LoadByte(packed + i)); };
  if (index < 4) {
    *scale = byte(index) & 63;
    *min = byte(index + 4) & 63;
    return;
  }
  *scale = (byte(index + 4) & 15) | ((byte(index - 4) >> 6) << 4);
  *min = (byte(index + 4) >> 4) | ((byte(index) >> 6) << 4);
}

// The formats whose 4-bit codes are kept. `data` is the file block that holds columns [32 * block,
// ...) of a row and `part` the place of those columns in it. Return false when a scale is not
// finite.
bool ReadQ4_0(const std::byte* data, int /*part*/, WeightBlock4* out) {
  out->scale = LoadHalf(data);
  out->min = ToHalf(-8.0f * ToFloat(out->scale));
  SplitNibbles(data + 2, out->codes);
  return IsFinite(out->scale) && IsFinite(out->min);
}

bool ReadQ4_1(const std::byte* data, int /*part*/, WeightBlock4* out) {
  out->scale = LoadHalf(data);
  out->min = LoadHalf(data + 2);
  SplitNibbles(data + 4, out->codes);
  return IsFinite(out->scale) && IsFinite(out->min);
}

bool ReadQ4K(const std::byte* data, int part, WeightBlock4* out) {
  int scale, min;
  SubBlockScale(data + 4, part, &scale, &min);
  out->scale = ToHalf(ToFloat(LoadHalf(data)) * static_cast<float>(scale));
  out->min = ToHalf(-ToFloat(LoadHalf(data + 2)) * static_cast<float>(min));
  // 32 bytes hold two parts: the even one in the low nibbles.
  const std::byte* packed = data + 16 + (part / 2) * kBlock;
  const int shift = (part & 1) * 4;
  for (int i = 0; i < kBlock; ++i) out->codes[i] = (LoadByte(packed + i) >> shift) & 0xf;
  return IsFinite(out->scale) && IsFinite(out->min);
}

// The formats that become int8 codes.
bool ReadQ8_0(const std::byte* data, int /*part*/, WeightBlock8* out) {
  out->scale = LoadHalf(data);
  std::memcpy(out->codes, data + 2, kBlock);
  return IsFinite(out->scale);
}

bool ReadQ5_0(const std::byte* data, int /*part*/, WeightBlock8* out) {
  uint8_t codes[kBlock];
  SplitNibbles(data + 6, codes);
  AddFifthBits(data + 2, codes);
  out->scale = LoadHalf(data);
  for (int i = 0; i < kBlock; ++i) out->codes[i] = static_cast<int8_t>(codes[i] - 16);
  return IsFinite(out->scale);
}

bool Requantize(const float* values, WeightBlock8* out) {
  float largest = 0.0f;
  for (int i = 0; i < kBlock; ++i) largest = std::max(largest, std::fabs(values[i]));
  out->scale = ToHalf(largest / 127.0f);
  if (!IsFinite(out->scale)) return false;
  const float scale = ToFloat(out->scale);
  const float inverse = scale > 0.0f ? 1.0f / scale : 0.0f;
  for (int i = 0; i < kBlock; ++i) {
    out->codes[i] =
        static_cast<int8_t>(std::clamp(std::nearbyint(values[i] * inverse), -127.0f, 127.0f));
  }
  return true;
}

bool ReadQ5_1(const std::byte* data, int /*part*/, WeightBlock8* out) {
  const Half scale = LoadHalf(data), min = LoadHalf(data + 2);
  if (!IsFinite(scale) || !IsFinite(min)) return false;
  uint8_t codes[kBlock];
  SplitNibbles(data + 8, codes);
  AddFifthBits(data + 4, codes);
  float values[kBlock];
  for (int i = 0; i < kBlock; ++i) values[i] = ToFloat(scale) * codes[i] + ToFloat(min);
  return Requantize(values, out);
}

bool ReadQ5K(const std::byte* data, int part, WeightBlock8* out) {
  if (!IsFinite(LoadHalf(data)) || !IsFinite(LoadHalf(data + 2))) return false;
  int scale, min;
  SubBlockScale(data + 4, part, &scale, &min);
  const float step = ToFloat(LoadHalf(data)) * static_cast<float>(scale);
  const float low = -ToFloat(LoadHalf(data + 2)) * static_cast<float>(min);
  // Fifth bits: bit `part` of byte i belongs to column i of that part.
  const std::byte* fifth = data + 16;
  const std::byte* packed = data + 48 + (part / 2) * kBlock;
  const int shift = (part & 1) * 4;
  float values[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const int code =
        ((LoadByte(packed + i) >> shift) & 0xf) | (((LoadByte(fifth + i) >> part) & 1) << 4);
    values[i] = step * static_cast<float>(code) + low;
  }
  return Requantize(values, out);
}

bool ReadQ6K(const std::byte* data, int part, WeightBlock8* out) {
  const Half scale = LoadHalf(data + 208);
  if (!IsFinite(scale)) return false;
  // A half of 128 columns has 64 bytes of low nibbles and 32 bytes of pairs of high bits; its parts
  // 0 and 1 use the low nibbles of bytes 0..31 and 32..63, parts 2 and 3 the high ones.
  const int half = part / 4, quarter = part % 4;
  const std::byte* low = data + half * 64 + (quarter & 1) * kBlock;
  const std::byte* high = data + 128 + half * 32;
  const std::byte* scales = data + 192 + part * 2;  // int8, per 16 columns
  float values[kBlock];
  for (int i = 0; i < kBlock; ++i) {
    const int low_bits = (LoadByte(low + i) >> (quarter / 2 * 4)) & 0xf;
    const int high_bits = (LoadByte(high + i) >> (quarter * 2)) & 3;
    const int sub_scale = static_cast<int8_t>(LoadByte(scales + i / 16));
    values[i] =
        ToFloat(scale) * static_cast<float>(sub_scale * ((low_bits | (high_bits << 4)) - 32));
  }
  return Requantize(values, out);
}

absl::Status NotFinite(const GgufTensor& tensor, int64_t row) {
  return absl::DataLossError(absl::StrCat("tensor \"", tensor.name, "\" (",
                                          TensorTypeName(tensor.type), "): row ", row,
                                          " has a value that is not finite or too large"));
}

// Where the rows of a tensor lie in the file.
struct RowBytes {
  const std::byte* first;
  int64_t stride;
};
RowBytes RowsFrom(const GgufTensor& tensor, int64_t first_row) {
  const int64_t stride =
      tensor.dims[0] / TensorBlockElements(tensor.type) * TensorBlockBytes(tensor.type);
  return {tensor.data + first_row * stride, stride};
}

// Walks the stream in its own order: group of rows, tile of 32 columns, row.
template <typename Block>
absl::Status DecodeBlocks(const GgufTensor& tensor, int64_t first_row, int64_t num_rows,
                          bool (*read)(const std::byte*, int, Block*),
                          void (*pack)(std::byte*, int64_t, int64_t, int64_t, const Block&),
                          std::byte* stream) {
  const int64_t cols = tensor.dims[0];
  const int parts = static_cast<int>(TensorBlockElements(tensor.type) / kBlock);
  const int64_t block_bytes = TensorBlockBytes(tensor.type);
  const RowBytes rows = RowsFrom(tensor, first_row);
  Block block;
  for (int64_t group = 0; group < num_rows; group += kWeightRowGroup) {
    const int64_t end = std::min<int64_t>(group + kWeightRowGroup, num_rows);
    for (int64_t tile = 0; tile < cols / kBlock; ++tile) {
      for (int64_t row = group; row < end; ++row) {
        const std::byte* data = rows.first + row * rows.stride + tile / parts * block_bytes;
        if (!read(data, static_cast<int>(tile % parts), &block))
          return NotFinite(tensor, first_row + row);
        pack(stream, cols, row, tile, block);
      }
    }
  }
  return absl::OkStatus();
}

// Widens one row of F32, F16 or BF16; false when a value is not finite.
bool ReadFloats(TensorType type, const std::byte* data, int64_t size, float* values) {
  if (type == TensorType::kF32) {
    std::memcpy(values, data, size * sizeof(float));
  } else {
    for (int64_t i = 0; i < size; ++i) {
      const uint16_t bits = LoadHalf(data + i * 2).bits;
      values[i] = type == TensorType::kF16 ? ToFloat(Half{bits}) : ToFloat(BFloat16{bits});
    }
  }
  return std::all_of(values, values + size, [](float value) { return std::isfinite(value); });
}

absl::Status DecodeFloatRows(const GgufTensor& tensor, int64_t first_row, int64_t num_rows,
                             std::byte* stream) {
  const int64_t cols = tensor.dims[0];
  const RowBytes rows = RowsFrom(tensor, first_row);
  std::vector<float> values(cols);
  for (int64_t row = 0; row < num_rows; ++row) {
    if (!ReadFloats(tensor.type, rows.first + row * rows.stride, cols, values.data())) {
      return NotFinite(tensor, first_row + row);
    }
    PackRow(stream, DecodedFormat(tensor.type), cols, row, values.data());
  }
  return absl::OkStatus();
}

}  // namespace

WeightFormat DecodedFormat(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return WeightFormat::kF32;
    case TensorType::kF16:
      return WeightFormat::kF16;
    case TensorType::kBf16:
      return WeightFormat::kBf16;
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ4_K:
      return WeightFormat::kPacked4;
    case TensorType::kQ5_0:
    case TensorType::kQ5_1:
    case TensorType::kQ8_0:
    case TensorType::kQ5_K:
    case TensorType::kQ6_K:
      return WeightFormat::kPacked8;
  }
  CheckFailed(__FILE__, __LINE__, absl::StrCat("tensor type ", static_cast<uint32_t>(type)));
}

absl::Status DecodeMatrixRows(const GgufTensor& tensor, int64_t first_row, int64_t num_rows,
                              std::byte* stream) {
  const auto four = [&](auto* read) {
    return DecodeBlocks<WeightBlock4>(tensor, first_row, num_rows, read, PackBlock4, stream);
  };
  const auto eight = [&](auto* read) {
    return DecodeBlocks<WeightBlock8>(tensor, first_row, num_rows, read, PackBlock8, stream);
  };
  switch (tensor.type) {
    case TensorType::kQ4_0:
      return four(ReadQ4_0);
    case TensorType::kQ4_1:
      return four(ReadQ4_1);
    case TensorType::kQ4_K:
      return four(ReadQ4K);
    case TensorType::kQ5_0:
      return eight(ReadQ5_0);
    case TensorType::kQ5_1:
      return eight(ReadQ5_1);
    case TensorType::kQ8_0:
      return eight(ReadQ8_0);
    case TensorType::kQ5_K:
      return eight(ReadQ5K);
    case TensorType::kQ6_K:
      return eight(ReadQ6K);
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
      return DecodeFloatRows(tensor, first_row, num_rows, stream);
  }
  CheckFailed(__FILE__, __LINE__, absl::StrCat("tensor type ", static_cast<uint32_t>(tensor.type)));
}

absl::Status DecodeVector(const GgufTensor& tensor, float* values) {
  if (ReadFloats(tensor.type, tensor.data, tensor.dims[0], values)) return absl::OkStatus();
  return NotFinite(tensor, 0);
}

}  // namespace condense
