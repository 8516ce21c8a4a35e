#include "kernels/cpu/quantize_activations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <vector>

namespace condense::cpu {
namespace {

struct Quantized {
  std::unique_ptr<std::byte, decltype(&std::free)> memory{nullptr, &std::free};
  QuantizedActivations activations;
  QuantizedTile view;  // the first tile
};

Quantized QuantizeAll(const std::vector<float>& x, int rows, int cols, CpuIsa isa) {
  Quantized result;
  const size_t size = QuantizedActivationsBytes(rows, cols);
  result.memory.reset(static_cast<std::byte*>(std::aligned_alloc(64, size)));
  std::memset(result.memory.get(), 0x5a, size);
  result.activations = PlaceQuantizedActivations(result.memory.get(), rows, cols);
  for (int row = 0; row < rows; ++row) QuantizeRow(&x[row * cols], row, isa, result.activations);
  result.view = result.activations.Tile(0);
  return result;
}

int Code(const QuantizedTile& tile, int64_t index, int i) {
  const int8_t* parts = tile.codes + index * kCodeBlockBytes;
  return 16 * parts[i] + parts[32 + i];
}

class QuantizeActivationsTest : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(QuantizeActivationsTest, CodesAreNearestMultiplesOfAScalePerBlock) {
  constexpr int kRows = 3, kCols = 96;
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kCols);
  for (float& value : x) value = normal(random);
  const Quantized quantized = QuantizeAll(x, kRows, kCols, GetParam());
  for (int row = 0; row < kRows; ++row) {
    for (int block = 0; block < kCols / 32; ++block) {
      const float* values = &x[row * kCols + block * 32];
      float largest = 0.0f;
      for (int i = 0; i < 32; ++i) largest = std::max(largest, std::fabs(values[i]));
      const int64_t index = block * kRows + row;
      EXPECT_EQ(quantized.view.scale[index], largest / 2032.0f);
      int sum = 0;
      for (int i = 0; i < 32; ++i) {
        const int code = Code(quantized.view, index, i);
        EXPECT_EQ(code, static_cast<int>(std::nearbyint(values[i] * (2032.0f / largest))));
        EXPECT_LE(std::abs(code), 2032);
        sum += code;
      }
      EXPECT_EQ(quantized.view.scaled_sum[index], largest / 2032.0f * static_cast<float>(sum));
      EXPECT_EQ(quantized.view.unbias[index], -128 * sum);
    }
  }
}

TEST_P(QuantizeActivationsTest, HalvesRoundToEven) {
  std::vector<float> x(32, 0.0f);
  x[0] = 2032.0f;
  x[1] = 0.5f;
  x[2] = 1.5f;
  x[3] = -2.5f;
  const Quantized quantized = QuantizeAll(x, 1, 32, GetParam());
  EXPECT_EQ(Code(quantized.view, 0, 0), 2032);
  EXPECT_EQ(Code(quantized.view, 0, 1), 0);
  EXPECT_EQ(Code(quantized.view, 0, 2), 2);
  EXPECT_EQ(Code(quantized.view, 0, 3), -2);
}

TEST_P(QuantizeActivationsTest, EveryCodeIsSixteenTimesItsHighPartPlusALowPartOfFourBits) {
  for (int first = -2032; first <= 2032; first += 31) {
    std::vector<float> x(32, 2032.0f);
    for (int i = 1; i < 32; ++i) x[i] = static_cast<float>(std::min(first + i - 1, 2032));
    const Quantized quantized = QuantizeAll(x, 1, 32, GetParam());
    for (int i = 0; i < 32; ++i) {
      EXPECT_EQ(Code(quantized.view, 0, i), static_cast<int>(x[i]));
      EXPECT_LE(std::abs(int{quantized.view.codes[i]}), 127);
      EXPECT_GE(quantized.view.codes[32 + i], -8);
      EXPECT_LE(quantized.view.codes[32 + i], 7);
    }
  }
}

TEST_P(QuantizeActivationsTest, BytesAreTheSameWithEveryInstructionSet) {
  constexpr int kRows = 35, kCols = 160;
  std::mt19937 random(2);
  std::normal_distribution<float> normal;
  std::vector<float> x(kRows * kCols);
  for (float& value : x) value = std::exp(8.0f * normal(random)) * normal(random);
  x[5] = std::numeric_limits<float>::infinity();
  const Quantized one = QuantizeAll(x, kRows, kCols, GetParam());
  const Quantized other = QuantizeAll(x, kRows, kCols, CpuIsa::kScalar);
  EXPECT_EQ(
      std::memcmp(one.memory.get(), other.memory.get(), QuantizedActivationsBytes(kRows, kCols)),
      0);
}

TEST_P(QuantizeActivationsTest, BlocksOfNothingAreZero) {
  for (const float value : {0.0f, -0.0f, 1e-31f, std::numeric_limits<float>::denorm_min()}) {
    const Quantized quantized = QuantizeAll(std::vector<float>(32, value), 1, 32, GetParam());
    EXPECT_EQ(quantized.view.scale[0], 0.0f);
    EXPECT_EQ(quantized.view.scaled_sum[0], 0.0f);
    for (int i = 0; i < 32; ++i) EXPECT_EQ(Code(quantized.view, 0, i), 0);
  }
}

TEST_P(QuantizeActivationsTest, NonFiniteValuesMakeTheScaleNonFinite) {
  for (const float value :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(),
        -std::numeric_limits<float>::infinity()}) {
    for (int at : {0, 13, 31}) {
      std::vector<float> x(64, 1.0f);
      x[at] = value;
      const Quantized quantized = QuantizeAll(x, 1, 64, GetParam());
      EXPECT_FALSE(std::isfinite(quantized.view.scale[0]));
      EXPECT_EQ(Code(quantized.view, 0, (at + 1) % 32), 0);
      EXPECT_TRUE(std::isfinite(quantized.view.scale[1]));
    }
  }
}

TEST_P(QuantizeActivationsTest, LargestFloatsStayFinite) {
  const Quantized quantized =
      QuantizeAll(std::vector<float>(32, std::numeric_limits<float>::max()), 1, 32, GetParam());
  EXPECT_TRUE(std::isfinite(quantized.view.scale[0]));
  EXPECT_EQ(Code(quantized.view, 0, 5), 2032);
}

INSTANTIATE_TEST_SUITE_P(Isas, QuantizeActivationsTest, ::testing::ValuesIn(AvailableCpuIsas()),
                         [](const auto& info) { return CpuIsaName(info.param); });

}  // namespace
}  // namespace condense::cpu
