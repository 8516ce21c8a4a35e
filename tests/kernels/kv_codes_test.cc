#include "kernels/kv_codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <utility>
#include <vector>

#include "kernels/hadamard.h"
#include "tests/kernels/backend_fixture.h"

namespace condense {
namespace {

constexpr int kWidths[] = {8, 6, 4, 3};

// x as it comes back from codes of `bits` bits.
std::vector<float> RoundTrip(const std::vector<float>& x, int bits) {
  float largest = 0.0f;
  for (const float element : x) {
    largest = std::isfinite(element) ? std::max(largest, std::abs(element)) : std::nanf("");
    if (std::isnan(largest)) break;
  }
  const float scale = ToFloat(KvScale(largest, bits));
  std::vector<float> back;
  for (const float element : x) {
    const float level = scale > 0.0f ? element / scale : 0.0f;
    back.push_back(KvLevel(bits, KvCode(bits, level)) * scale);
  }
  return back;
}

TEST(KvCodesTest, EveryCodeHasBitsOfItsOwnInEveryPlane) {
  for (const int cols : {8, 24, 32, 40, 64, 80, 128}) {
    for (const int bits : {1, 2, 4, 8}) {
      std::set<std::pair<int64_t, int>> spots;
      for (int col = 0; col < cols; ++col) {
        const KvCodeSpot spot = KvFindCode(cols, bits, col);
        EXPECT_LT(spot.byte, KvPlaneRowBytes(cols, bits));
        EXPECT_LE(spot.shift + bits, 8);
        spots.insert({spot.byte, spot.shift});
      }
      EXPECT_EQ(static_cast<int>(spots.size()), cols);
    }
  }
}

TEST(KvCodesTest, ByteOfTheLowerHalfHoldsNeighbouringEntriesOfBothHalves) {
  EXPECT_EQ(KvFindCode(64, 4, 5).byte, 5);
  EXPECT_EQ(KvFindCode(64, 4, 21).byte, 5);
  EXPECT_EQ(KvFindCode(64, 4, 21).shift, 4);
  EXPECT_EQ(KvFindCode(64, 4, 32).byte, 16);
  EXPECT_EQ(KvFindCode(64, 2, 13).byte, 5);
  EXPECT_EQ(KvFindCode(64, 2, 13).shift, 2);
  EXPECT_EQ(KvFindCode(64, 1, 31).byte, 3);
  EXPECT_EQ(KvFindCode(64, 1, 31).shift, 7);
}

TEST(KvCodesTest, CodesComeBackAsWritten) {
  for (const int bits : kWidths) {
    for (const int cols : {24, 32, 64, 80}) {
      std::vector<std::byte> lower(3 * cols), upper(3 * cols);
      const KvCodePlanes planes = {lower.data(), upper.data()};
      const auto code = [&](int row, int col) {
        return static_cast<uint8_t>((row * 37 + col * 11) % (1 << bits));
      };
      for (int row = 2; row >= 0; --row) {
        for (int col = 0; col < cols; ++col)
          KvWriteCode(planes, bits, cols, row, col, code(row, col));
      }
      for (int row = 0; row < 3; ++row) {
        for (int col = 0; col < cols; ++col) {
          EXPECT_EQ(KvReadCode(planes, bits, cols, row, col), code(row, col));
        }
      }
    }
  }
}

TEST(KvCodesTest, ErrorOfNormalVectorsIsNearTheBestOfAUniformQuantizer) {
  // Largest acceptable normalised errors; a uniform quantizer with the best fixed step reaches
  // 0.107 at 4 bits and 0.193 at 3 bits.
  const std::pair<int, double> limits[] = {{8, 0.007}, {6, 0.025}, {4, 0.115}, {3, 0.205}};
  for (const auto& [bits, limit] : limits) {
    std::vector<float> all, back;
    for (int i = 0; i < 200; ++i) {
      const std::vector<float> x = RandomFloats(64, i);
      const std::vector<float> y = RoundTrip(x, bits);
      all.insert(all.end(), x.begin(), x.end());
      back.insert(back.end(), y.begin(), y.end());
    }
    const double error = NormalizedError(back, all);
    EXPECT_LT(error, limit) << bits;
    EXPECT_GT(error, limit / 2) << bits;
  }
}

TEST(KvCodesTest, NoElementIsOffByMoreThanAStepOrTheCut) {
  for (const int bits : kWidths) {
    const std::vector<float> x = RandomFloats(128, 3);
    const std::vector<float> back = RoundTrip(x, bits);
    float largest = 0.0f;
    for (const float v : x) largest = std::max(largest, std::abs(v));
    const float limit = largest * (bits == 3   ? 0.16f
                                   : bits == 4 ? 0.07f
                                   : bits == 6 ? 0.017f
                                               : 0.0045f);
    for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(back[i], x[i], limit) << bits;
  }
}

TEST(KvCodesTest, ZeroTinyAndHugeVectorsStayFinite) {
  for (const int bits : kWidths) {
    EXPECT_EQ(RoundTrip(std::vector<float>(64, 0.0f), bits), std::vector<float>(64, 0.0f));
    for (const float magnitude : {1e-30f, 1e-6f, 65504.0f, 1e9f}) {
      std::vector<float> x = RandomFloats(64, 4);
      x[7] = magnitude;
      for (const float v : RoundTrip(x, bits)) EXPECT_TRUE(std::isfinite(v));
      std::vector<float> scaled(64);
      for (int i = 0; i < 64; ++i) scaled[i] = x[i] * magnitude;
      for (const float v : RoundTrip(scaled, bits)) EXPECT_TRUE(std::isfinite(v));
    }
  }
}

TEST(KvCodesTest, AVectorThatIsNotFiniteBecomesNaN) {
  for (const int bits : kWidths) {
    for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> x(64, 1.0f);
      x[63] = bad;
      for (const float v : RoundTrip(x, bits)) EXPECT_TRUE(std::isnan(v) || v != v);
    }
  }
}

TEST(HadamardTest, IsItsOwnInverseAndKeepsScalarProducts) {
  for (const int n : {8, 24, 32, 64, 80, 96, 128, 256}) {
    const std::vector<float> a = RandomFloats(n, 1);
    const std::vector<float> b = RandomFloats(n, 2);
    std::vector<float> ha = a, hb = b;
    Hadamard(ha.data(), n);
    Hadamard(hb.data(), n);
    double before = 0.0, after = 0.0;
    for (int i = 0; i < n; ++i) {
      before += double{a[i]} * b[i];
      after += double{ha[i]} * hb[i];
    }
    EXPECT_NEAR(after, before, 1e-4);
    EXPECT_GT(NormalizedError(ha, a), 0.5);
    Hadamard(ha.data(), n);
    EXPECT_LT(NormalizedError(ha, a), 1e-6);
  }
}

TEST(HadamardTest, SpreadsAnOutlierEvenlyOverItsRun) {
  std::vector<float> x(80, 0.0f);
  x[17] = 4.0f;
  Hadamard(x.data(), 80);
  for (int i = 0; i < 80; ++i) EXPECT_EQ(std::abs(x[i]), i / 16 == 1 ? 1.0f : 0.0f) << i;
}

}  // namespace
}  // namespace condense
