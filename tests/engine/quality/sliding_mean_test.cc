#include "engine/quality/sliding_mean.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "engine/quality/guardrail_reading.h"

namespace condense {
namespace {

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

struct Sample {
  double value;
  double weight;
};

// The formulas as they are written down, in two passes over all samples.
struct Naive {
  double mean = 0;
  double standard_error = 0;
  double effective = 0;
};
Naive NaiveEstimate(const std::vector<Sample>& samples) {
  double weight = 0;
  Naive naive;
  for (const Sample& s : samples) weight += s.weight;
  for (const Sample& s : samples) naive.mean += s.value * s.weight / weight;
  double squares = 0;
  double s2 = 0;
  double s3 = 0;
  for (const Sample& s : samples) {
    const double share = s.weight / weight;
    squares += share * share * (s.value - naive.mean) * (s.value - naive.mean);
    s2 += share * share;
    s3 += share * share * share;
  }
  naive.standard_error = std::sqrt(squares * s2 / (s2 - 2 * s3 + s2 * s2));
  naive.effective = 1 / s2;
  return naive;
}

TEST(SlidingMeanTest, AgreesWithTheNaiveFormulas) {
  std::mt19937 random(1);
  std::normal_distribution<double> value(3, 2);
  std::lognormal_distribution<double> weight(4, 1);
  for (const int count : {2, 3, 10, 500}) {
    SlidingMean mean(absl::Seconds(60));
    std::vector<Sample> samples;
    for (int i = 0; i < count; ++i) {
      samples.push_back({value(random), weight(random)});
      ASSERT_TRUE(mean.Add(At(50.0 * i / count), samples.back().value, samples.back().weight));
    }
    const Naive naive = NaiveEstimate(samples);
    const std::optional<MeanEstimate> estimate = mean.Estimate(At(50));
    ASSERT_TRUE(estimate.has_value());
    EXPECT_EQ(estimate->count, count);
    EXPECT_NEAR(estimate->mean, naive.mean, 1e-12);
    EXPECT_NEAR(*estimate->standard_error, naive.standard_error, 1e-12);
    EXPECT_NEAR(estimate->effective_count, naive.effective, 1e-9);
  }
}

TEST(SlidingMeanTest, EqualWeightsGiveTheTextbookError) {
  SlidingMean mean(absl::Seconds(60));
  for (const double x : {1.0, 2.0, 4.0, 9.0}) ASSERT_TRUE(mean.Add(At(1), x, 7));
  const MeanEstimate estimate = *mean.Estimate(At(1));
  EXPECT_DOUBLE_EQ(estimate.mean, 4);
  EXPECT_NEAR(*estimate.standard_error, std::sqrt((9 + 4 + 0 + 25) / 3.0 / 4.0), 1e-12);
  EXPECT_NEAR(estimate.effective_count, 4, 1e-12);
  // t(0.95, 3) = 2.353363.
  EXPECT_NEAR(*estimate.LowerBound(0.95), 4 - 2.353363 * *estimate.standard_error, 1e-5);
  EXPECT_NEAR(*estimate.UpperBound(0.95), 4 + 2.353363 * *estimate.standard_error, 1e-5);
}

TEST(SlidingMeanTest, SmallSpreadOfLargeValuesSurvives) {
  SlidingMean mean(absl::Seconds(60));
  for (int i = 0; i < 1000; ++i) ASSERT_TRUE(mean.Add(At(i * 0.05), 1e9 + (i % 2), 1 + i % 3));
  const MeanEstimate estimate = *mean.Estimate(At(50));
  EXPECT_NEAR(estimate.mean, 1e9 + 0.5, 1e-2);
  EXPECT_NEAR(*estimate.standard_error, 0.5 / std::sqrt(estimate.effective_count), 1e-3);
}

TEST(SlidingMeanTest, NoSampleIsNoNumber) {
  SlidingMean mean(absl::Seconds(60));
  EXPECT_EQ(mean.Estimate(At(0)), std::nullopt);
  EXPECT_EQ(MeanReading(mean, At(0), 0.95).has_value(), false);
  EXPECT_EQ(DriftReading(mean, At(0), 0.95).has_value(), false);
  EXPECT_EQ(ShareReading(mean, At(0), 0.95).has_value(), false);
  ASSERT_TRUE(mean.Add(At(1), 0.25));
  EXPECT_TRUE(mean.Estimate(At(1)).has_value());
  EXPECT_EQ(mean.Estimate(At(62)), std::nullopt);  // left the window
}

TEST(SlidingMeanTest, OneSampleHasNoError) {
  SlidingMean mean(absl::Seconds(60));
  ASSERT_TRUE(mean.Add(At(1), 0.25, 1000));
  const MeanEstimate estimate = *mean.Estimate(At(1));
  EXPECT_EQ(estimate.mean, 0.25);
  EXPECT_EQ(estimate.standard_error, std::nullopt);
  EXPECT_EQ(estimate.LowerBound(0.95), std::nullopt);
  EXPECT_EQ(estimate.UpperBound(0.95), std::nullopt);
}

TEST(SlidingMeanTest, OneRequestThatOutweighsAllIsNoEvidence) {
  SlidingMean mean(absl::Seconds(60));
  ASSERT_TRUE(mean.Add(At(1), 0.5, 100000));
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(mean.Add(At(1), 0.01, 1));
  EXPECT_EQ(mean.Estimate(At(1))->LowerBound(0.95), std::nullopt);
}

TEST(SlidingMeanTest, BadSamplesAreRefused) {
  SlidingMean mean(absl::Seconds(60));
  EXPECT_FALSE(mean.Add(At(100), NAN));
  EXPECT_FALSE(mean.Add(At(100), INFINITY));
  EXPECT_FALSE(mean.Add(At(100), 1, 0));
  EXPECT_FALSE(mean.Add(At(100), 1, -1));
  EXPECT_FALSE(mean.Add(At(100), 1, NAN));
  EXPECT_EQ(mean.Estimate(At(100)), std::nullopt);
  EXPECT_TRUE(mean.Add(At(100), 1));
  EXPECT_FALSE(mean.Add(At(30), 1));  // before the window
  EXPECT_EQ(mean.Estimate(At(100))->count, 1);
  mean.Clear();
  EXPECT_EQ(mean.Estimate(At(100)), std::nullopt);
}

TEST(SlidingMeanTest, ForgetsWhatLeavesTheWindow) {
  SlidingMean mean(absl::Seconds(60), 6);
  for (int second = 0; second < 300; ++second) {
    ASSERT_TRUE(mean.Add(At(second), second));
    const MeanEstimate estimate = *mean.Estimate(At(second));
    const int first = std::max(0, second / 10 * 10 - 50);  // of six slices of 10 s
    EXPECT_EQ(estimate.count, second - first + 1);
    EXPECT_NEAR(estimate.mean, 0.5 * (first + second), 1e-9);
  }
}

// Drift as it is measured: tokens of a request share the request's luck.
struct Traffic {
  std::mt19937 random{11};
  std::normal_distribution<double> request{0, 0.03};
  std::normal_distribution<double> token{0, 0.3};
  std::lognormal_distribution<double> length{4.5, 0.7};

  Sample Next(double mean) {
    const double tokens = std::clamp(std::floor(length(random)), 8.0, 1000.0);
    return {mean + request(random) + token(random) / std::sqrt(tokens), tokens};
  }
};

TEST(SlidingMeanTest, BoundsOfClusteredDriftCoverTheTruth) {
  constexpr int kTrials = 4000;
  constexpr double kTrue = 0.012;
  for (const int requests : {8, 30}) {
    Traffic traffic;
    int below = 0;
    int above = 0;
    int naive_below = 0;  // as if tokens were independent
    for (int trial = 0; trial < kTrials; ++trial) {
      SlidingMean mean(absl::Seconds(600), 4);
      double tokens = 0;
      for (int i = 0; i < requests; ++i) {
        const Sample sample = traffic.Next(kTrue);
        tokens += sample.weight;
        ASSERT_TRUE(mean.Add(At(1), sample.value, sample.weight));
      }
      const MeanEstimate estimate = *mean.Estimate(At(1));
      below += *estimate.LowerBound(0.95) < kTrue ? 1 : 0;
      above += *estimate.UpperBound(0.95) > kTrue ? 1 : 0;
      naive_below += estimate.mean - 1.645 * 0.3 / std::sqrt(tokens) < kTrue ? 1 : 0;
    }
    // 0.95 with a standard error of 0.0034; unequal weights cost a little with few requests.
    EXPECT_NEAR(static_cast<double>(below) / kTrials, 0.95, 0.02) << requests;
    EXPECT_NEAR(static_cast<double>(above) / kTrials, 0.95, 0.02) << requests;
    EXPECT_LT(static_cast<double>(naive_below) / kTrials, 0.90) << requests;
  }
}

TEST(SlidingMeanTest, ShareBoundsCoverTheTruth) {
  constexpr int kTrials = 2000;
  constexpr int kFacts = 4;
  std::mt19937 random(5);
  // Canaries lose facts one by one (spread 0) or whole canaries fail (spread 1).
  for (const bool together : {false, true}) {
    for (const double recall : {0.8, 0.95}) {
      std::bernoulli_distribution kept(recall);
      int covered = 0;
      for (int trial = 0; trial < kTrials; ++trial) {
        SlidingMean mean(absl::Seconds(600), 4);
        for (int canary = 0; canary < 10; ++canary) {
          int facts = 0;
          const bool all = kept(random);
          for (int i = 0; i < kFacts; ++i) facts += (together ? all : kept(random)) ? 1 : 0;
          ASSERT_TRUE(mean.Add(At(1), static_cast<double>(facts) / kFacts, kFacts));
        }
        covered += mean.Estimate(At(1))->ShareUpperBound(0.95) > recall ? 1 : 0;
      }
      EXPECT_GE(static_cast<double>(covered) / kTrials, 0.935) << together << ' ' << recall;
    }
  }
}

TEST(SlidingMeanTest, PerfectOrLostCanariesAreNotCertain) {
  SlidingMean lost(absl::Seconds(60));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(lost.Add(At(1), 0, 4));
  // Three canaries, not twelve facts: nothing shows that their facts are independent.
  EXPECT_NEAR(lost.Estimate(At(1))->ShareUpperBound(0.95), 1 - std::pow(0.05, 1.0 / 3), 1e-9);
  SlidingMean kept(absl::Seconds(60));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(kept.Add(At(1), 1, 4));
  EXPECT_NEAR(kept.Estimate(At(1))->ShareLowerBound(0.95), std::pow(0.05, 1.0 / 3), 1e-9);
  EXPECT_EQ(kept.Estimate(At(1))->ShareUpperBound(0.95), 1);
}

TEST(SlidingMeanTest, DriftIsTheExponentialLessOne) {
  SlidingMean mean(absl::Seconds(60));
  ASSERT_TRUE(mean.Add(At(1), 0.02, 100));
  ASSERT_TRUE(mean.Add(At(1), 0.03, 100));
  ASSERT_TRUE(mean.Add(At(1), 0.04, 200));
  const MeanEstimate estimate = *mean.Estimate(At(1));
  const Reading reading = *DriftReading(mean, At(1), 0.95);
  EXPECT_NEAR(reading.value, std::exp(0.0325) - 1, 1e-12);
  EXPECT_NEAR(*reading.lower, std::exp(*estimate.LowerBound(0.95)) - 1, 1e-12);
  EXPECT_NEAR(*reading.upper, std::exp(*estimate.UpperBound(0.95)) - 1, 1e-12);
  EXPECT_EQ(reading.samples, 3);
}

}  // namespace
}  // namespace condense
