#include "engine/tensor_decoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

namespace condense {
namespace {

using testing::HasSubstr;

// ---- The formats' published formulas, element by element in double; slow and independent of the
// decoder.

double HalfAt(const uint8_t* at) {
  const int bits = at[0] | at[1] << 8;
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  const double magnitude =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return bits >> 15 ? -magnitude : magnitude;
}

int Nibble(const uint8_t* bytes, int column) {  // of 32: low nibbles first
  return column < 16 ? bytes[column] & 15 : bytes[column - 16] >> 4;
}

int FifthBit(const uint8_t* bytes, int column) { return bytes[column / 8] >> (column % 8) & 1; }

struct ScaleMin {
  int scale, min;
};
ScaleMin KScale(const uint8_t* twelve, int part) {
  if (part < 4) return {twelve[part] & 63, twelve[part + 4] & 63};
  return {(twelve[part + 4] & 15) + 16 * (twelve[part - 4] >> 6),
          (twelve[part + 4] >> 4) + 16 * (twelve[part] >> 6)};
}

double ReferenceOf32(TensorType type, const uint8_t* b, int i) {
  switch (type) {
    case TensorType::kQ4_0:
      return HalfAt(b) * (Nibble(b + 2, i) - 8);
    case TensorType::kQ4_1:
      return HalfAt(b) * Nibble(b + 4, i) + HalfAt(b + 2);
    case TensorType::kQ5_0:
      return HalfAt(b) * (Nibble(b + 6, i) + 16 * FifthBit(b + 2, i) - 16);
    case TensorType::kQ5_1:
      return HalfAt(b) * (Nibble(b + 8, i) + 16 * FifthBit(b + 4, i)) + HalfAt(b + 2);
    case TensorType::kQ8_0:
      return HalfAt(b) * static_cast<int8_t>(b[2 + i]);
    default:
      ADD_FAILURE();
      return 0;
  }
}

double ReferenceOf256(TensorType type, const uint8_t* b, int i) {
  const int part = i / 32, in_part = i % 32;
  if (type == TensorType::kQ6_K) {
    const int half = i / 128, in_half = i % 128;
    const int low_byte = b[half * 64 + in_half % 64];
    const int low = in_half < 64 ? low_byte & 15 : low_byte >> 4;
    const int high = b[128 + half * 32 + in_half % 32] >> (in_half / 32 * 2) & 3;
    return HalfAt(b + 208) * static_cast<int8_t>(b[192 + i / 16]) * (low + 16 * high - 32);
  }
  const bool five = type == TensorType::kQ5_K;
  const ScaleMin s = KScale(b + 4, part);
  const int byte = b[(five ? 48 : 16) + part / 2 * 32 + in_part];
  const int low = part % 2 == 0 ? byte & 15 : byte >> 4;
  const int high = five ? b[16 + in_part] >> part & 1 : 0;
  return HalfAt(b) * s.scale * (low + 16 * high) - HalfAt(b + 2) * s.min;
}

double Reference(const GgufTensor& tensor, int64_t row, int64_t column) {
  const int64_t elements = TensorBlockElements(tensor.type);
  const int64_t index = row * tensor.dims[0] + column;
  const auto* block = reinterpret_cast<const uint8_t*>(tensor.data) +
                      index / elements * TensorBlockBytes(tensor.type);
  const int i = static_cast<int>(index % elements);
  if (elements == 32) return ReferenceOf32(tensor.type, block, i);
  if (elements == 256) return ReferenceOf256(tensor.type, block, i);
  if (tensor.type == TensorType::kF16) return HalfAt(block);
  float value;
  const uint32_t wide =
      tensor.type == TensorType::kBf16 ? static_cast<uint32_t>(block[0] | block[1] << 8) << 16 : 0;
  std::memcpy(&value, tensor.type == TensorType::kF32 ? static_cast<const void*>(block) : &wide, 4);
  return value;
}

// ---- Random tensors

// Bytes of a block that hold f16 scales and mins; those must be finite and of a sane size.
std::vector<int> HalfPositions(TensorType type) {
  switch (type) {
    case TensorType::kF16:
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
      return {0};
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return {0, 2};
    case TensorType::kQ6_K:
      return {208};
    default:
      return {};
  }
}

struct RandomTensor {
  RandomTensor(TensorType type, int64_t cols, int64_t rows) {
    std::mt19937 random(7);
    tensor.name = "blk.0.random.weight";
    tensor.type = type;
    tensor.dims = {cols, rows};
    const int64_t blocks = cols * rows / TensorBlockElements(type);
    tensor.size_bytes = blocks * TensorBlockBytes(type);
    bytes.resize(tensor.size_bytes);
    for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
    for (int64_t block = 0; block < blocks; ++block) {
      uint8_t* at = bytes.data() + block * TensorBlockBytes(type);
      for (const int position : HalfPositions(type)) SetHalf(at + position, random);
      if (type == TensorType::kF32 || type == TensorType::kBf16) SetFloat(type, at, random);
    }
    tensor.data = reinterpret_cast<const std::byte*>(bytes.data());
  }
  static void SetHalf(uint8_t* at, std::mt19937& random) {
    const Half half = ToHalf(std::uniform_real_distribution<float>(-0.1f, 0.1f)(random));
    std::memcpy(at, &half.bits, 2);
  }
  static void SetFloat(TensorType type, uint8_t* at, std::mt19937& random) {
    const float value = std::uniform_real_distribution<float>(-2.0f, 2.0f)(random);
    const BFloat16 narrow = ToBFloat16(value);
    if (type == TensorType::kF32) std::memcpy(at, &value, 4);
    if (type == TensorType::kBf16) std::memcpy(at, &narrow.bits, 2);
  }

  std::vector<uint8_t> bytes;
  GgufTensor tensor;
};

std::vector<float> Decode(const GgufTensor& tensor) {
  const int64_t cols = tensor.dims[0], rows = tensor.dims[1];
  const WeightFormat format = DecodedFormat(tensor.type);
  std::vector<std::byte> stream(WeightBytes(format, rows, cols));
  const absl::Status status = DecodeMatrixRows(tensor, 0, rows, stream.data());
  EXPECT_TRUE(status.ok()) << status;
  const WeightView view{stream.data(), format, static_cast<int32_t>(rows),
                        static_cast<int32_t>(cols)};
  std::vector<float> values(rows * cols);
  for (int64_t row = 0; row < rows; ++row) UnpackRow(view, row, values.data() + row * cols);
  return values;
}

// Largest error allowed, as a share of the largest magnitude in the 32 columns that share a scale.
double Tolerance(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBf16:
    case TensorType::kQ4_0:
    case TensorType::kQ4_1:
    case TensorType::kQ5_0:
    case TensorType::kQ8_0:
      return 1e-6;  // exact but for one float rounding of code * scale + min
    case TensorType::kQ4_K:
      return 4e-3;  // scale and min rounded to f16, and nearly cancelling at times
    case TensorType::kQ5_1:
    case TensorType::kQ5_K:
    case TensorType::kQ6_K:
      return 0.5 / 127 + 1e-3;  // half a step of the new codes, and the rounding of their scale
  }
  return 0;
}

// What the errors of a block are measured against.
double BlockMagnitude(const GgufTensor& tensor, int64_t row, int64_t block) {
  double largest = 0;
  for (int64_t i = 0; i < 32 && block * 32 + i < tensor.dims[0]; ++i) {
    largest = std::max(largest, std::fabs(Reference(tensor, row, block * 32 + i)));
  }
  return largest;
}

class TensorDecoderTypeTest : public testing::TestWithParam<TensorType> {};

TEST_P(TensorDecoderTypeTest, DecodesWhatTheFormulaSays) {
  // 37 rows: two whole row groups and a part of a third.
  const RandomTensor random(GetParam(), 512, 37);
  const std::vector<float> decoded = Decode(random.tensor);
  for (int64_t row = 0; row < 37; ++row) {
    for (int64_t column = 0; column < 512; ++column) {
      const double expected = Reference(random.tensor, row, column);
      const double allowed =
          Tolerance(GetParam()) * BlockMagnitude(random.tensor, row, column / 32);
      ASSERT_NEAR(decoded[row * 512 + column], expected, allowed) << row << ", " << column;
    }
  }
}

TEST_P(TensorDecoderTypeTest, PartsOfAMatrixEqualTheWhole) {
  const RandomTensor random(GetParam(), 256, 40);
  const WeightFormat format = DecodedFormat(GetParam());
  std::vector<std::byte> whole(WeightBytes(format, 40, 256)), parts(whole.size());
  ASSERT_TRUE(DecodeMatrixRows(random.tensor, 0, 40, whole.data()).ok());
  ASSERT_TRUE(DecodeMatrixRows(random.tensor, 0, 16, parts.data()).ok());
  ASSERT_TRUE(
      DecodeMatrixRows(random.tensor, 16, 24, parts.data() + WeightBytes(format, 16, 256)).ok());
  EXPECT_EQ(whole, parts);
}

TEST_P(TensorDecoderTypeTest, ScaleThatIsNotFiniteIsRefusedByName) {
  for (const uint16_t bad : {0x7c00, 0xfc00, 0x7e00}) {
    RandomTensor random(GetParam(), 256, 20);
    const int64_t row_bytes = static_cast<int64_t>(random.bytes.size()) / 20;
    std::vector<int> positions = HalfPositions(GetParam());
    if (positions.empty()) positions = {GetParam() == TensorType::kF32 ? 2 : 0};  // its high half
    for (const int position : positions) {
      // All exponent bits set, in f32, bf16 and f16 alike.
      const uint16_t bits = GetParam() == TensorType::kF32 || GetParam() == TensorType::kBf16
                                ? static_cast<uint16_t>(bad | 0x7f80)
                                : bad;
      std::vector<std::byte> stream(WeightBytes(DecodedFormat(GetParam()), 20, 256));
      RandomTensor damaged = random;
      damaged.tensor.data = reinterpret_cast<const std::byte*>(damaged.bytes.data());
      std::memcpy(damaged.bytes.data() + 18 * row_bytes + position, &bits, 2);
      const absl::Status status = DecodeMatrixRows(damaged.tensor, 0, 20, stream.data());
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
      EXPECT_THAT(std::string(status.message()), HasSubstr("blk.0.random.weight"));
      EXPECT_THAT(std::string(status.message()), HasSubstr("row 18"));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EveryType, TensorDecoderTypeTest,
                         testing::Values(TensorType::kF32, TensorType::kF16, TensorType::kBf16,
                                         TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0,
                                         TensorType::kQ5_1, TensorType::kQ8_0, TensorType::kQ4_K,
                                         TensorType::kQ5_K, TensorType::kQ6_K),
                         [](const auto& info) { return std::string(TensorTypeName(info.param)); });

TEST(TensorDecoderTest, BlockOfZerosStaysZero) {
  RandomTensor random(TensorType::kQ6_K, 256, 1);
  std::memset(random.bytes.data(), 0, random.bytes.size());
  for (const float value : Decode(random.tensor)) EXPECT_EQ(value, 0.0f);
}

TEST(TensorDecoderTest, MinThatLeavesHalfPrecisionIsRefused) {
  RandomTensor random(TensorType::kQ4_0, 32, 1);
  const Half scale = ToHalf(20000.0f);  // finite, but -8 times it is not
  std::memcpy(random.bytes.data(), &scale.bits, 2);
  std::vector<std::byte> stream(WeightBytes(WeightFormat::kPacked4, 1, 32));
  EXPECT_EQ(DecodeMatrixRows(random.tensor, 0, 1, stream.data()).code(),
            absl::StatusCode::kDataLoss);
}

TEST(TensorDecoderTest, FloatColumnsNeedNoMultipleOf32) {
  const RandomTensor random(TensorType::kBf16, 19, 3);
  const std::vector<float> decoded = Decode(random.tensor);
  for (int64_t i = 0; i < 19 * 3; ++i) {
    EXPECT_EQ(decoded[i], Reference(random.tensor, i / 19, i % 19));
  }
}

TEST(TensorDecoderTest, VectorsOfEveryFloatType) {
  for (const TensorType type : {TensorType::kF32, TensorType::kF16, TensorType::kBf16}) {
    RandomTensor random(type, 33, 1);
    random.tensor.dims = {33};
    std::vector<float> values(33);
    ASSERT_TRUE(DecodeVector(random.tensor, values.data()).ok());
    for (int64_t i = 0; i < 33; ++i) EXPECT_EQ(values[i], Reference(random.tensor, 0, i));
  }
}

TEST(TensorDecoderTest, VectorWithNotANumberIsRefused) {
  RandomTensor random(TensorType::kF32, 8, 1);
  random.tensor.dims = {8};
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(random.bytes.data() + 28, &nan, 4);
  float values[8];
  EXPECT_EQ(DecodeVector(random.tensor, values).code(), absl::StatusCode::kDataLoss);
}

}  // namespace
}  // namespace condense
