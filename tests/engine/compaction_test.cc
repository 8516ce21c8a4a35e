// Requests whose cache is compacted while they run: what they get, what they hold, how they end.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "metrics/metrics.h"
#include "tests/support/engine_harness.h"
#include "tests/support/fault_backend.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr int kManyTokens = 2500;

bool AllUnitsSwapped(const EngineLoad& load) {
  return load.swaps.accepted >= static_cast<uint64_t>(kTinyUnits);
}

void ExpectFinite(const Answer& answer) {
  for (const float logprob : answer.logprobs) ASSERT_TRUE(std::isfinite(logprob));
}

EngineConfig PlainConfig() {
  EngineConfig config = CompactingConfig();
  config.compaction.enabled = false;
  config.poison_freed_kv = false;
  return config;
}

// What an engine that knows nothing of compaction answers.
Answer PlainAnswer(Request request) {
  request.compression.reset();
  WatchedEngine engine(PlainConfig());
  return engine.Run(std::move(request));
}

TEST(CompactionTest, OffEqualsAnEngineWithoutCompaction) {
  WatchedEngine engine(CompactingConfig());
  for (const int prompt : {5, 640}) {
    Request request = CompactedRequest("r", prompt, 40, "off");
    request.sampling.temperature = 1.0f;
    request.sampling.seed = 7;
    const Answer answer = engine.Run(request);
    const Answer plain = PlainAnswer(request);
    EXPECT_EQ(answer.ids, plain.ids);
    EXPECT_EQ(answer.logprobs, plain.logprobs);  // bit for bit
    EXPECT_EQ(answer.ids.size(), 40u);
  }
  EXPECT_EQ(engine.Settled().swaps.accepted, 0u);
}

TEST(CompactionTest, LosslessIsClose) {
  WatchedEngine engine(CompactingConfig());
  Request request = CompactedRequest("r", 640, kManyTokens, "lossless");
  // The same tokens whatever the logits; their logprobs are those of the logits.
  request.sampling.logit_bias = {{7, 1e6f}};
  int after = 0;
  EngineLoad last;
  const Answer answer = engine.RunUntil(
      request, [&](const EngineLoad& load) { return AllUnitsSwapped(load) && ++after == 20; },
      &last);
  EXPECT_EQ(answer.last.receipt.policy, "none");
  EXPECT_GE(answer.last.receipt.swaps_accepted, kTinyUnits);
  request.stop.max_tokens = static_cast<int32_t>(answer.ids.size());
  const Answer plain = PlainAnswer(request);
  ASSERT_EQ(answer.ids, plain.ids);
  EXPECT_NE(answer.logprobs, plain.logprobs);  // the compacted cache has been read
  float most = 0.0f;
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    most = std::max(most, std::abs(answer.logprobs[i] - plain.logprobs[i]));
  }
  EXPECT_LT(most, 0.08f);
}

TEST(CompactionTest, AReceiptAgreesWithTheBooksToTheByte) {
  WatchedEngine engine(CompactingConfig());
  EngineLoad last;
  const Answer answer = engine.RunUntil(
      CompactedRequest("r", 640, kManyTokens, "balanced"),
      [](const EngineLoad& load) {
        return AllUnitsSwapped(load) && load.kv_bytes_16bit > 1.5 * load.kv_bytes_used;
      },
      &last);
  ExpectFinite(answer);
  const Receipt& receipt = answer.last.receipt;
  EXPECT_EQ(receipt.preset, "balanced");
  EXPECT_EQ(receipt.policy, "balanced");
  EXPECT_EQ(receipt.bytes_held, last.kv_bytes_used);
  EXPECT_EQ(receipt.bytes_16bit, last.kv_bytes_16bit);
  EXPECT_EQ(receipt.logical_tokens, last.logical_tokens);
  EXPECT_GT(receipt.ratio, 1.5);
  EXPECT_LE(receipt.entries_held, kTinyUnits * receipt.logical_tokens);
  EXPECT_EQ(receipt.swaps_accepted, static_cast<int64_t>(last.swaps.accepted));
  EXPECT_EQ(receipt.swaps_refused, static_cast<int64_t>(last.swaps.refused));
  EXPECT_GT(receipt.max_output_error, 0.0);
  EXPECT_LE(receipt.max_output_error, MakeCompression("balanced")->max_output_error);
  engine.Settled();
}

TEST(CompactionTest, MetricsAgreeWithTheReceiptAndTheBooks) {
  Metrics metrics("tiny");
  WatchedEngine engine(CompactingConfig(), nullptr, &metrics);
  engine.Run(CompactedRequest("off", 100, 5, "off"));
  EngineLoad last;
  double physical = 0;
  const Receipt receipt =
      engine
          .RunUntil(
              CompactedRequest("r", 640, kManyTokens, "balanced"),
              [&](const EngineLoad& load) {
                physical = metrics.kv_tokens_physical.value();
                return AllUnitsSwapped(load) && load.kv_bytes_16bit > 1.5 * load.kv_bytes_used;
              },
              &last)
          .last.receipt;
  engine.Settled();
  EXPECT_EQ(physical, static_cast<double>(receipt.entries_held) / kTinyUnits);
  EXPECT_LT(physical, static_cast<double>(receipt.logical_tokens));
  EXPECT_EQ(metrics.kv_tokens_physical.value(), 0);
  const auto value = [text = metrics.Serialize()](const std::string& name) {
    const std::string begin = "condense_" + name + "{model=\"tiny\"} ";
    const size_t at = text.find("\n" + begin);
    EXPECT_NE(at, std::string::npos) << name;
    return std::stod(text.substr(at + 1 + begin.size()));
  };
  EXPECT_EQ(value("request_kv_ratio_count"), 1);  // not of the one with preset off
  EXPECT_NEAR(value("request_kv_ratio_sum"), receipt.ratio, 1e-6 * receipt.ratio);
  EXPECT_EQ(value("compaction_log_mass_error_count"), value("compaction_hit_ratio_count"));
  EXPECT_GT(value("compaction_log_mass_error_sum"), 0);
  const double steps = metrics.steps.value();
  EXPECT_EQ(metrics.kv_held_samples.value(), steps);
  const double mean = metrics.kv_held_mib.value() / steps;
  EXPECT_GT(mean, 0);
  EXPECT_LT(mean, static_cast<double>(last.kv_bytes_total) / (1 << 20));
  EXPECT_GT(metrics.kv_held_mib_squares.value() / steps, mean * mean);
}

TEST(CompactionTest, PresetsRunSideBySide) {
  WatchedEngine engine(CompactingConfig());
  const std::vector<std::string> presets = {"off", "lossless", "light", "balanced", "aggressive"};
  std::vector<std::shared_ptr<TokenStream>> streams;
  const auto request = [&](const std::string& preset) {
    return CompactedRequest(preset, 600, 200, preset);
  };
  for (const std::string& preset : presets) {
    streams.push_back(engine->Submit(request(preset)).value());
  }
  for (size_t i = 0; i < presets.size(); ++i) {
    SCOPED_TRACE(presets[i]);
    const Answer answer = ReadAll(streams[i].get());
    ExpectFinite(answer);
    EXPECT_EQ(answer.last.reason, FinishReason::kLength);
    EXPECT_EQ(answer.ids.size(), 200u);
    const Receipt& receipt = answer.last.receipt;
    EXPECT_EQ(receipt.preset, presets[i]);
    EXPECT_EQ(receipt.logical_tokens, 799);
    if (presets[i] != "off") {
      EXPECT_LE(receipt.bytes_held, receipt.bytes_16bit);
      continue;
    }
    const Answer plain = PlainAnswer(request("off"));
    EXPECT_EQ(answer.ids, plain.ids);
    EXPECT_EQ(answer.logprobs, plain.logprobs);
    EXPECT_EQ(receipt.swaps_accepted, 0);
    EXPECT_EQ(receipt.bytes_held, receipt.bytes_16bit);
  }
  EXPECT_GT(engine.Settled().swaps.accepted, 0u);
}

TEST(CompactionTest, WhilePausedNothingIsCompacted) {
  WatchedEngine engine(CompactingConfig());
  engine->PauseCompaction(true);
  const Request request = CompactedRequest("r", 640, 40, "balanced");
  const Answer paused = engine.Run(request);
  EXPECT_EQ(paused.logprobs, PlainAnswer(request).logprobs);
  EXPECT_EQ(paused.last.receipt.ratio, 1.0);
  const EngineLoad load = engine.Settled();
  EXPECT_EQ(load.swaps.accepted + load.swaps.refused + load.swaps.useless, 0u);

  // A request resumes where it is.
  engine->PauseCompaction(true);
  int steps = 0;
  EngineLoad last;
  const Answer resumed = engine.RunUntil(
      CompactedRequest("s", 640, kManyTokens, "balanced"),
      [&](const EngineLoad& now) {
        if (++steps == 20) {
          EXPECT_EQ(now.swaps.accepted, 0u);
          EXPECT_EQ(now.jobs_out, 0);
          engine->PauseCompaction(false);
        }
        return AllUnitsSwapped(now);
      },
      &last);
  EXPECT_GT(steps, 20);
  EXPECT_GE(resumed.last.receipt.swaps_accepted, kTinyUnits);
  engine.Settled();
}

TEST(CompactionTest, AnEngineWithoutCompactionRefusesIt) {
  WatchedEngine engine(PlainConfig());
  const absl::Status status = engine->Submit(CompactedRequest("r", 10, 1, "balanced")).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"balanced\""));
  EXPECT_EQ(engine->SetCompression(MakeCompression("light").value()).code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(engine.Run(CompactedRequest("s", 10, 3, "off")).ids.size(), 3u);
}

TEST(CompactionTest, APreemptedCompactedRequestFinishes) {
  EngineConfig config = CompactingConfig();
  config.kv_memory_bytes = 16 * kTinySlabBytes;
  config.compaction.staging_memory_bytes = 4 * kTinySlabBytes;  // 12 slabs are left: 1536 tokens
  config.decode_reserve_tokens = 0;
  WatchedEngine engine(config);
  // Compacted, then compaction is paused: only a preemption makes room for the second.
  std::atomic<bool> compacted{false};
  std::atomic<bool> submitted{false};
  engine.SetWatch([&](const EngineLoad& load) {
    if (!compacted && AllUnitsSwapped(load) && load.jobs_out == 0) {
      engine->PauseCompaction(true);
      compacted = true;
      while (!submitted) absl::SleepFor(absl::Microseconds(50));
    }
  });
  Request first = CompactedRequest("a", 640, 800, "balanced");
  first.priority = -1;
  const auto a = engine->Submit(first).value();
  engine.Await([&](const EngineLoad&) { return compacted.load(); });
  const auto b = engine->Submit(CompactedRequest("b", 500, 1000, "balanced")).value();
  submitted = true;
  const Answer preempted = ReadAll(a.get());
  const Answer other = ReadAll(b.get());
  engine.SetWatch({});
  EXPECT_GT(preempted.last.usage.preemptions, 0);
  for (const Answer* answer : {&preempted, &other}) {
    ExpectFinite(*answer);
    EXPECT_EQ(answer->last.reason, FinishReason::kLength);
  }
  EXPECT_EQ(preempted.ids.size(), 800u);
  EXPECT_EQ(other.ids.size(), 1000u);
  EXPECT_EQ(preempted.last.receipt.ratio, 1.0);  // computed again, and compaction was paused
  engine.Settled();
}

// Two prompts fit in 16 bits, what they generate does not: 11 slabs are open, 1408 tokens.
constexpr int64_t kOpenTokens = 1408;
EngineConfig PressureConfig() {
  EngineConfig config = CompactingConfig();
  config.kv_memory_bytes = 14 * kTinySlabBytes;
  config.compaction.staging_memory_bytes = 3 * kTinySlabBytes;
  config.decode_reserve_tokens = 0;
  return config;
}

EngineLoad RunTwoUnderPressure(WatchedEngine* engine, std::string_view preset,
                               const std::function<void()>& submitted) {
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (const char* id : {"a", "b"}) {
    streams.push_back(engine->get()->Submit(CompactedRequest(id, 640, 300, preset)).value());
  }
  submitted();
  for (const auto& stream : streams) {
    const Answer answer = ReadAll(stream.get());
    ExpectFinite(answer);
    EXPECT_EQ(answer.last.reason, FinishReason::kLength);
    EXPECT_EQ(answer.ids.size(), 300u);
  }
  return engine->Settled();
}

TEST(CompactionTest, WhatDoesNotFitInSixteenBitsPreempts) {
  WatchedEngine engine(PressureConfig());
  EXPECT_GT(RunTwoUnderPressure(&engine, "off", [] {}).preemptions, 0u);
}

TEST(CompactionTest, WhoLacksRoomWaitsForJobsThatAreOut) {
  Metrics metrics("tiny");
  auto backend =
      std::make_unique<FaultBackend>(MakeBackend({.kind = "cpu", .num_threads = 1}).value());
  FaultBackend* const faults = backend.get();
  WatchedEngine engine(PressureConfig(), std::move(backend), &metrics);
  faults->HoldWorkerOps(true);
  const EngineLoad load = RunTwoUnderPressure(&engine, "balanced", [&] {
    // All memory is in use and nothing has come back: both wait.
    const EngineLoad full =
        engine.Await([](const EngineLoad& l) { return l.logical_tokens == kOpenTokens; });
    EXPECT_EQ(full.jobs_out, 2 * kTinyUnits);
    EXPECT_EQ(full.swaps.accepted, 0u);
    faults->HoldWorkerOps(false);
  });
  EXPECT_GT(load.swaps.accepted, 0u);
  EXPECT_EQ(metrics.preemptions.value(), static_cast<double>(load.preemptions));
  // Where the machine lets the worker stand still for SchedulerOptions::longest_idle, they preempt.
  EXPECT_TRUE(load.preemptions > 0 || metrics.preemptions_avoided.value() == 2.0);
}

}  // namespace
}  // namespace condense
