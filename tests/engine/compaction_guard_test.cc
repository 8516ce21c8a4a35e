// The guard on duty, alone and inside an engine.

#include "engine/compaction_guard.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
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
  limits.evaluation_window = absl::Milliseconds(100);
  limits.warning_windows = limits.limit_windows = 1;
  limits.uncompressed_dwell = limits.max_dwell = absl::Hours(1);
  return limits;
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
