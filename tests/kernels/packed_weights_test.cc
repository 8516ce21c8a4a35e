#include "kernels/packed_weights.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace condense {
namespace {

constexpr WeightFormat kFloatFormats[] = {WeightFormat::kF32, WeightFormat::kF16,
                                          WeightFormat::kBf16};

std::vector<std::byte> Stream(WeightFormat format, int64_t rows, int64_t cols) {
  return std::vector<std::byte>(WeightBytes(format, rows, cols));
}

WeightView View(const std::vector<std::byte>& stream, WeightFormat format, int rows, int cols) {
  return {stream.data(), format, rows, cols};
}

int ByteAt(const std::vector<std::byte>& stream, int64_t at) {
  return static_cast<int>(stream[at]);
}

Half HalfAt(const std::vector<std::byte>& stream, int64_t at) {
  Half half;
  std::memcpy(&half, &stream[at], sizeof(half));
  return half;
}

TEST(PackedWeightsTest, SizesAreThoseOfTheDescribedTiles) {
  EXPECT_EQ(WeightTileBytes(WeightFormat::kPacked4), 320);
  EXPECT_EQ(WeightTileBytes(WeightFormat::kPacked8), 544);
  EXPECT_EQ(WeightTileBytes(WeightFormat::kF16), 32);
  EXPECT_EQ(WeightTileBytes(WeightFormat::kBf16), 32);
  EXPECT_EQ(WeightTileBytes(WeightFormat::kF32), 64);
  EXPECT_EQ(WeightTileCols(WeightFormat::kPacked4), 32);
  EXPECT_EQ(WeightTileCols(WeightFormat::kF16), 1);
  EXPECT_EQ(WeightBytes(WeightFormat::kPacked4, 17, 64), 2 * 2 * 320);
  EXPECT_EQ(WeightBytes(WeightFormat::kPacked8, 16, 32), 544);
  EXPECT_EQ(WeightBytes(WeightFormat::kF32, 1, 5), 5 * 64);
}

TEST(PackedWeightsTest, SizesOfLargeMatricesDoNotOverflow) {
  EXPECT_EQ(WeightBytes(WeightFormat::kF32, 262144, 8192), int64_t{262144} * 8192 * 4);
}

TEST(PackedWeightsTest, Packed4CodesLieInNibblesOfQuads) {
  constexpr int kRow = 21, kBlock = 1, kCols = 64;  // group 1, lane 5
  std::vector<std::byte> stream = Stream(WeightFormat::kPacked4, 32, kCols);
  WeightBlock4 source;
  for (int i = 0; i < 32; ++i) source.codes[i] = (i * 7 + 3) % 16;
  source.scale = ToHalf(0.5f);
  source.min = ToHalf(-4.0f);
  PackBlock4(stream.data(), kCols, kRow, kBlock, source);
  const int64_t tile = (1 * 2 + 1) * 320;
  for (int column = 0; column < 32; ++column) {
    const int quad = column / 4;
    const int byte = ByteAt(stream, tile + quad % 4 * 64 + 5 * 4 + column % 4);
    EXPECT_EQ(quad < 4 ? byte & 0xf : byte >> 4, source.codes[column]) << column;
  }
  EXPECT_EQ(HalfAt(stream, tile + 256 + 5 * 2).bits, source.scale.bits);
  EXPECT_EQ(HalfAt(stream, tile + 288 + 5 * 2).bits, source.min.bits);
  int64_t written = 0;
  for (const std::byte byte : stream) written += byte != std::byte{0};
  EXPECT_LE(written, 16 + 4);
}

TEST(PackedWeightsTest, Packed8CodesLieInQuads) {
  constexpr int kRow = 18, kBlock = 2, kCols = 96;  // group 1, lane 2
  std::vector<std::byte> stream = Stream(WeightFormat::kPacked8, 32, kCols);
  WeightBlock8 source;
  for (int i = 0; i < 32; ++i) source.codes[i] = static_cast<int8_t>(i * 8 - 128);
  source.scale = ToHalf(0.25f);
  PackBlock8(stream.data(), kCols, kRow, kBlock, source);
  const int64_t tile = (1 * 3 + 2) * 544;
  for (int column = 0; column < 32; ++column) {
    const int byte = ByteAt(stream, tile + column / 4 * 64 + 2 * 4 + column % 4);
    EXPECT_EQ(static_cast<int8_t>(byte), source.codes[column]) << column;
  }
  EXPECT_EQ(HalfAt(stream, tile + 512 + 2 * 2).bits, source.scale.bits);
}

TEST(PackedWeightsTest, Packed4RowsReadBackAsScaleTimesCodePlusMin) {
  constexpr int kRows = 19, kCols = 96;
  std::mt19937 random(1);
  std::vector<std::byte> stream = Stream(WeightFormat::kPacked4, kRows, kCols);
  std::vector<float> expected(kRows * kCols);
  for (int row = 0; row < kRows; ++row) {
    for (int block = 0; block < kCols / 32; ++block) {
      WeightBlock4 source;
      source.scale = ToHalf(0.01f * (row + 1));
      source.min = ToHalf(-0.1f * (block + 1));
      for (int i = 0; i < 32; ++i) {
        source.codes[i] = random() % 16;
        expected[row * kCols + block * 32 + i] =
            ToFloat(source.scale) * source.codes[i] + ToFloat(source.min);
      }
      PackBlock4(stream.data(), kCols, row, block, source);
    }
  }
  std::vector<float> values(kCols);
  for (int row = 0; row < kRows; ++row) {
    UnpackRow(View(stream, WeightFormat::kPacked4, kRows, kCols), row, values.data());
    for (int col = 0; col < kCols; ++col) ASSERT_EQ(values[col], expected[row * kCols + col]);
  }
}

TEST(PackedWeightsTest, Packed8RowsReadBackAsScaleTimesCode) {
  constexpr int kRows = 33, kCols = 64;
  std::mt19937 random(2);
  std::vector<std::byte> stream = Stream(WeightFormat::kPacked8, kRows, kCols);
  std::vector<float> expected(kRows * kCols);
  for (int row = 0; row < kRows; ++row) {
    for (int block = 0; block < kCols / 32; ++block) {
      WeightBlock8 source;
      source.scale = ToHalf(0.003f * (row + block + 1));
      for (int i = 0; i < 32; ++i) {
        source.codes[i] = static_cast<int8_t>(random());
        expected[row * kCols + block * 32 + i] = ToFloat(source.scale) * source.codes[i];
      }
      PackBlock8(stream.data(), kCols, row, block, source);
    }
  }
  std::vector<float> values(kCols);
  for (int row = 0; row < kRows; ++row) {
    UnpackRow(View(stream, WeightFormat::kPacked8, kRows, kCols), row, values.data());
    for (int col = 0; col < kCols; ++col) ASSERT_EQ(values[col], expected[row * kCols + col]);
  }
}

TEST(PackedWeightsTest, FloatRowsReadBackRoundedToTheirFormat) {
  constexpr int kRows = 18, kCols = 13;
  for (const WeightFormat format : kFloatFormats) {
    std::vector<std::byte> stream = Stream(format, kRows, kCols);
    std::vector<float> row(kCols);
    for (int r = 0; r < kRows; ++r) {
      for (int col = 0; col < kCols; ++col) row[col] = 0.1f * (r + 1) - 0.37f * col;
      PackRow(stream.data(), format, kCols, r, row.data());
    }
    std::vector<float> values(kCols);
    for (int r = 0; r < kRows; ++r) {
      UnpackRow(View(stream, format, kRows, kCols), r, values.data());
      for (int col = 0; col < kCols; ++col) {
        const float exact = 0.1f * (r + 1) - 0.37f * col;
        const float expected = format == WeightFormat::kF32   ? exact
                               : format == WeightFormat::kF16 ? ToFloat(ToHalf(exact))
                                                              : ToFloat(ToBFloat16(exact));
        ASSERT_EQ(values[col], expected) << WeightFormatName(format);
      }
    }
  }
}

TEST(PackedWeightsTest, RowsOfAFloatGroupAreNeighboursInAColumn) {
  std::vector<std::byte> stream = Stream(WeightFormat::kF32, 16, 3);
  const float row[3] = {1.0f, 2.0f, 3.0f};
  PackRow(stream.data(), WeightFormat::kF32, 3, 7, row);
  float value;
  std::memcpy(&value, &stream[2 * 64 + 7 * 4], sizeof(value));
  EXPECT_EQ(value, 3.0f);
}

}  // namespace
}  // namespace condense
