#include "engine/quality/sliding_quantile.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "engine/quality/guardrail_reading.h"

namespace condense {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

double NaiveQuantile(std::vector<double> values, double level) {
  std::sort(values.begin(), values.end());
  const double rank = std::ceil(level * static_cast<double>(values.size()) - 1e-9);
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

TEST(SlidingQuantileTest, AgreesWithSortingWithinABin) {
  std::mt19937 random(3);
  std::lognormal_distribution<double> latency(-6, 1);
  for (const int count : {1, 2, 19, 100, 5000}) {
    SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Latency());
    std::vector<double> values;
    for (int i = 0; i < count; ++i) {
      values.push_back(latency(random));
      ASSERT_TRUE(quantile.Add(At(50.0 * i / count), values.back()));
    }
    for (const double level : {0.05, 0.5, 0.95, 0.99}) {
      const double naive = NaiveQuantile(values, level);
      EXPECT_NEAR(*quantile.Quantile(At(50), level) / naive, 1, 0.04) << count << ' ' << level;
    }
    EXPECT_EQ(quantile.Count(At(50)), count);
  }
}

TEST(SlidingQuantileTest, SharesAreWithinHalfAPercentagePoint) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> share(0.6, 1);
  SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Share());
  std::vector<double> values;
  for (int i = 0; i < 3000; ++i) {
    values.push_back(share(random));
    ASSERT_TRUE(quantile.Add(At(1), values.back()));
  }
  for (const double level : {0.05, 0.5, 0.95}) {
    EXPECT_NEAR(*quantile.Quantile(At(1), level), NaiveQuantile(values, level), 0.005);
  }
}

TEST(SlidingQuantileTest, ValuesOutsideTheScaleCountAtItsEnds) {
  SlidingQuantile quantile(absl::Seconds(60), {.lowest = 0, .highest = 1, .num_bins = 10});
  ASSERT_TRUE(quantile.Add(At(1), -5));
  ASSERT_TRUE(quantile.Add(At(1), 0.55));
  ASSERT_TRUE(quantile.Add(At(1), 7));
  EXPECT_EQ(*quantile.Quantile(At(1), 0.01), -5);
  EXPECT_NEAR(*quantile.Quantile(At(1), 0.5), 0.55, 0.1);
  EXPECT_EQ(*quantile.Quantile(At(1), 0.99), 7);
}

TEST(SlidingQuantileTest, NoSampleIsNoNumber) {
  SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Share());
  EXPECT_EQ(quantile.Quantile(At(1), 0.5), std::nullopt);
  EXPECT_EQ(quantile.LowerBound(At(1), 0.5, 0.95), std::nullopt);
  EXPECT_EQ(quantile.UpperBound(At(1), 0.5, 0.95), std::nullopt);
  EXPECT_FALSE(QuantileReading(quantile, 0.5, At(1), 0.95).has_value());
  EXPECT_FALSE(quantile.Add(At(1), NAN));
  ASSERT_TRUE(quantile.Add(At(1), 0.5));
  EXPECT_EQ(quantile.Quantile(At(70), 0.5), std::nullopt);
  ASSERT_TRUE(quantile.Add(At(70), 0.5));
  EXPECT_FALSE(quantile.Add(At(1), 0.5));
  quantile.Clear();
  EXPECT_EQ(quantile.Quantile(At(70), 0.5), std::nullopt);
}

TEST(SlidingQuantileTest, OldSamplesLeave) {
  SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Share(), 6);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(quantile.Add(At(5), 0.2));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(quantile.Add(At(55), 0.9));
  EXPECT_NEAR(*quantile.Quantile(At(59), 0.5), 0.2, 0.005);
  EXPECT_NEAR(*quantile.Quantile(At(60), 0.5), 0.9, 0.005);
}

TEST(SlidingQuantileTest, BoundsCoverTheTruth) {
  constexpr int kTrials = 1500;
  std::mt19937 random(9);
  std::exponential_distribution<double> latency(1000);
  const double p99 = std::log(100.0) / 1000;
  const double p5 = -std::log(0.95) / 1000;
  int lower = 0;
  int upper = 0;
  for (int trial = 0; trial < kTrials; ++trial) {
    SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Latency(), 2);
    for (int i = 0; i < 200; ++i) ASSERT_TRUE(quantile.Add(At(1), latency(random)));
    // A bin of slack, as the class promises.
    lower += *quantile.LowerBound(At(1), 0.99, 0.95) < p99 * 1.04 ? 1 : 0;
    upper += *quantile.UpperBound(At(1), 0.05, 0.95) > p5 / 1.04 ? 1 : 0;
  }
  EXPECT_GE(static_cast<double>(lower) / kTrials, 0.94);
  EXPECT_GE(static_cast<double>(upper) / kTrials, 0.94);
}

TEST(SlidingQuantileTest, ABoundThatSamplesCannotGiveIsAbsent) {
  SlidingQuantile quantile(absl::Seconds(60), QuantileScale::Latency());
  for (int i = 1; i <= 100; ++i) ASSERT_TRUE(quantile.Add(At(1), 0.001 * i));
  const Reading reading = *QuantileReading(quantile, 0.99, At(1), 0.95);
  EXPECT_EQ(reading.samples, 100);
  EXPECT_EQ(reading.upper, std::nullopt);  // 0.99^100 = 0.37
  ASSERT_TRUE(reading.lower.has_value());
  EXPECT_LT(*reading.lower, reading.value);
}

}  // namespace
}  // namespace condense
