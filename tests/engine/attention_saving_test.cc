#include "engine/attention_saving.h"

#include <gtest/gtest.h>

#include <random>

namespace condense {
namespace {

constexpr int64_t kTokens = 16000;
constexpr double kPlain = 1.25e-6;  // seconds per token
constexpr double kSlope = 0.9e-6;   // less, where all bytes were saved

absl::Duration Time(double share, int64_t tokens = kTokens) {
  return absl::Seconds((kPlain - kSlope * share) * static_cast<double>(tokens));
}

// What a step with this share saves, three quarters of it.
double Believed(double share) { return 0.75 * kSlope * share * kTokens; }

TEST(AttentionSavingTest, KnowsNothingBeforeSharesDiffer) {
  AttentionSaving saving;
  EXPECT_EQ(saving.saved(), absl::ZeroDuration());
  for (int step = 0; step < 100; ++step) {
    saving.Observe(Time(0.5), kTokens, 0.5);
    EXPECT_EQ(saving.saved(), absl::ZeroDuration());
  }
}

TEST(AttentionSavingTest, FindsTheLineThroughItsSteps) {
  AttentionSaving saving;
  for (int step = 0; step <= 40; ++step) {
    saving.Observe(Time(0.01 * step), kTokens, 0.01 * step);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), Believed(0.4), 1e-6);
  saving.Observe(Time(0.2), kTokens, 0.2);
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), Believed(0.2), 1e-6);
  saving.Observe(Time(0.0), kTokens, 0.0);
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), 0.0, 1e-9);
}

TEST(AttentionSavingTest, KeepsTheLineWhileSharesStayTheSame) {
  AttentionSaving saving;
  for (int step = 0; step <= 70; ++step) {
    saving.Observe(Time(0.01 * step), kTokens, 0.01 * step);
  }
  for (int step = 0; step < 2000; ++step) saving.Observe(Time(0.7), kTokens, 0.7);
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), Believed(0.7), 1e-6);
}

TEST(AttentionSavingTest, NoiseMovesItLittle) {
  AttentionSaving saving;
  std::mt19937 random(5);
  std::normal_distribution<double> noise(1.0, 0.05);
  for (int step = 0; step <= 200; ++step) {
    saving.Observe(Time(0.0035 * step) * noise(random), kTokens, 0.0035 * step);
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), Believed(0.7), 0.25 * Believed(0.7));
}

TEST(AttentionSavingTest, ShortContextsNeitherTeachNorSave) {
  AttentionSaving saving;
  for (int step = 0; step <= 40; ++step) {
    saving.Observe(Time(0.01 * step), kTokens, 0.01 * step);
  }
  saving.Observe(absl::Seconds(1), 1023, 0.9);
  EXPECT_EQ(saving.saved(), absl::ZeroDuration());
  saving.Observe(Time(0.4), kTokens, 0.4);
  EXPECT_NEAR(absl::ToDoubleSeconds(saving.saved()), Believed(0.4), 1e-6);
}

TEST(AttentionSavingTest, AStepOfAnotherKindSavesNothing) {
  AttentionSaving saving;
  for (int step = 0; step <= 40; ++step) {
    saving.Observe(Time(0.01 * step), kTokens, 0.01 * step);
  }
  saving.Skip();
  EXPECT_EQ(saving.saved(), absl::ZeroDuration());
}

TEST(AttentionSavingTest, CompactedStepsThatTakeLongerSaveNothing) {
  AttentionSaving saving;
  for (int step = 0; step <= 40; ++step) {
    const double share = 0.01 * step;
    saving.Observe(absl::Seconds(kTokens * kPlain * (1 + share)), kTokens, share);
    EXPECT_EQ(saving.saved(), absl::ZeroDuration());
  }
}

TEST(AttentionSavingTest, NoMoreThanTheBytesSave) {
  AttentionSaving saving;
  for (int step = 0; step <= 20; ++step) {
    const double share = 0.01 * step;
    saving.Observe(absl::Seconds(0.020 - 0.090 * share), kTokens, share);
  }
  // The line says 18 ms of 2 that are left; of bytes it can be a quarter of those 2.
  EXPECT_NEAR(absl::ToDoubleMilliseconds(saving.saved()), 0.75 * 2.0 * 0.2 / 0.8, 1e-6);
}

}  // namespace
}  // namespace condense
