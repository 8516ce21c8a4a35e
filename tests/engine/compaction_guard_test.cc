// The guard on duty, alone and inside an engine.

#include "engine/compaction_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "engine/steady_now.h"
#include "metrics/metrics.h"
#include "tests/support/engine_harness.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

class CompactionGuardTest : public ::testing::Test {
 protected:
  void Force(std::optional<GuardrailMode> mode) {
    control_.Force(mode);
    guard_.Judge();
  }
  int CountAdmitted(int requests) {
    int admitted = 0;
    for (int i = 0; i < requests; ++i) admitted += guard_.AdmitsNext();
    return admitted;
  }

  CompressionControl control_{MakeCompression("balanced").value()};
  Metrics metrics_{"tiny"};
  CompactionGuard guard_{GuardrailLimits(), 8, &control_, &metrics_};
};

TEST_F(CompactionGuardTest, BeginsByCompactingAndSaysSo) {
  EXPECT_STREQ(control_.mode(), "compacting");
  EXPECT_EQ(control_.reason(), "nothing has been measured yet");
  EXPECT_EQ(CountAdmitted(100), 100);
  EXPECT_FALSE(guard_.HoldsJobs(false));
  EXPECT_EQ(guard_.ratio_notches(), 0);
}

TEST_F(CompactionGuardTest, HoldingYieldsToMemoryThatRunsOut) {
  Force(GuardrailMode::kHolding);
  EXPECT_EQ(CountAdmitted(100), 100);
  EXPECT_TRUE(guard_.HoldsJobs(false));
  EXPECT_FALSE(guard_.HoldsJobs(true));
}

TEST_F(CompactionGuardTest, UncompressedYieldsToNothing) {
  Force(GuardrailMode::kUncompressed);
  EXPECT_EQ(CountAdmitted(100), 0);
  EXPECT_TRUE(guard_.HoldsJobs(false));
  EXPECT_TRUE(guard_.HoldsJobs(true));
}

TEST_F(CompactionGuardTest, ProbationAdmitsATenthAtALowerRatio) {
  Force(GuardrailMode::kProbation);
  const int admitted = CountAdmitted(1000);
  EXPECT_GT(admitted, 60);
  EXPECT_LT(admitted, 140);
  EXPECT_FALSE(guard_.HoldsJobs(false));
  EXPECT_EQ(guard_.ratio_notches(), 1);
}

TEST_F(CompactionGuardTest, AnOperatorsModeIsToldAtOnceAndKeptWhenReleased) {
  control_.Force(GuardrailMode::kHolding);
  EXPECT_STREQ(control_.mode(), "holding");
  const std::string reason = control_.reason();
  guard_.Judge();
  EXPECT_STREQ(control_.mode(), "holding");
  EXPECT_EQ(control_.reason(), reason);
  Force(std::nullopt);
  EXPECT_STREQ(control_.mode(), "holding");
  EXPECT_EQ(control_.reason(), "an operator released the mode");
}

TEST_F(CompactionGuardTest, APauseStopsWhatTheGuardAllows) {
  control_.Pause(true);
  EXPECT_STREQ(control_.mode(), "holding");
  Force(GuardrailMode::kUncompressed);
  EXPECT_STREQ(control_.mode(), "uncompressed");
  Force(GuardrailMode::kCompacting);
  control_.Pause(false);
  EXPECT_STREQ(control_.mode(), "compacting");
}

TEST_F(CompactionGuardTest, WhatIsTakenBackBeforeAStepNeverWas) {
  control_.Force(GuardrailMode::kUncompressed);
  control_.Force(std::nullopt);
  guard_.Judge();
  EXPECT_STREQ(control_.mode(), "compacting");
  EXPECT_EQ(control_.reason(), "nothing has been measured yet");
}

TEST_F(CompactionGuardTest, TransitionsAreCountedAndTheModeShown) {
  const auto count = [this](GuardMode to) {
    return metrics_.guard_transitions(to, TransitionReason::kForced).value();
  };
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("condense_guard_mode{model=\"tiny\",mode=\"compacting\"} 1\n"));
  Force(GuardrailMode::kHolding);
  Force(GuardrailMode::kUncompressed);
  guard_.Judge();
  EXPECT_EQ(count(GuardMode::kHolding), 1);
  EXPECT_EQ(count(GuardMode::kUncompressed), 1);
  EXPECT_EQ(count(GuardMode::kProbation), 0);
  EXPECT_THAT(metrics_.Serialize(),
              HasSubstr("condense_guard_mode{model=\"tiny\",mode=\"uncompressed\"} 1\n"));
}

TEST(GuardReadingsTest, AreToldAfterEachWindowToOthersAndInMetrics) {
  GuardrailLimits limits;
  limits.evaluation_window = absl::Milliseconds(100);
  CompressionControl control{MakeCompression("balanced").value()};
  Metrics metrics{"tiny"};
  CompactionGuard guard(limits, 8, &control, &metrics);
  const auto report = [&control](Guard asked) {
    return control.reports()[static_cast<size_t>(asked)];
  };
  for (int step = 0; step < 8; ++step) {  // a cycle
    guard.Stepped(absl::Milliseconds(3), absl::ZeroDuration());
  }
  EXPECT_FALSE(report(Guard::kMergeLatency).reading.has_value());
  absl::SleepFor(limits.evaluation_window + absl::Milliseconds(1));
  guard.Judge();
  ASSERT_TRUE(report(Guard::kMergeLatency).reading.has_value());
  EXPECT_EQ(report(Guard::kMergeLatency).reading->samples, 1);
  EXPECT_EQ(report(Guard::kMergeLatency).reading->value, 0.003);
  EXPECT_EQ(report(Guard::kMergeLatency).level, GuardLevel::kClear);
  EXPECT_FALSE(report(Guard::kHitRatio).reading.has_value());
  EXPECT_EQ(metrics.guard_reading(GuardMetric::kMergeLatency).value(), 0.003);
  EXPECT_EQ(metrics.guard_samples(GuardMetric::kMergeLatency).value(), 1);
}

// One bad evaluation window switches off.
GuardrailLimits Hasty(GuardrailLimits limits) {
  limits.evaluation_window = absl::Milliseconds(100);
  limits.warning_windows = limits.limit_windows = 1;
  limits.uncompressed_dwell = limits.max_dwell = absl::Hours(1);
  return limits;
}

class RebuildsTest : public ::testing::Test {
 protected:
  // Whether one is rebuilt that lost much, and one that drifted much.
  bool RebuildsAny() const {
    return guard_.Rebuilds(0.1, std::nullopt) || guard_.Rebuilds(1.0, 1.0);
  }
  void JudgeWindow() {
    const absl::Time until = SteadyNow() + absl::Milliseconds(100);
    while (SteadyNow() < until) absl::SleepFor(absl::Milliseconds(5));
    guard_.Judge();
  }

  CompressionControl control_{MakeCompression("balanced").value()};
  CompactionGuard guard_{Hasty(GuardrailLimits()), 3, &control_, nullptr};
};

TEST_F(RebuildsTest, WhoLostTooMuchWhereQualityBrokeALimit) {
  EXPECT_FALSE(RebuildsAny());
  for (int i = 0; i < 10; ++i) guard_.Canary(0, 4);
  EXPECT_FALSE(RebuildsAny());
  JudgeWindow();
  ASSERT_EQ(guard_.mode(), GuardrailMode::kUncompressed);
  const GuardrailLimits limits;
  struct {
    double hit_ratio;
    std::optional<double> drift;  // of perplexity
    bool rebuilt;
  } const cases[] = {{1.0, std::nullopt, false},
                     {limits.hit_ratio.limit, std::nullopt, false},  // at the limit is not beyond
                     {limits.hit_ratio.limit - 1e-9, std::nullopt, true},
                     {0.0, std::nullopt, true},
                     {0.0, 0.0, true},
                     {1.0, 0.0, false},
                     {1.0, limits.drift.limit - 1e-6, false},
                     {1.0, limits.drift.limit + 1e-6, true},
                     {limits.hit_ratio.warning - 0.01, limits.drift.warning + 1e-3, false},
                     {0.5, 1.0, true}};
  for (const auto& [hit_ratio, drift, rebuilt] : cases) {
    std::optional<double> nats;
    if (drift.has_value()) nats = std::log1p(*drift);
    EXPECT_EQ(guard_.Rebuilds(hit_ratio, nats), rebuilt)
        << hit_ratio << " " << drift.value_or(-1.0);
  }
}

TEST_F(RebuildsTest, NobodyInAnyForcedMode) {
  for (int i = 0; i < kNumGuardrailModes; ++i) {
    control_.Force(static_cast<GuardrailMode>(i));
    guard_.Judge();
    EXPECT_FALSE(RebuildsAny()) << GuardrailModeName(guard_.mode());
  }
}

// Memory is no better for it.
TEST_F(RebuildsTest, NobodyWhereMemoryBrokeALimit) {
  KvCacheStats low, high;
  low.arena_bytes = high.arena_bytes = 100000;
  low.used_bytes = 1000;
  high.used_bytes = 50000;
  for (int i = 0; i < 10; ++i) {
    guard_.Turned(low, low);
    guard_.Turned(low, high);
    guard_.Turned(high, low);
  }
  JudgeWindow();
  ASSERT_EQ(guard_.mode(), GuardrailMode::kUncompressed);
  EXPECT_FALSE(RebuildsAny());
}

TEST_F(RebuildsTest, NobodyWhileAWarningHolds) {
  for (int i = 0; i < 400; ++i) guard_.Drift(true, std::log1p(0.015), 64);
  JudgeWindow();
  ASSERT_EQ(guard_.mode(), GuardrailMode::kHolding);
  EXPECT_FALSE(RebuildsAny());
}

TEST(GuardMetricsTest, ProbesAreReadByTheNextWindow) {
  CompressionControl control(MakeCompression("balanced").value());
  Metrics metrics("tiny");
  CompactionGuard guard(Hasty(GuardrailLimits()), 8, &control, &metrics);
  guard.Drift(true, std::log1p(0.001), 64);
  guard.Drift(true, std::log1p(0.001), 64);
  guard.Drift(false, std::log1p(0.25), 64);
  guard.Canary(3, 4);
  absl::SleepFor(absl::Milliseconds(110));
  guard.Judge();
  EXPECT_NEAR(metrics.guard_reading(GuardMetric::kDrift).value(), 0.001, 1e-9);
  EXPECT_EQ(metrics.guard_samples(GuardMetric::kDrift).value(), 2);
  EXPECT_EQ(metrics.guard_reading(GuardMetric::kCanary).value(), 0.75);
  EXPECT_EQ(metrics.guard_samples(GuardMetric::kCanary).value(), 1);
  EXPECT_NEAR(metrics.drift_floor.value(), 0.25, 1e-9);
}

TEST(GuardMetricsTest, LabelsAreTheNamesOfTheGuardrails) {
  Metrics metrics("tiny");
  const auto has = [&metrics](const std::string& name, const std::string& label, int value) {
    EXPECT_THAT(metrics.Serialize(), HasSubstr("condense_guard_" + name + "=\"" + label + "\"} " +
                                               std::to_string(value) + "\n"));
  };
  for (int i = 0; i < kNumGuards; ++i) {
    metrics.guard_samples(static_cast<GuardMetric>(i)).Set(i + 1);
    has("samples{model=\"tiny\",guard", TraitsOf(static_cast<Guard>(i)).label, i + 1);
  }
  for (int i = 0; i < kNumGuardrailModes; ++i) {
    metrics.SetGuardMode(static_cast<GuardMode>(i));
    has("mode{model=\"tiny\",mode", GuardrailModeName(static_cast<GuardrailMode>(i)), 1);
  }
}

EngineConfig GuardedConfig() {
  EngineConfig config = CompactingConfig();
  config.compression = MakeCompression("balanced").value();  // else the mode is no news
  config.guard = true;
  // Prompts are compacted while little else is in memory: that is not what is tested here.
  config.guard_limits.memory_fluctuation.warning = 1000;
  config.guard_limits.memory_fluctuation.limit = 2000;
  // Nor is how busy the machine is.
  config.guard_limits.merge_latency.warning = 1000;
  config.guard_limits.merge_latency.limit = 2000;
  return config;
}

// No compaction is so good.
GuardrailLimits ImpossibleHitRatio(GuardrailLimits limits) {
  limits.hit_ratio = {
      .warning = 0.999999, .limit = 0.99999, .min_samples = 4, .window = absl::Minutes(1)};
  return Hasty(limits);
}

TEST(GuardedEngineTest, ABrokenLimitLeavesNewRequestsUncompressed) {
  EngineConfig config = GuardedConfig();
  config.guard_limits = ImpossibleHitRatio(config.guard_limits);
  WatchedEngine engine(config);
  const absl::Time until = absl::Now() + absl::Seconds(60);
  int requests = 0;
  while (engine->load().compaction_mode != "uncompressed" && absl::Now() < until) {
    engine.Run(CompactedRequest(std::to_string(requests++), 640, 60, "balanced"));
  }
  EXPECT_THAT(engine->load().compaction_reason, HasSubstr("hit ratio"));
  const Answer after = engine.Run(CompactedRequest("after", 640, 60, "balanced"));
  EXPECT_EQ(after.last.receipt.mode, "uncompressed");
  EXPECT_EQ(after.last.receipt.ratio, 1.0);
  EXPECT_EQ(after.last.receipt.swaps_accepted + after.last.receipt.swaps_refused, 0);
  engine.Settled();
}

// It comes back with all its tokens on an uncompressed cache, and goes on.
TEST(GuardedEngineTest, ABrokenLimitRebuildsARunningRequest) {
  EngineConfig config = GuardedConfig();
  config.guard_limits = ImpossibleHitRatio(config.guard_limits);
  Metrics metrics("tiny");
  WatchedEngine engine(config, nullptr, &metrics);
  EngineLoad last;
  int after = 0;
  const Answer answer = engine.RunUntil(
      CompactedRequest("r", 640, 3000, "balanced"),
      [&](const EngineLoad&) {
        // So that an evaluation window passes before the tokens run out.
        absl::SleepFor(absl::Microseconds(500));
        return metrics.rebuilds.value() > 0 && ++after == 20;
      },
      &last);
  EXPECT_EQ(metrics.rebuilds.value(), 1);  // there is nothing more to win
  EXPECT_EQ(answer.last.usage.preemptions, 1);
  EXPECT_EQ(last.preemptions, 0u);  // nobody needed its room
  EXPECT_EQ(answer.last.receipt.mode, "uncompressed");
  EXPECT_EQ(answer.last.receipt.ratio, 1.0);
  EXPECT_EQ(answer.last.receipt.logical_tokens, 640 + static_cast<int64_t>(answer.ids.size()) - 1);
  for (const float logprob : answer.logprobs) ASSERT_TRUE(std::isfinite(logprob));
  engine.Settled();
}

TEST(GuardedEngineTest, ForcedModesHoldForRunningRequestsToo) {
  WatchedEngine engine(GuardedConfig());
  for (const GuardrailMode mode : {GuardrailMode::kHolding, GuardrailMode::kUncompressed}) {
    ASSERT_TRUE(engine->ForceMode(mode).ok());
    EXPECT_EQ(engine->load().compaction_mode, GuardrailModeName(mode));
    EXPECT_THAT(engine->load().compaction_reason, StartsWith("an operator forced"));
    const Answer answer = engine.Run(CompactedRequest("r", 640, 60, "balanced"));
    EXPECT_EQ(answer.last.receipt.mode, GuardrailModeName(mode));
    EXPECT_EQ(answer.last.receipt.ratio, 1.0);
  }
  EXPECT_EQ(engine.Settled().swaps.accepted, 0u);
  // A request goes on where it is.
  ASSERT_TRUE(engine->ForceMode(GuardrailMode::kHolding).ok());
  int steps = 0;
  EngineLoad last;
  engine.RunUntil(
      CompactedRequest("s", 640, 2500, "balanced"),
      [&](const EngineLoad& load) {
        if (++steps == 20) {
          EXPECT_EQ(load.swaps.accepted, 0u);
          EXPECT_TRUE(engine->ForceMode(GuardrailMode::kCompacting).ok());
        }
        return load.swaps.accepted >= static_cast<uint64_t>(kTinyUnits);
      },
      &last);
  EXPECT_GT(steps, 20);
  engine.Settled();
}

// 15 slabs are open, 1920 tokens in 16 bits: two prompts fit, what they generate does not. From the
// last slab on the arena is filled beyond the hard limit.
EngineLoad RunOutOfMemory(GuardrailMode mode) {
  EngineConfig config = GuardedConfig();
  config.kv_memory_bytes = 16 * kTinySlabBytes;
  config.compaction.staging_memory_bytes = kTinySlabBytes;
  config.decode_reserve_tokens = 0;
  WatchedEngine engine(config);
  EXPECT_TRUE(engine->ForceMode(mode).ok());
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* id : {"a", "b"}) {
    streams.push_back(engine->Submit(CompactedRequest(id, 640, 400, "balanced")).value());
  }
  for (const auto& stream : streams) {
    EXPECT_EQ(ReadAll(stream.get()).last.reason, FinishReason::kLength);
  }
  return engine.Settled();
}

TEST(GuardedEngineTest, MemoryThatRunsOutIsCompactedForAllHolding) {
  EXPECT_GT(RunOutOfMemory(GuardrailMode::kHolding).swaps.accepted, 0u);
}

TEST(GuardedEngineTest, MemoryThatRunsOutPreemptsWhereNothingIsCompacted) {
  const EngineLoad load = RunOutOfMemory(GuardrailMode::kUncompressed);
  EXPECT_EQ(load.swaps.accepted, 0u);
  EXPECT_GT(load.preemptions, 0u);
}

TEST(GuardedEngineTest, WithoutAGuardNoModeIsForced) {
  WatchedEngine engine(CompactingConfig());
  EXPECT_TRUE(absl::IsFailedPrecondition(engine->ForceMode(GuardrailMode::kHolding)));
  EXPECT_TRUE(absl::IsFailedPrecondition(engine->ForceMode(std::nullopt)));
  EXPECT_EQ(engine->load().compaction_reason, "");
}

}  // namespace
}  // namespace condense
