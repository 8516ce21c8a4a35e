#include "engine/quality/matched_ratio.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace condense {
namespace {

constexpr double kConfidence = 0.95;
absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

TEST(MatchedRatioTest, ComparesLikeWithLike) {
  MatchedRatio ratio(absl::Minutes(5));
  // Compacted requests are long, uncompressed ones short; at the same length the former are 10%
  // slower. A comparison of all with all would see a factor.
  for (int i = 0; i < 100; ++i) {
    const bool is_long = i % 10 != 0;
    ASSERT_TRUE(ratio.Add(At(1), true, is_long ? 4000 : 100, is_long ? 4.4 : 0.11));
    ASSERT_TRUE(ratio.Add(At(1), false, is_long ? 100 : 4000, is_long ? 0.1 : 4.0));
  }
  const Reading reading = *ratio.Estimate(At(1), kConfidence);
  EXPECT_NEAR(reading.value, 0.1, 1e-9);
  EXPECT_EQ(reading.samples, 20);
}

TEST(MatchedRatioTest, WithOneClassItIsWelchsComparison) {
  MatchedRatio ratio(absl::Minutes(5));
  for (const double log_seconds : {0.1, 0.3, 0.2}) {
    ASSERT_TRUE(ratio.Add(At(1), true, 64, std::exp(log_seconds)));
  }
  for (const double log_seconds : {0.0, 0.2, -0.1, 0.1}) {
    ASSERT_TRUE(ratio.Add(At(1), false, 127, std::exp(log_seconds)));
  }
  // Means 0.2 and 0.05; squared errors 0.01 / 3 and 1 / 60 / 4.
  const double a = 0.01 / 3;
  const double b = 1.0 / 240;
  const double degrees = (a + b) * (a + b) / (a * a / 2 + b * b / 3);
  ASSERT_NEAR(degrees, 4.959, 1e-3);
  const double t = 2.0183;  // of 0.95, between 2.1318 for 4 and 2.0150 for 5 degrees
  const Reading reading = *ratio.Estimate(At(1), kConfidence);
  EXPECT_NEAR(reading.value, std::exp(0.15) - 1, 1e-9);
  EXPECT_NEAR(*reading.lower, std::exp(0.15 - t * std::sqrt(a + b)) - 1, 1e-3);
  EXPECT_NEAR(*reading.upper, std::exp(0.15 + t * std::sqrt(a + b)) - 1, 1e-3);
  EXPECT_EQ(reading.samples, 3);
}

TEST(MatchedRatioTest, WithoutTwoOfBothKindsOfALengthThereIsNoNumber) {
  MatchedRatio ratio(absl::Minutes(5));
  EXPECT_FALSE(ratio.Estimate(At(1), kConfidence).has_value());
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(ratio.Add(At(1), true, 1000, 1));
    ASSERT_TRUE(ratio.Add(At(1), false, 1024, 1));  // the next class
  }
  EXPECT_FALSE(ratio.Estimate(At(1), kConfidence).has_value());
  ASSERT_TRUE(ratio.Add(At(1), false, 1000, 1));
  EXPECT_FALSE(ratio.Estimate(At(1), kConfidence).has_value());
  ASSERT_TRUE(ratio.Add(At(1), false, 1000, 1));
  EXPECT_TRUE(ratio.Estimate(At(1), kConfidence).has_value());
  EXPECT_FALSE(ratio.Estimate(At(400), kConfidence).has_value());
  ratio.Clear();
  EXPECT_FALSE(ratio.Estimate(At(1), kConfidence).has_value());
}

TEST(MatchedRatioTest, BadSamplesAreRefused) {
  MatchedRatio ratio(absl::Minutes(5));
  EXPECT_FALSE(ratio.Add(At(1), true, 0, 1));
  EXPECT_FALSE(ratio.Add(At(1), true, -5, 1));
  EXPECT_FALSE(ratio.Add(At(1), true, 10, 0));
  EXPECT_FALSE(ratio.Add(At(1), true, 10, NAN));
  EXPECT_FALSE(ratio.Add(At(1), true, 10, INFINITY));
  EXPECT_TRUE(ratio.Add(At(1), true, INT64_MAX, 1));
}

TEST(MatchedRatioTest, BoundsCoverTheTruth) {
  constexpr int kTrials = 1000;
  constexpr double kTrue = 0.1;
  std::mt19937 random(13);
  std::normal_distribution<double> noise(0, 0.4);
  int below = 0;
  int above = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    MatchedRatio ratio(absl::Minutes(5));
    for (int i = 0; i < 60; ++i) {
      const int64_t length = int64_t{64} << (random() % 4);
      const bool compacted = random() % 3 != 0;
      const double seconds = 0.01 * static_cast<double>(length) * std::exp(noise(random));
      ASSERT_TRUE(ratio.Add(At(1), compacted, length, compacted ? seconds * (1 + kTrue) : seconds));
    }
    const Reading reading = *ratio.Estimate(At(1), kConfidence);
    below += *reading.lower < kTrue ? 1 : 0;
    above += *reading.upper > kTrue ? 1 : 0;
  }
  EXPECT_NEAR(static_cast<double>(below) / kTrials, 0.95, 0.025);
  EXPECT_NEAR(static_cast<double>(above) / kTrials, 0.95, 0.025);
}

}  // namespace
}  // namespace condense
