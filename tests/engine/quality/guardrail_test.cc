#include "engine/quality/guardrail.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "tests/engine/quality/guardrail_driver.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
constexpr auto kCompacting = GuardrailMode::kCompacting;
constexpr auto kHolding = GuardrailMode::kHolding;
constexpr auto kUncompressed = GuardrailMode::kUncompressed;
constexpr auto kProbation = GuardrailMode::kProbation;
constexpr auto kClear = GuardLevel::kClear;
constexpr auto kWarning = GuardLevel::kWarning;
constexpr auto kBroken = GuardLevel::kBroken;

// Where a lasting reading leads, from each mode. Dwells and stages are put out of the way.
GuardrailMode Destination(GuardrailMode from, Guard guard, GuardLevel level) {
  const bool breaks = level == kBroken && CanBreak(guard);
  switch (from) {
    case kCompacting:
      if (TraitsOf(guard).effect == GuardEffect::kMemory || level == kClear) return kCompacting;
      return breaks ? kUncompressed : kHolding;
    case kHolding:
      return breaks ? kUncompressed : kHolding;
    case kUncompressed:
      return kUncompressed;
    case kProbation:
      return breaks ? kUncompressed : kProbation;
  }
  return from;
}

using EdgeCase = std::tuple<GuardrailMode, Guard, GuardLevel>;

class GuardrailEdgeTest : public ::testing::TestWithParam<EdgeCase> {};

TEST_P(GuardrailEdgeTest, LeadsWhereTheTableSays) {
  const auto [from, guard, level] = GetParam();
  GuardrailLimits limits;
  limits.uncompressed_dwell = limits.holding_dwell = limits.max_dwell = absl::Hours(10);
  limits.probation_dwell = absl::Hours(10);
  limits.forget_after = absl::Hours(10);
  GuardrailDriver driver(limits);
  if (from == kProbation) {
    driver.guardrail().Force(kProbation, driver.now());
    driver.guardrail().Release(driver.now());
  } else {
    driver.Bring(from);
  }
  ASSERT_EQ(driver.mode(), from);
  driver.Run(100, driver.With(guard, level));
  EXPECT_EQ(driver.mode(), Destination(from, guard, level)) << driver.decision().text;
}

std::string EdgeName(const ::testing::TestParamInfo<EdgeCase>& info) {
  const auto [from, guard, level] = info.param;
  const char* levels[] = {"clear", "warning", "broken"};
  return std::string(GuardrailModeName(from)) + "_" + TraitsOf(guard).label + "_" +
         levels[static_cast<int>(level)];
}

INSTANTIATE_TEST_SUITE_P(All, GuardrailEdgeTest,
                         ::testing::Combine(::testing::Values(kCompacting, kHolding, kUncompressed,
                                                              kProbation),
                                            ::testing::ValuesIn(AllGuards()),
                                            ::testing::Values(kClear, kWarning, kBroken)),
                         EdgeName);

TEST(GuardrailTest, BeginsByCompacting) {
  GuardrailDriver driver;
  EXPECT_EQ(driver.mode(), kCompacting);
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kStart);
  EXPECT_TRUE(driver.decision().new_jobs);
  EXPECT_EQ(driver.decision().compacted_share, 1);
  EXPECT_EQ(driver.decision().ratio_notches, 0);
  driver.Run(1000, Readings());  // nothing measured is nothing wrong
  EXPECT_EQ(driver.mode(), kCompacting);
  EXPECT_EQ(driver.guardrail().num_transitions(), 0);
}

TEST(GuardrailTest, AWarningHoldsAfterItsWindowsAndLowersTheRatio) {
  GuardrailDriver driver;
  driver.Run(driver.limits().warning_windows - 1, driver.With(Guard::kHitRatio, kWarning));
  EXPECT_EQ(driver.mode(), kCompacting);
  driver.Run(1, driver.With(Guard::kHitRatio, kWarning));
  const GuardrailDecision& decision = driver.decision();
  EXPECT_EQ(decision.mode, kHolding);
  EXPECT_EQ(decision.reason, GuardrailReason::kWarning);
  EXPECT_EQ(decision.guard, Guard::kHitRatio);
  EXPECT_EQ(decision.text,
            "hit ratio 0.885 (upper bound 0.885, 33 samples) is below its warning level of 0.92");
  EXPECT_FALSE(decision.new_jobs);
  EXPECT_EQ(decision.compacted_share, 1);
  EXPECT_EQ(decision.ratio_notches, 1);
  ASSERT_EQ(driver.guardrail().transitions().size(), 1u);
  const GuardrailTransition& transition = driver.guardrail().transitions().back();
  EXPECT_EQ(transition.from, kCompacting);
  EXPECT_EQ(transition.to, kHolding);
  EXPECT_EQ(transition.time, driver.now());
  EXPECT_EQ(transition.guard, Guard::kHitRatio);
  EXPECT_EQ(transition.text, decision.text);
}

TEST(GuardrailTest, AnInterruptedWarningStartsAnew) {
  GuardrailDriver driver;
  for (int i = 0; i < 50; ++i) {
    driver.Run(driver.limits().warning_windows - 1, driver.With(Guard::kHitRatio, kWarning));
    driver.Run(1, driver.Clear());
  }
  EXPECT_EQ(driver.guardrail().num_transitions(), 0);
}

TEST(GuardrailTest, HoldingEndsAfterItsDwellWithoutAWarning) {
  GuardrailDriver driver;
  driver.Bring(kHolding);
  const absl::Time since = driver.decision().since;
  EXPECT_EQ(driver.decision().dwell, absl::Seconds(30));
  EXPECT_EQ(driver.RunUntil(kCompacting, 20, driver.Clear()), 3);
  EXPECT_GE(driver.now() - since, absl::Seconds(30));
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kRecovered);
  EXPECT_EQ(driver.decision().ratio_notches, 1);  // lower than before
}

TEST(GuardrailTest, HoldingLastsWhileTheValueIsNotClearOfTheWarning) {
  GuardrailDriver driver;
  driver.Bring(kHolding);
  // Inside the hysteresis: no warning would begin here, none ends either.
  Readings readings = driver.Clear();
  readings[Guard::kFirstToken] = Reading{.value = 0.069, .samples = 100};
  driver.Run(100, readings);
  EXPECT_EQ(driver.mode(), kHolding);
  readings[Guard::kFirstToken] = Reading{.value = 0.061, .samples = 100};
  driver.Run(3, readings);
  EXPECT_EQ(driver.mode(), kCompacting);
}

// Drift and recall reach far back, and while nothing is compacted there is nothing new of them.
TEST(GuardrailTest, HoldingEndsWithoutNewsOfWhatReachesBack) {
  for (const Guard guard : {Guard::kDrift, Guard::kCanary}) {
    GuardrailDriver driver;
    const Readings stale = driver.With(guard, kWarning);
    driver.Run(driver.limits().warning_windows, stale);
    ASSERT_EQ(driver.mode(), kHolding);
    const absl::Time since = driver.decision().since;
    EXPECT_EQ(driver.RunUntil(kCompacting, 100, stale), 3);
    EXPECT_EQ(driver.now() - since, driver.limits().holding_dwell);
    EXPECT_EQ(driver.decision().text, "nothing new is measured, after 30s");
    EXPECT_EQ(driver.decision().evidence_from, driver.now());
    EXPECT_EQ(driver.guardrail().level(guard), GuardLevel::kClear);
    EXPECT_EQ(driver.decision().ratio_notches, 1);
    // So soon again is a flap: it lasts twice as long.
    driver.Run(driver.limits().warning_windows, stale);
    ASSERT_EQ(driver.mode(), kHolding);
    EXPECT_EQ(driver.decision().dwell, 2 * driver.limits().holding_dwell);
  }
}

TEST(GuardrailTest, HoldingLastsWhileThereIsNewsOfWhatReachesBack) {
  GuardrailDriver driver;
  Readings readings = driver.With(Guard::kDrift, kWarning);
  for (int window = 0; window < 100; ++window) {
    ++readings[Guard::kDrift]->samples;
    driver.Run(1, readings);
    EXPECT_EQ(driver.mode(), window < 2 ? kCompacting : kHolding);
  }
}

TEST(GuardrailTest, WithoutDataAWarningIsForgottenAfterItsTime) {
  GuardrailDriver driver;
  driver.Run(driver.limits().warning_windows, driver.With(Guard::kHitRatio, kWarning));
  ASSERT_EQ(driver.mode(), kHolding);
  // No jobs, so no swaps to measure: it must not last for good.
  const int windows = driver.RunUntil(kCompacting, 100, Readings());
  EXPECT_EQ(windows * driver.limits().evaluation_window, driver.limits().forget_after);
}

TEST(GuardrailTest, ABrokenLimitSwitchesOffAndSaysWhy) {
  GuardrailDriver driver;
  Readings readings = driver.Clear();
  readings[Guard::kDrift] = Reading{.value = 0.031, .samples = 41, .lower = 0.023, .upper = 0.039};
  EXPECT_EQ(driver.RunUntil(kUncompressed, 10, readings), driver.limits().limit_windows);
  const GuardrailDecision& decision = driver.decision();
  EXPECT_EQ(decision.reason, GuardrailReason::kLimitBroken);
  EXPECT_EQ(decision.guard, Guard::kDrift);
  EXPECT_EQ(decision.text,
            "perplexity drift 3.1% (lower bound 2.3%, 41 samples) is above its limit of 2%");
  EXPECT_FALSE(decision.new_jobs);
  EXPECT_EQ(decision.compacted_share, 0);
  EXPECT_FALSE(IsCompacted(decision, 1));
  // Quality first widened the budget: holding lies between.
  EXPECT_EQ(driver.guardrail().num_transitions(kCompacting, kHolding), 1);
  EXPECT_EQ(driver.guardrail().num_transitions(kHolding, kUncompressed), 1);
  EXPECT_EQ(driver.guardrail().num_transitions(kCompacting, kUncompressed), 0);
  EXPECT_EQ(decision.ratio_notches, 1);
}

TEST(GuardrailTest, TheHighestLevelGivesTheReason) {
  GuardrailDriver driver;
  Readings readings = driver.With(Guard::kHitRatio, kWarning);
  readings = driver.With(readings, Guard::kDrift, kBroken);
  driver.Run(driver.limits().limit_windows, readings);
  EXPECT_EQ(driver.mode(), kUncompressed);
  EXPECT_EQ(driver.decision().guard, Guard::kDrift);
}

TEST(GuardrailTest, WhereWarningAndLimitCountAlikeTheLimitWins) {
  GuardrailLimits limits;
  limits.warning_windows = limits.limit_windows = 1;
  GuardrailDriver driver(limits);
  driver.Run(1, driver.With(Guard::kDrift, kBroken));
  EXPECT_EQ(driver.guardrail().num_transitions(kCompacting, kUncompressed), 1);
}

TEST(GuardrailTest, DriftIsJudgedByItsLowerBound) {
  GuardrailDriver driver;
  Readings readings = driver.Clear();
  readings[Guard::kDrift] = Reading{.value = 0.5, .samples = 9, .lower = 0.005, .upper = 0.9};
  driver.Run(100, readings);
  EXPECT_EQ(driver.mode(), kCompacting);
  readings[Guard::kDrift]->lower = 0.015;  // surely above the warning, not the limit
  driver.Run(100, readings);
  EXPECT_EQ(driver.mode(), kHolding);
  readings[Guard::kDrift]->lower = 0.0201;
  driver.Run(driver.limits().limit_windows, readings);
  EXPECT_EQ(driver.mode(), kUncompressed);
}

TEST(GuardrailTest, TheCanaryIsJudgedByItsUpperBound) {
  GuardrailDriver driver;
  Readings readings = driver.Clear();
  readings[Guard::kCanary] = Reading{.value = 0.5, .samples = 5, .lower = 0.2, .upper = 0.96};
  driver.Run(100, readings);
  EXPECT_EQ(driver.mode(), kCompacting);
  readings[Guard::kCanary]->upper = 0.93;
  driver.Run(100, readings);
  EXPECT_EQ(driver.mode(), kHolding);
  readings[Guard::kCanary]->upper = 0.89;
  driver.Run(driver.limits().limit_windows, readings);
  EXPECT_EQ(driver.mode(), kUncompressed);
}

TEST(GuardrailTest, WhatNeedsABoundIsNothingWithoutOne) {
  for (const Guard guard : {Guard::kDrift, Guard::kCanary}) {
    GuardrailDriver driver;
    Readings readings = driver.With(guard, kBroken);
    readings[guard]->lower = readings[guard]->upper = std::nullopt;
    driver.Run(100, readings);
    EXPECT_EQ(driver.guardrail().num_transitions(), 0) << TraitsOf(guard).label;
  }
}

TEST(GuardrailTest, TooFewSamplesAndImpossibleNumbersAreNoData) {
  for (const Guard guard : AllGuards()) {
    GuardrailDriver driver;
    Readings readings = driver.With(guard, kBroken);
    readings[guard]->samples = (driver.limits().*TraitsOf(guard).limit).min_samples - 1;
    driver.Run(20, readings);
    for (const double value : {NAN, INFINITY, -INFINITY}) {
      readings = driver.With(guard, kBroken);
      readings[guard] = Reading{.value = value, .samples = 1000, .lower = value, .upper = value};
      driver.Run(20, readings);
    }
    EXPECT_EQ(driver.guardrail().num_transitions(), 0) << TraitsOf(guard).label;
    EXPECT_EQ(driver.guardrail().level(guard), kClear);
  }
}

TEST(GuardrailTest, LatencyOnlyEverHolds) {
  for (const Guard guard :
       {Guard::kMergeLatency, Guard::kFirstToken, Guard::kTtft, Guard::kInterToken}) {
    GuardrailDriver driver;
    Readings readings = driver.Clear();
    readings[guard] = Reading{.value = 1e3, .samples = 100000, .lower = 1e3, .upper = 1e3};
    driver.Run(5000, readings);
    EXPECT_EQ(driver.mode(), kHolding) << TraitsOf(guard).label;
    EXPECT_EQ(driver.guardrail().num_transitions(), 1);
    EXPECT_EQ(driver.decision().ratio_notches, 1);  // it is not quality that suffers
  }
}

TEST(GuardrailTest, WhereMemoryIsShortALatencyOfAllRequestsHoldsNothing) {
  for (const Guard guard : {Guard::kTtft, Guard::kInterToken}) {
    GuardrailDriver driver;
    const Readings full = driver.With(Guard::kMemory, kWarning);
    driver.Run(10, driver.With(full, guard, kWarning));
    EXPECT_EQ(driver.mode(), kCompacting) << TraitsOf(guard).label;
    EXPECT_EQ(driver.guardrail().level(guard), kWarning);
    driver.Run(3, driver.With(guard, kWarning));
    EXPECT_EQ(driver.mode(), kHolding);
    // And room is made again where it runs short.
    driver.Run(3, driver.With(full, guard, kWarning));
    EXPECT_EQ(driver.mode(), kCompacting);
  }
}

TEST(GuardrailTest, WhatIsNotBoundIsNotJudged) {
  Guardrail guardrail = *Guardrail::Make({}, absl::UnixEpoch());
  Readings readings;
  readings[Guard::kTtft] = readings[Guard::kInterToken] = Reading{.value = 1e3, .samples = 10000};
  for (int window = 1; window <= 100; ++window) {
    guardrail.Evaluate(readings, absl::UnixEpoch() + window * absl::Seconds(10));
  }
  EXPECT_EQ(guardrail.num_transitions(), 0);
}

TEST(GuardrailTest, ALimitThatIsBrokenWhileHoldingSwitchesOff) {
  GuardrailDriver driver;
  driver.Bring(kHolding);
  driver.Run(driver.limits().limit_windows, driver.With(Guard::kHitRatioTail, kBroken));
  EXPECT_EQ(driver.mode(), kUncompressed);
}

TEST(GuardrailTest, OnlyTheDwellLeadsFromUncompressedToProbation) {
  GuardrailDriver driver;
  driver.Bring(kUncompressed, Guard::kDrift);
  EXPECT_EQ(driver.decision().dwell, absl::Seconds(60));
  const Readings still_bad = driver.With(Guard::kDrift, kBroken);  // of what is compacted already
  driver.Run(5, still_bad);
  EXPECT_EQ(driver.mode(), kUncompressed);
  driver.Run(1, still_bad);
  EXPECT_EQ(driver.mode(), kProbation);
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kDwellOver);
  EXPECT_EQ(driver.decision().evidence_from, driver.now());
  EXPECT_EQ(driver.guardrail().level(Guard::kDrift), kClear);  // nothing is known of new ones
}

TEST(GuardrailTest, ProbationHasTwoStagesAtALowerRatio) {
  GuardrailDriver driver;
  driver.Bring(kProbation);
  EXPECT_EQ(driver.decision().compacted_share, 0.10);
  EXPECT_TRUE(driver.decision().new_jobs);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  driver.Run(5, driver.Clear());
  EXPECT_EQ(driver.decision().compacted_share, 0.10);
  driver.Run(1, driver.Clear());
  EXPECT_EQ(driver.decision().compacted_share, 0.50);
  driver.Run(5, driver.Clear());
  EXPECT_EQ(driver.mode(), kProbation);
  driver.Run(1, driver.Clear());
  EXPECT_EQ(driver.mode(), kCompacting);
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kProbationPassed);
  EXPECT_EQ(driver.decision().compacted_share, 1);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
  EXPECT_EQ(driver.guardrail().flaps(), 0);
}

TEST(GuardrailTest, ProbationLowersTheRatioEvenAfterItHadComeBack) {
  GuardrailLimits limits;
  limits.restore_after = absl::Seconds(10);
  GuardrailDriver driver(limits);
  driver.guardrail().Force(kUncompressed, driver.now());
  driver.guardrail().Release(driver.now());
  EXPECT_EQ(driver.decision().ratio_notches, 0);
  ASSERT_GT(driver.RunUntil(kProbation, 10, Readings()), 0);
  EXPECT_EQ(driver.decision().ratio_notches, 1);
}

TEST(GuardrailTest, ProbationWaitsForDataOfWhatBroke) {
  GuardrailDriver driver;
  driver.Bring(kProbation, Guard::kCanary);
  Readings readings = driver.Clear();
  readings[Guard::kCanary] = std::nullopt;
  driver.Run(1000, readings);
  EXPECT_EQ(driver.mode(), kProbation);
  EXPECT_EQ(driver.decision().compacted_share, 0.10);
  EXPECT_EQ(driver.decision().waiting_for,
            "3 more windows with data of canary recall, whose limit was broken");
  driver.Run(3, driver.Clear());
  EXPECT_EQ(driver.decision().compacted_share, 0.50);
  driver.Run(1000, readings);  // each stage needs its own
  EXPECT_EQ(driver.mode(), kProbation);
  driver.Run(3, driver.Clear());
  EXPECT_EQ(driver.mode(), kCompacting);
}

TEST(GuardrailTest, WhatAnOperatorForcesNeedsNoDataToEnd) {
  GuardrailDriver driver;
  driver.Bring(kProbation, Guard::kCanary);
  driver.guardrail().Force(kProbation, driver.now());
  driver.guardrail().Release(driver.now());
  EXPECT_EQ(driver.RunUntil(kCompacting, 100, Readings()), 12);
}

TEST(GuardrailTest, AWarningInProbationHoldsItsStage) {
  for (const Guard guard : {Guard::kHitRatio, Guard::kFirstToken}) {
    GuardrailDriver driver;
    driver.Bring(kProbation);
    driver.Run(100, driver.With(guard, kWarning));
    EXPECT_EQ(driver.mode(), kProbation);
    EXPECT_EQ(driver.decision().compacted_share, 0.10);
    EXPECT_FALSE(driver.decision().new_jobs);
    EXPECT_THAT(driver.decision().waiting_for, HasSubstr(TraitsOf(guard).name));
    driver.Run(3, driver.Clear());  // clear; the stage begins here
    EXPECT_TRUE(driver.decision().new_jobs);
    EXPECT_EQ(driver.decision().compacted_share, 0.10);
    driver.Run(5, driver.Clear());
    EXPECT_EQ(driver.decision().compacted_share, 0.50);
  }
}

TEST(GuardrailTest, EachFailureOfProbationDoublesTheDwellUpToItsBound) {
  GuardrailDriver driver;
  driver.Bring(kUncompressed);
  absl::Duration expected = absl::Seconds(60);
  for (int failure = 0; failure < 10; ++failure) {
    EXPECT_EQ(driver.decision().dwell, expected) << failure;
    const absl::Time since = driver.decision().since;
    ASSERT_GT(driver.RunUntil(kProbation, 1000, Readings()), 0);
    EXPECT_EQ(driver.decision().since - since, expected);
    ASSERT_EQ(driver.RunUntil(kUncompressed, 10, driver.With(Guard::kMemoryFluctuation, kBroken)),
              driver.limits().limit_windows);
    expected = std::min(2 * expected, driver.limits().max_dwell);
  }
  EXPECT_EQ(expected, absl::Minutes(30));
  EXPECT_EQ(driver.guardrail().flaps(), 10);
  EXPECT_EQ(driver.guardrail().num_transitions(kProbation, kUncompressed), 10);
}

TEST(GuardrailTest, AFallbackSoonAfterProbationDoublesTheDwellALateOneDoesNot) {
  for (const bool soon : {true, false}) {
    GuardrailDriver driver;
    driver.Bring(kProbation);
    ASSERT_GT(driver.RunUntil(kCompacting, 100, driver.Clear()), 0);
    if (!soon) driver.Run(100, driver.Clear());  // 1000 s, more than flap_window
    driver.Run(driver.limits().limit_windows, driver.With(Guard::kMemoryFluctuation, kBroken));
    ASSERT_EQ(driver.mode(), kUncompressed);
    EXPECT_EQ(driver.decision().dwell, absl::Seconds(soon ? 120 : 60));
    EXPECT_EQ(driver.guardrail().flaps() > 0, soon);
  }
}

TEST(GuardrailTest, ADoubledDwellHalvesWithEachCalmFlapWindow) {
  GuardrailDriver driver;
  const Readings latency = driver.With(Guard::kFirstToken, kWarning);
  absl::Duration expected = absl::Seconds(30);
  for (int hold = 0; hold < 4; ++hold) {
    ASSERT_GT(driver.RunUntil(kHolding, 10, latency), 0);
    EXPECT_EQ(driver.decision().dwell, expected * (1 << hold));
    ASSERT_GT(driver.RunUntil(kCompacting, 1000, driver.Clear()), 0);
  }
  driver.Run(2 * 90 + 10, driver.Clear());  // of 15 minutes each
  ASSERT_GT(driver.RunUntil(kHolding, 10, latency), 0);
  EXPECT_EQ(driver.decision().dwell, absl::Seconds(60));
  EXPECT_EQ(driver.guardrail().flaps(), 3);
}

TEST(GuardrailTest, ForcedModesWinAndAreVisible) {
  for (const GuardrailMode mode : {kCompacting, kHolding, kUncompressed, kProbation}) {
    for (const GuardLevel level : {kClear, kBroken}) {
      GuardrailDriver driver;
      driver.guardrail().Force(mode, driver.now());
      driver.Run(2000, driver.With(Guard::kDrift, level));
      EXPECT_EQ(driver.mode(), mode);
      EXPECT_TRUE(driver.decision().forced);
      EXPECT_EQ(driver.decision().reason, GuardrailReason::kForced);
      EXPECT_THAT(driver.decision().text, HasSubstr("operator"));
      EXPECT_EQ(driver.guardrail().level(Guard::kDrift), level);  // judged meanwhile
      EXPECT_EQ(driver.guardrail().flaps(), 0);
      EXPECT_EQ(driver.decision().compacted_share,
                mode == kUncompressed ? 0 : (mode == kProbation ? 0.1 : 1));
      EXPECT_EQ(driver.decision().new_jobs, mode == kCompacting || mode == kProbation);
    }
  }
}

TEST(GuardrailTest, ReleasedModesAreTheGuardrailsAgain) {
  GuardrailDriver driver;
  driver.guardrail().Release(driver.now());  // nothing is forced
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kStart);

  driver.guardrail().Force(kUncompressed, driver.now());
  driver.Run(1000, driver.Clear());
  driver.guardrail().Release(driver.now());
  EXPECT_FALSE(driver.decision().forced);
  EXPECT_EQ(driver.decision().reason, GuardrailReason::kReleased);
  EXPECT_EQ(driver.mode(), kUncompressed);
  EXPECT_EQ(driver.RunUntil(kProbation, 100, driver.Clear()), 6);  // a dwell from the release
  EXPECT_EQ(driver.RunUntil(kCompacting, 100, driver.Clear()), 12);

  driver.guardrail().Force(kCompacting, driver.now());
  driver.Run(100, driver.With(Guard::kDrift, kBroken));
  EXPECT_EQ(driver.mode(), kCompacting);
  driver.guardrail().Release(driver.now());
  driver.Run(1, driver.With(Guard::kDrift, kBroken));
  EXPECT_EQ(driver.mode(), kUncompressed);
}

TEST(GuardrailTest, AnEarlierTimeCountsAsTheLatest) {
  GuardrailDriver driver;
  driver.Bring(kUncompressed);
  const absl::Time since = driver.decision().since;
  driver.guardrail().Evaluate(driver.Clear(), since - absl::Hours(1));
  EXPECT_EQ(driver.mode(), kUncompressed);
  driver.guardrail().Force(kHolding, since - absl::Hours(1));
  EXPECT_EQ(driver.decision().since, since);
}

TEST(GuardrailTest, IsDueOncePerEvaluationWindow) {
  GuardrailDriver driver;
  Guardrail& guardrail = driver.guardrail();
  EXPECT_FALSE(guardrail.Due(driver.now()));
  EXPECT_FALSE(guardrail.Due(driver.now() + absl::Seconds(9.9)));
  EXPECT_TRUE(guardrail.Due(driver.now() + absl::Seconds(10)));
  driver.Run(1, driver.Clear());
  EXPECT_FALSE(guardrail.Due(driver.now()));
}

TEST(GuardrailTest, SharesOfRequestsAreKeptWithoutAPattern) {
  GuardrailDecision decision;
  for (const double share : {0.0, 0.1, 0.5, 1.0}) {
    decision.compacted_share = share;
    int compacted = 0;
    for (uint64_t request = 0; request < 10000; ++request) {
      compacted += IsCompacted(decision, request) ? 1 : 0;
    }
    // Four standard errors of 10,000 independent draws.
    EXPECT_NEAR(compacted, 10000 * share, 400 * std::sqrt(share * (1 - share))) << share;
  }
  // A client that sends every tenth request is neither always compacted nor never.
  decision.compacted_share = 0.1;
  int of_one_client = 0;
  for (uint64_t request = 0; request < 10000; request += 10) {
    of_one_client += IsCompacted(decision, request) ? 1 : 0;
  }
  EXPECT_NEAR(of_one_client, 100, 40);
}

TEST(GuardrailTest, KeptTransitionsAreBounded) {
  GuardrailDriver driver;
  for (int i = 0; i < 500; ++i) {
    driver.guardrail().Force(i % 2 == 0 ? kHolding : kCompacting, driver.now());
  }
  EXPECT_EQ(driver.guardrail().transitions().size(), Guardrail::kKeptTransitions);
  EXPECT_EQ(driver.guardrail().num_transitions(), 500);
}

TEST(GuardrailTest, NamesAreDistinct) {
  EXPECT_STREQ(GuardrailModeName(kCompacting), "compacting");
  EXPECT_STREQ(GuardrailModeName(kHolding), "holding");
  EXPECT_STREQ(GuardrailModeName(kUncompressed), "uncompressed");
  EXPECT_STREQ(GuardrailModeName(kProbation), "probation");
  EXPECT_STREQ(GuardrailReasonName(GuardrailReason::kLimitBroken), "limit_broken");
  EXPECT_STREQ(GuardrailReasonName(GuardrailReason::kForced), "forced");
}

}  // namespace
}  // namespace condense
