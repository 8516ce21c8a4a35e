#include "cache/merge_curves.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace condense {
namespace {

MergeCurves::Shares Rising(float first, float step) {
  MergeCurves::Shares shares;
  for (int32_t i = 0; i < MergeCurves::kNumPoints; ++i) {
    shares[i] = first + step * static_cast<float>(i);
  }
  return shares;
}

TEST(MergeCurvesTest, IsLinearBetweenItsPointsAndWholeAtOne) {
  MergeCurves curves(2);
  curves.Set(1, Rising(0.1f, 0.04f));
  EXPECT_NEAR(curves.Left(1, 0.80), 0.1, 1e-6);
  EXPECT_NEAR(curves.Left(1, 0.855), 0.1 + 0.04 * 5.5, 1e-6);
  EXPECT_NEAR(curves.Left(1, 0.99), 0.1 + 0.04 * 19, 1e-6);
  EXPECT_NEAR(curves.Left(1, 0.995), (0.1 + 0.04 * 19 + 1) / 2, 1e-5);
  EXPECT_EQ(curves.Left(1, 1.0), 1.0);
  EXPECT_EQ(curves.Left(1, 1.5), 1.0);
  EXPECT_NEAR(curves.Left(1, 0.1), 0.1, 1e-6);
  EXPECT_NEAR(curves.Left(1, NAN), 0.1, 1e-6);
}

TEST(MergeCurvesTest, NeverFalls) {
  MergeCurves curves(1);
  MergeCurves::Shares shares = Rising(0.1f, 0.04f);
  shares[7] = 0.0f;
  curves.Set(0, shares);
  EXPECT_NEAR(curves.Left(0, 0.87), 0.1 + 0.04 * 6, 1e-6);
}

TEST(MergeCurvesTest, UnmeasuredUnitsHaveAMiddlingOne) {
  const MergeCurves none, some(3);
  double last = 0.0;
  for (double cosine = 0.80; cosine <= 1.0; cosine += 0.01) {
    EXPECT_GE(none.Left(5, cosine), last);
    last = none.Left(5, cosine);
    EXPECT_EQ(some.Left(2, cosine), last);
  }
  EXPECT_LT(none.Left(0, 0.80), 0.5);
}

// Pairs of equal keys, each pair at a right angle to all others: half is left at every cosine.
TEST(MergeCurvesTest, CountsWhatClustersLeave) {
  constexpr int32_t kDim = 32, kEntries = 64;
  std::vector<float> keys(kEntries * kDim, 0.0f);
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < kEntries; ++i) {
    keys[i * kDim + i / 2] = 1.0f + static_cast<float>(i);
    positions.push_back(10 + i);
  }
  for (const float left : MeasureMergeCurve(keys, positions, kDim, 128, 8)) EXPECT_EQ(left, 0.5f);
  // Windows end at multiples of 1: nobody has a neighbour.
  for (const float left : MeasureMergeCurve(keys, positions, kDim, 1, 8)) EXPECT_EQ(left, 1.0f);
}

}  // namespace
}  // namespace condense
