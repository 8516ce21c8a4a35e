#include "engine/guard_monitor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "engine/quality/slo.h"

namespace condense {
namespace {

constexpr auto kCompacting = GuardrailMode::kCompacting;
constexpr auto kHolding = GuardrailMode::kHolding;
constexpr auto kUncompressed = GuardrailMode::kUncompressed;
constexpr auto kProbation = GuardrailMode::kProbation;

// Simulated time in evaluation windows; what is fed comes in the middle of one.
class GuardMonitorTest : public ::testing::Test {
 protected:
  template <typename Feed>
  void Run(int windows, Feed feed) {
    for (int i = 0; i < windows; ++i) {
      now_ += limits_.evaluation_window / 2;
      feed();
      now_ += limits_.evaluation_window / 2;
      ASSERT_TRUE(monitor_.Due(now_));
      monitor_.Evaluate(now_);
    }
  }
  void Silence(int windows) {
    Run(windows, [] {});
  }

  void Units(int count, double hit_ratio) {
    for (int i = 0; i < count; ++i) monitor_.ObserveUnit(hit_ratio, now_);
  }
  // The mean stays clear of its warning, one unit in ten does not.
  void UnitsWithTail(double tail) {
    Units(90, 1.0);
    Units(10, tail);
  }
  // A cycle of one step each.
  void Steps(absl::Duration thread_time, int cycles = 100) {
    for (int i = 0; i < cycles; ++i) {
      monitor_.ObserveAdded({.thread_time = thread_time, .cycle_end = true}, now_);
    }
  }
  // A cycle in which staging comes and goes.
  void Cycle(int64_t staging_bytes, double arena_use = 0.1) {
    monitor_.ObserveMemory({.used_bytes = 100000}, arena_use, now_);
    monitor_.ObserveMemory({.used_bytes = 100000, .staging_bytes = staging_bytes}, arena_use, now_);
    monitor_.ObserveMemory({.used_bytes = 100000, .arena_bytes = 100000, .cycle_end = true},
                           arena_use, now_);
  }
  void FirstTokens(double slower) {
    for (int i = 0; i < 20; ++i) {
      const double luck = i % 2 == 0 ? 0.99 : 1.01;
      monitor_.ObserveFirstToken(false, 100, absl::Seconds(luck), now_);
      monitor_.ObserveFirstToken(true, 100, absl::Seconds(luck * (1.0 + slower)), now_);
    }
  }
  void Drifts(int requests, double nats) {
    for (int i = 0; i < requests; ++i) {
      monitor_.ObserveDrift(true, nats * (i % 2 == 0 ? 0.99 : 1.01), 64, now_);
    }
  }
  void Canaries(int count, int64_t found) {
    for (int i = 0; i < count; ++i) monitor_.ObserveCanary(found, 4, now_);
  }
  void Everything(double hit_ratio) {
    Units(100, hit_ratio);
    Steps(absl::Microseconds(100));
    Cycle(0);
    FirstTokens(0.0);
    monitor_.ObserveNextToken(absl::Seconds(1), now_);
  }

  GuardrailMode mode() const { return monitor_.decision().mode; }
  const std::optional<Reading>& reading(Guard guard) const { return monitor_.readings()[guard]; }
  int CountReadings() const {
    int count = 0;
    for (int i = 0; i < kNumGuards; ++i) count += reading(static_cast<Guard>(i)).has_value();
    return count;
  }

  const GuardrailLimits limits_;
  absl::Time now_ = absl::UnixEpoch() + absl::Hours(1);
  GuardMonitor monitor_{limits_, now_};
};

TEST_F(GuardMonitorTest, NothingObservedIsNoReading) {
  Silence(200);
  EXPECT_EQ(CountReadings(), 0);
  EXPECT_EQ(mode(), kCompacting);
  EXPECT_EQ(monitor_.decision().reason, GuardrailReason::kStart);
}

TEST_F(GuardMonitorTest, DriftAndCanaryAreAbsentWhereNobodyProbes) {
  Run(10, [&] { Everything(1.0); });
  EXPECT_EQ(CountReadings(), 6);
  EXPECT_FALSE(reading(Guard::kDrift).has_value());
  EXPECT_FALSE(reading(Guard::kCanary).has_value());
  EXPECT_EQ(mode(), kCompacting);
}

TEST_F(GuardMonitorTest, HitRatioHoldsAndSwitchesOff) {
  Run(7, [&] { Units(100, 0.99); });
  EXPECT_EQ(mode(), kCompacting);
  Run(7, [&] { Units(600, 0.90); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kHitRatio);
  EXPECT_EQ(monitor_.decision().ratio_notches, 1);
  EXPECT_FALSE(monitor_.decision().new_jobs);
  Run(9, [&] { Units(600, 0.80); });
  EXPECT_EQ(mode(), kUncompressed);
  EXPECT_EQ(monitor_.decision().guard, Guard::kHitRatio);
  EXPECT_EQ(monitor_.decision().compacted_share, 0.0);
}

TEST_F(GuardMonitorTest, TailOfHitRatioHoldsAndSwitchesOff) {
  Run(7, [&] { UnitsWithTail(0.85); });
  EXPECT_EQ(mode(), kCompacting);
  Run(9, [&] { UnitsWithTail(0.75); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kHitRatioTail);
  Run(11, [&] { UnitsWithTail(0.60); });
  EXPECT_EQ(mode(), kUncompressed);
  EXPECT_EQ(monitor_.decision().guard, Guard::kHitRatioTail);
}

TEST_F(GuardMonitorTest, AddedTimeOnlyHolds) {
  Run(7, [&] { Steps(absl::Microseconds(500)); });
  EXPECT_EQ(mode(), kCompacting);
  Run(7, [&] { Steps(absl::Microseconds(1500)); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kMergeLatency);
  Run(20, [&] { Steps(absl::Milliseconds(50)); });
  EXPECT_EQ(mode(), kHolding);
}

TEST_F(GuardMonitorTest, AddedTimeIsOfWholeCycles) {
  Run(20, [&] {
    for (int i = 0; i < 99; ++i) monitor_.ObserveAdded({.thread_time = absl::Seconds(1)}, now_);
  });
  EXPECT_FALSE(reading(Guard::kMergeLatency).has_value());
  Run(1, [&] { monitor_.ObserveAdded({.cycle_end = true}, now_); });
  ASSERT_TRUE(reading(Guard::kMergeLatency).has_value());
  EXPECT_EQ(reading(Guard::kMergeLatency)->samples, 1);
}

TEST_F(GuardMonitorTest, AWorkerThatOverdrawsHolds) {
  absl::Duration owed;
  Run(7, [&] {
    for (int i = 0; i < 100; ++i) {
      monitor_.ObserveAdded({.owed = owed += absl::Milliseconds(3), .cycle_end = true}, now_);
    }
  });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kMergeLatency);
  EXPECT_NEAR(reading(Guard::kMergeLatency)->value, 0.003, 0.04 * 0.003);
}

TEST_F(GuardMonitorTest, FewLongStepsAmongManyShortOnesAreNotTheirPercentile) {
  Run(20, [&] {
    for (int i = 0; i < 10; ++i) Steps(absl::Microseconds(100));
    Steps(absl::Seconds(1), 1);
  });
  EXPECT_EQ(mode(), kCompacting);
  EXPECT_LT(reading(Guard::kMergeLatency)->value, 0.001);
}

TEST_F(GuardMonitorTest, FluctuationHoldsAndSwitchesOff) {
  Run(7, [&] { Cycle(2000); });
  EXPECT_EQ(mode(), kCompacting);
  Run(9, [&] { Cycle(7000); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kMemoryFluctuation);
  Run(10, [&] { Cycle(20000); });
  EXPECT_EQ(mode(), kUncompressed);
  EXPECT_EQ(monitor_.decision().guard, Guard::kMemoryFluctuation);
}

TEST_F(GuardMonitorTest, WhatRequestsTakeIsNoFluctuation) {
  int64_t used = 100000;
  Run(20, [&] {
    for (int step = 0; step < 8; ++step) {
      used += 20000;
      monitor_.ObserveMemory({.used_bytes = used,
                              .grown_bytes = 20000,
                              .arena_bytes = 4000000,
                              .cycle_end = step % 4 == 3},
                             0.1, now_);
    }
  });
  EXPECT_EQ(mode(), kCompacting);
  EXPECT_EQ(reading(Guard::kMemoryFluctuation)->value, 0.0);
}

TEST_F(GuardMonitorTest, FirstTokenOnlyHolds) {
  Run(7, [&] { FirstTokens(0.02); });
  EXPECT_EQ(mode(), kCompacting);
  Run(40, [&] { FirstTokens(0.11); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kFirstToken);
  Run(40, [&] { FirstTokens(0.50); });
  EXPECT_EQ(mode(), kHolding);
}

TEST_F(GuardMonitorTest, LatenciesOfAllRequestsAreReadWhereTheyAreBound) {
  GuardrailLimits limits;
  BindSlo({.guard = Guard::kTtft, .limit = 2.0, .window = absl::Minutes(1)}, &limits);
  BindSlo({.guard = Guard::kInterToken, .limit = 0.1}, &limits);
  GuardMonitor monitor(limits, now_);
  for (int i = 1; i <= 1000; ++i) {
    monitor.ObserveFirstToken(i % 2 == 0, 100, absl::Milliseconds(i), now_);
    monitor.ObserveNextToken(absl::Microseconds(50 * i), now_);
  }
  monitor.Evaluate(now_ + absl::Seconds(10));
  ASSERT_TRUE(monitor.readings()[Guard::kTtft].has_value());
  EXPECT_NEAR(monitor.readings()[Guard::kTtft]->value, 0.99, 0.04);
  EXPECT_EQ(monitor.readings()[Guard::kTtft]->samples, 1000);
  EXPECT_NEAR(monitor.readings()[Guard::kInterToken]->value, 0.0495, 0.002);
  // Each over its own window, 1 min both.
  monitor.Evaluate(now_ + absl::Seconds(80));
  EXPECT_FALSE(monitor.readings()[Guard::kTtft].has_value());
  EXPECT_FALSE(monitor.readings()[Guard::kInterToken].has_value());
}

TEST_F(GuardMonitorTest, FirstTokensOfOneKindSayNothing) {
  Run(20, [&] {
    for (int i = 0; i < 50; ++i) monitor_.ObserveFirstToken(true, 100, absl::Seconds(9), now_);
  });
  EXPECT_EQ(CountReadings(), 0);
  EXPECT_EQ(mode(), kCompacting);
}

TEST_F(GuardMonitorTest, MemoryLetsTheRatioRiseAndNeverHolds) {
  Run(20, [&] { Cycle(0, 0.80); });
  EXPECT_FALSE(monitor_.decision().ratio_may_rise);
  Run(20, [&] { Cycle(0, 0.95); });
  EXPECT_EQ(mode(), kCompacting);
  EXPECT_TRUE(monitor_.decision().ratio_may_rise);
}

TEST_F(GuardMonitorTest, MemoryIsThePeakOfItsWindow) {
  Run(1, [&] {
    monitor_.ObserveMemory({.used_bytes = 1}, 0.2, now_);
    monitor_.ObserveMemory({.used_bytes = 1}, 0.7, now_);
    monitor_.ObserveMemory({.used_bytes = 1}, 0.3, now_);
  });
  ASSERT_TRUE(reading(Guard::kMemory).has_value());
  EXPECT_EQ(reading(Guard::kMemory)->value, 0.7);
  EXPECT_EQ(reading(Guard::kMemory)->samples, 3);
  EXPECT_FALSE(reading(Guard::kMemory)->upper.has_value());
  Silence(2);
  EXPECT_FALSE(reading(Guard::kMemory).has_value());
}

TEST_F(GuardMonitorTest, TooFewUnitsDecideNothing) {
  Run(20, [&] { Units(4, 0.1); });
  ASSERT_TRUE(reading(Guard::kHitRatio).has_value());
  EXPECT_LT(reading(Guard::kHitRatio)->samples, limits_.hit_ratio.min_samples);
  EXPECT_EQ(mode(), kCompacting);
}

TEST_F(GuardMonitorTest, WindowsEnd) {
  Run(2, [&] { Everything(1.0); });
  EXPECT_EQ(CountReadings(), 6);
  Silence(13);
  EXPECT_EQ(CountReadings(), 1);
  EXPECT_TRUE(reading(Guard::kFirstToken).has_value());
  Silence(30);
  EXPECT_EQ(CountReadings(), 0);
}

TEST_F(GuardMonitorTest, NotANumberIsNoSample) {
  Run(1, [&] {
    Units(100, std::nan(""));
    monitor_.ObserveAdded({.thread_time = absl::InfiniteDuration(), .cycle_end = true}, now_);
  });
  EXPECT_EQ(CountReadings(), 0);
}

TEST_F(GuardMonitorTest, ProbationBeginsWithoutTheEvidenceThatLedThere) {
  Run(8, [&] { Everything(0.5); });
  ASSERT_EQ(mode(), kUncompressed);
  while (mode() == kUncompressed) Run(1, [&] { Everything(0.5); });
  ASSERT_EQ(mode(), kProbation);
  EXPECT_EQ(monitor_.decision().evidence_from, now_);
  Silence(1);
  EXPECT_EQ(CountReadings(), 0);
  Run(1, [&] { Units(40, 1.0); });
  EXPECT_EQ(reading(Guard::kHitRatio)->samples, 40);
  EXPECT_EQ(reading(Guard::kHitRatio)->value, 1.0);
}

TEST_F(GuardMonitorTest, GoodEvidencePassesProbationAndBadEvidenceFailsIt) {
  for (const double hit_ratio : {0.5, 1.0}) {
    monitor_.Force(kProbation, now_);
    monitor_.Release(now_);
    Run(15, [&] { Units(100, hit_ratio); });
    if (hit_ratio == 1.0) {
      EXPECT_EQ(mode(), kCompacting);
    } else {
      EXPECT_GT(monitor_.guardrail().num_transitions(kProbation, kUncompressed), 0);
    }
  }
}

TEST_F(GuardMonitorTest, ForcedProbationForgetsTooAndOtherModesDoNot) {
  Run(1, [&] { Everything(0.97); });
  monitor_.Force(kHolding, now_);
  Silence(1);
  EXPECT_EQ(mode(), kHolding);
  EXPECT_GT(CountReadings(), 0);
  // Half a cycle: its peak belongs to what is forgotten.
  monitor_.ObserveMemory({.used_bytes = 100, .staging_bytes = 900}, 0.1, now_);
  monitor_.Force(kProbation, now_);
  Run(1, [&] { Cycle(0); });
  EXPECT_FALSE(reading(Guard::kHitRatio).has_value());
  EXPECT_EQ(reading(Guard::kMemoryFluctuation)->value, 0.0);
  monitor_.Release(now_);
  EXPECT_EQ(monitor_.decision().reason, GuardrailReason::kReleased);
}

TEST_F(GuardMonitorTest, DriftIsReadAsPerplexityOverTokens) {
  Run(1, [&] {
    monitor_.ObserveDrift(true, 0.01, 10, now_);
    monitor_.ObserveDrift(true, 0.04, 20, now_);
  });
  const std::optional<Reading> drift = reading(Guard::kDrift);
  ASSERT_TRUE(drift.has_value());
  EXPECT_NEAR(drift->value, std::expm1(0.03), 1e-12);
  EXPECT_EQ(drift->samples, 2);
  EXPECT_EQ(CountReadings(), 1);
}

TEST_F(GuardMonitorTest, DriftHoldsAndSwitchesOff) {
  Run(7, [&] { Drifts(8, 0.005); });
  EXPECT_EQ(mode(), kCompacting);
  Run(20, [&] { Drifts(40, 0.016); });
  EXPECT_EQ(mode(), kHolding);
  EXPECT_EQ(monitor_.decision().guard, Guard::kDrift);
  EXPECT_GE(monitor_.decision().ratio_notches, 1);
  Run(20, [&] { Drifts(400, 0.05); });
  EXPECT_GT(monitor_.guardrail().num_transitions(kHolding, kUncompressed), 0);
  EXPECT_EQ(monitor_.decision().guard, Guard::kDrift);
}

TEST_F(GuardMonitorTest, TheDriftOfFewRequestsDecidesNothing) {
  Run(20, [&] {
    if (monitor_.readings()[Guard::kDrift].has_value()) return;
    Drifts(static_cast<int>(limits_.drift.min_samples) - 1, 1.0);
  });
  EXPECT_EQ(reading(Guard::kDrift)->samples, limits_.drift.min_samples - 1);
  EXPECT_EQ(mode(), kCompacting);
}

TEST_F(GuardMonitorTest, CanaryIsTheShareOfFactsFound) {
  Run(1, [&] {
    monitor_.ObserveCanary(1, 1, now_);
    monitor_.ObserveCanary(1, 4, now_);
  });
  const std::optional<Reading> canary = reading(Guard::kCanary);
  ASSERT_TRUE(canary.has_value());
  EXPECT_NEAR(canary->value, 0.4, 1e-12);
  EXPECT_EQ(canary->samples, 2);
  EXPECT_LT(*canary->lower, canary->value);
  EXPECT_GT(*canary->upper, canary->value);
  EXPECT_EQ(CountReadings(), 1);
}

TEST_F(GuardMonitorTest, CanariesHoldAndSwitchOff) {
  Run(7, [&] { Canaries(10, 4); });
  EXPECT_EQ(mode(), kCompacting);
  Run(20, [&] { Canaries(10, 2); });
  EXPECT_GT(monitor_.guardrail().num_transitions(kHolding, kUncompressed), 0);
  EXPECT_EQ(monitor_.decision().guard, Guard::kCanary);
}

TEST_F(GuardMonitorTest, DriftAndCanariesEndWithTheEvidence) {
  Run(1, [&] {
    Drifts(10, 0.001);
    Canaries(10, 4);
  });
  ASSERT_EQ(CountReadings(), 2);
  monitor_.Force(kHolding, now_);
  Silence(1);
  EXPECT_EQ(CountReadings(), 2);
  monitor_.Force(kProbation, now_);
  Silence(1);
  EXPECT_EQ(CountReadings(), 0);
  Run(1, [&] { Drifts(3, 0.002); });
  EXPECT_EQ(reading(Guard::kDrift)->samples, 3);
}

TEST_F(GuardMonitorTest, TheFloorIsApart) {
  EXPECT_FALSE(monitor_.drift_floor(now_).has_value());
  Run(8, [&] {
    for (int i = 0; i < 100; ++i) monitor_.ObserveDrift(false, 0.5, 64, now_);
  });
  EXPECT_EQ(CountReadings(), 0);
  EXPECT_EQ(mode(), kCompacting);
  ASSERT_TRUE(monitor_.drift_floor(now_).has_value());
  EXPECT_NEAR(monitor_.drift_floor(now_)->value, std::expm1(0.5), 1e-9);
  EXPECT_EQ(monitor_.drift_floor(now_)->samples, 800);
  Run(1, [&] { Drifts(2, 0.001); });
  EXPECT_NEAR(reading(Guard::kDrift)->value, 0.001, 1e-5);
  EXPECT_EQ(monitor_.drift_floor(now_)->samples, 800);
  // What is not compacted does not depend on what compaction did.
  monitor_.Force(kProbation, now_);
  EXPECT_EQ(monitor_.drift_floor(now_)->samples, 800);
}

TEST(GuardMonitorDeathTest, LimitsMustBeValid) {
  GuardrailLimits limits;
  limits.hit_ratio.limit = 2.0;
  EXPECT_DEATH(GuardMonitor(limits, absl::UnixEpoch()), "guardrail");
}

}  // namespace
}  // namespace condense
