// Engines that measure what compaction costs, while requests come and go.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/gguf.h"
#include "engine/probe/canary_text.h"
#include "engine/probe/fact_words.h"
#include "engine/tokenizer/tokenizer.h"
#include "metrics/metrics.h"
#include "tests/support/engine_harness.h"
#include "tests/support/fault_backend.h"
#include "tests/support/metric_value.h"
#include "tests/support/watched_engine.h"

namespace condense {
namespace {

constexpr int kManyTokens = 3000;
constexpr int kRecorded = 128;

// Every request is probed, and whatever is measured no guardrail speaks.
EngineConfig ProbedConfig() {
  EngineConfig config = CompactingConfig();
  config.guard = true;
  GuardrailLimits& limits = config.guard_limits;
  for (GuardLimit* ceiling :
       {&limits.merge_latency, &limits.memory_fluctuation, &limits.drift, &limits.first_token}) {
    ceiling->warning = 1000;
    ceiling->limit = 2000;
  }
  for (GuardLimit* floor : {&limits.hit_ratio, &limits.hit_ratio_tail, &limits.canary}) {
    floor->warning = 1e-6;
    floor->limit = 0;
  }
  config.probes = {.share = 1.0,
                   .step_share = 0.5,
                   .canary_interval = absl::ZeroDuration(),
                   .floor_interval = absl::ZeroDuration()};
  return config;
}

// An engine over a backend that fails and waits on command.
class ProbedEngineTest : public ::testing::Test {
 protected:
  ~ProbedEngineTest() override { hold_forced_ = false; }

  void Make(EngineConfig config) {
    auto backend =
        std::make_unique<FaultBackend>(MakeBackend({.kind = "cpu", .num_threads = 1}).value());
    faults_ = backend.get();
    faults_->WatchSample([this](const SampleArgs& args) { OnSample(args); });
    engine_ = std::make_unique<WatchedEngine>(std::move(config), std::move(backend), &metrics_);
  }
  WatchedEngine& engine() { return *engine_; }

  double Probes(ProbeKind kind, ProbeOutcome outcome) {
    return metrics_.probes(kind, outcome).value();
  }
  double Quality(const std::string& name, const std::string& kind) {
    return MetricValue(metrics_,
                       "condense_quality_" + name + "{model=\"tiny\",kind=\"" + kind + "\"}");
  }
  void AwaitProbes(ProbeKind kind, ProbeOutcome outcome, double count) {
    engine().Await([&](const EngineLoad&) { return Probes(kind, outcome) >= count; });
  }
  static bool WaitFor(const std::function<bool()>& holds) {
    const absl::Time until = absl::Now() + absl::Seconds(60);
    while (!holds() && absl::Now() < until) absl::SleepFor(absl::Microseconds(100));
    return holds();
  }
  Answer Run(const std::string& id, int prompt, int tokens, const char* preset = "off") {
    return engine().Run(CompactedRequest(id, prompt, tokens, preset));
  }

  // Where a token is forced, in the engine's thread; nothing but probes forces any.
  std::function<void(SampleResult* result)> on_forced_;
  // While held, the engine waits at the first forced token of its step.
  std::atomic<bool> hold_forced_{false};
  std::atomic<bool> forced_waits_{false};
  Metrics metrics_{"tiny"};
  FaultBackend* faults_ = nullptr;
  std::unique_ptr<WatchedEngine> engine_;

 private:
  void OnSample(const SampleArgs& args) {
    for (int32_t i = 0; i < args.rows; ++i) {
      if (args.params[i].target < 0) continue;
      while (hold_forced_) {
        forced_waits_ = true;
        absl::SleepFor(absl::Microseconds(100));
      }
      if (on_forced_) on_forced_(&args.results[i]);
    }
  }
};

TEST_F(ProbedEngineTest, CompactedRequestsAreProbed) {
  Make(ProbedConfig());
  int after = 0;
  EngineLoad last;
  const Answer answer = engine().RunUntil(
      CompactedRequest("r", 640, kManyTokens, "lossless"),
      [&](const EngineLoad& load) {
        return load.swaps.accepted >= static_cast<uint64_t>(kTinyUnits) && ++after == 150;
      },
      &last);
  EXPECT_GT(answer.last.receipt.hit_ratio, 0.5);
  EXPECT_LE(answer.last.receipt.hit_ratio, 1.0);
  AwaitProbes(ProbeKind::kDrift, ProbeOutcome::kDone, 1);
  engine().Settled();
  const double done = Probes(ProbeKind::kDrift, ProbeOutcome::kDone);
  EXPECT_EQ(Quality("probed_tokens_total", "drift"), kRecorded * done);
  EXPECT_EQ(Quality("kl_nats_count", "drift"), done);
  // 8 bits are not 16, and are close to them.
  EXPECT_GT(Quality("kl_nats_sum", "drift"), 0.0);
  EXPECT_LT(Quality("kl_nats_sum", "drift"), 0.02 * done);
  EXPECT_LT(std::abs(Quality("nll_delta_nats_sum", "drift")), 0.05 * done);
  EXPECT_GT(Quality("top1_agreements_total", "drift"), 0.8 * kRecorded * done);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 0);
  EXPECT_GE(metrics_.probe_tokens.value(), 640 + kRecorded - 1);
  EXPECT_GT(metrics_.probe_seconds.value(), 0.0);
}

// Computed again by other steps, in other company, beside what penalties and biases made of them.
TEST_F(ProbedEngineTest, WithoutCompactionTheFloorIsNothing) {
  Make(ProbedConfig());
  for (int i = 1; i <= 4; ++i) {
    Request request = CompactedRequest("r", 50 * i, 20 + 20 * i, i % 2 == 0 ? "off" : "balanced");
    if (i % 2 != 0) request.compression.reset();  // the engine's default is none
    request.sampling.temperature = 0.5f * static_cast<float>(i - 1);
    request.sampling.seed = i;
    request.sampling.repetition_penalty = 1.3f;
    request.sampling.logit_bias = {{7, 5.0f}};
    EXPECT_EQ(engine().Run(request).ids.size(), 20u + 20u * i);
    AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, i);
  }
  engine().Settled();
  EXPECT_EQ(Quality("kl_nats_count", "floor"), 4);
  EXPECT_LE(Quality("kl_nats_sum", "floor"), 4 * 1e-5);
  EXPECT_LE(std::abs(Quality("nll_delta_nats_sum", "floor")), 4 * 1e-5);
  EXPECT_EQ(Quality("probed_tokens_total", "floor"), 40 + 60 + 80 + 100);
  EXPECT_EQ(Quality("top1_agreements_total", "floor"), 40 + 60 + 80 + 100);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 0);
}

TEST_F(ProbedEngineTest, RequestsGetTheSameWithProbesAndWithout) {
  std::vector<Answer> answers[2];
  double probed[2] = {};
  for (const bool probes : {false, true}) {
    EngineConfig config = ProbedConfig();
    if (!probes) config.probes.share = 0.0;
    const double before = metrics_.probe_tokens.value();
    Make(config);
    for (int round = 0; round < 3; ++round) {
      std::vector<std::shared_ptr<TokenStream>> streams;
      for (int i = 1; i <= 4; ++i) {
        Request request = CompactedRequest(std::to_string(i), 60 * i + round, 30 * i, "off");
        request.num_logprobs = i - 1;
        streams.push_back(engine()->Submit(request).value());
      }
      for (const auto& stream : streams) answers[probes].push_back(ReadAll(stream.get()));
    }
    engine().Settled();
    probed[probes] = metrics_.probe_tokens.value() - before;
  }
  EXPECT_EQ(probed[0], 0);
  EXPECT_GT(probed[1], 0);
  for (size_t i = 0; i < answers[0].size(); ++i) {
    EXPECT_EQ(answers[0][i].ids, answers[1][i].ids);
    EXPECT_EQ(answers[0][i].logprobs, answers[1][i].logprobs);  // bit for bit
    EXPECT_EQ(answers[0][i].text, answers[1][i].text);
  }
}

TEST_F(ProbedEngineTest, ARunningRequestsReceiptTellsItsDrift) {
  Make(ProbedConfig());
  EngineLoad last;
  const Answer answer = engine().RunUntil(
      CompactedRequest("r", 100, kManyTokens, "lossless"),
      [&](const EngineLoad&) { return Probes(ProbeKind::kDrift, ProbeOutcome::kDone) > 0; }, &last);
  ASSERT_TRUE(answer.last.receipt.drift.has_value());
  EXPECT_GT(*answer.last.receipt.drift, 0.0);
  EXPECT_LT(*answer.last.receipt.drift, 0.02);
  engine().Settled();
}

// 12 slabs are open: 1536 tokens. A probe of 964 begins while a request holds few, and that request
// comes to need nearly all.
TEST_F(ProbedEngineTest, AProbeMakesRoomForARequestAndIsDropped) {
  EngineConfig config = ProbedConfig();
  config.kv_memory_bytes = 30 * kTinySlabBytes;
  config.compaction.staging_memory_bytes = 4 * kTinySlabBytes;
  config.decode_reserve_tokens = 0;
  Make(config);
  // Held until the second request is there, so that the probe of the first begins beside it.
  std::atomic<bool> ended{false}, submitted{false};
  engine().SetWatch([&](const EngineLoad& load) {
    if (load.running > 0 || ended) return;
    ended = true;
    while (!submitted) absl::SleepFor(absl::Microseconds(50));
  });
  Request first = CompactedRequest("a", 400, kRecorded, "off");
  const auto a = engine()->Submit(first).value();
  engine().Await([&](const EngineLoad&) { return ended.load(); });
  const Request second = CompactedRequest("b", 2000, 500, "off");
  const auto b = engine()->Submit(second).value();
  submitted = true;
  EXPECT_EQ(ReadAll(a.get()).ids.size(), static_cast<size_t>(kRecorded));
  const Answer answer = ReadAll(b.get());
  engine().SetWatch({});
  EXPECT_EQ(answer.ids.size(), 500u);
  EXPECT_EQ(answer.last.usage.preemptions, 0);
  EXPECT_EQ(engine()->load().preemptions, 0u);
  EXPECT_GE(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 1);
  // Probes go on.
  EXPECT_EQ(Run("c", 300, 40).ids.size(), 40u);
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 1);
  engine().Settled();
}

TEST_F(ProbedEngineTest, AStepOfAProbeThatFailsEndsTheProbeAlone) {
  Make(ProbedConfig());
  const Answer good = Run("good", 100, 30);
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 1);
  engine().Settled();
  for (int i = 1; i <= 5; ++i) {
    // The first steps after the request's last one are the probe's.
    engine().SetWatch([&, armed = false](const EngineLoad& load) mutable {
      if (load.running > 0 || armed) return;
      armed = true;
      faults_->FailOp(faults_->num_ops() + 7 * i);
    });
    EXPECT_EQ(Run("r", 100, 30).logprobs, good.logprobs);
    AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDropped, i);
    engine().SetWatch({});
    engine().Settled();
  }
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 5);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 1);
  EXPECT_EQ(metrics_.requests(RequestOutcome::kError).value(), 0);
  static_cast<void>(Run("last", 100, 30));
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 2);
}

// What fails beside a probe fails both, and neither is left behind.
TEST_F(ProbedEngineTest, AStepThatFailsEndsRequestAndProbe) {
  Make(ProbedConfig());
  hold_forced_ = true;
  static_cast<void>(Run("probed", 200, 40));
  ASSERT_TRUE(WaitFor([&] { return forced_waits_.load(); }));
  const auto stream = engine()->Submit(CompactedRequest("r", 50, 500, "off")).value();
  engine().SetWatch([&, armed = false](const EngineLoad&) mutable {
    if (std::exchange(armed, true)) return;
    faults_->FailOp(faults_->num_ops() + 3);
  });
  hold_forced_ = false;
  const Answer failed = ReadAll(stream.get());
  engine().SetWatch({});
  EXPECT_EQ(failed.last.reason, FinishReason::kError);
  EXPECT_TRUE(IsTransient(failed.last.status));
  engine().Settled();
  EXPECT_EQ(Run("next", 100, 30).ids.size(), 30u);
  engine().Settled();
}

TEST_F(ProbedEngineTest, ARequestThatComesWhileAProbeRunsGetsItsAnswer) {
  Make(ProbedConfig());
  const Answer expected = Run("r", 300, 40);
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 1);
  hold_forced_ = true;
  static_cast<void>(Run("probed", 400, 40));
  ASSERT_TRUE(WaitFor([&] { return forced_waits_.load(); }));
  const auto stream = engine()->Submit(CompactedRequest("r", 300, 40, "off")).value();
  hold_forced_ = false;
  const Answer answer = ReadAll(stream.get());
  EXPECT_EQ(answer.ids, expected.ids);
  EXPECT_EQ(answer.logprobs, expected.logprobs);
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 2);
  engine().Settled();
}

TEST_F(ProbedEngineTest, AProbeIsNoWorkThatAnybodyWaitsFor) {
  Make(ProbedConfig());
  hold_forced_ = true;
  static_cast<void>(Run("probed", 300, 40));
  ASSERT_TRUE(WaitFor([&] { return forced_waits_.load(); }));
  EXPECT_TRUE(engine()->idle());
  const EngineLoad load = engine()->load();
  EXPECT_EQ(load.running, 0);
  EXPECT_EQ(load.queued, 0);
  EXPECT_FALSE(load.has_work);
  EXPECT_FALSE(engine()->Abort("probe"));
  engine()->Drain();
  EXPECT_TRUE(engine()->draining());
  EXPECT_TRUE(engine()->idle());
  EXPECT_TRUE(absl::IsUnavailable(engine()->Submit(GreedyRequest("late", {5}, 1)).status()));
  hold_forced_ = false;
  AwaitProbes(ProbeKind::kFloor, ProbeOutcome::kDone, 1);
  EXPECT_EQ(metrics_.generated_tokens.value(), 40);
  EXPECT_EQ(metrics_.prompt_tokens.value(), 300);
  EXPECT_EQ(metrics_.requests_accepted.value(), 1);
  EXPECT_EQ(metrics_.requests(RequestOutcome::kLength).value(), 1);
}

TEST_F(ProbedEngineTest, ADrainingEngineFinishesItsRequestsBesideAProbe) {
  Make(ProbedConfig());
  hold_forced_ = true;
  static_cast<void>(Run("probed", 300, 40));
  ASSERT_TRUE(WaitFor([&] { return forced_waits_.load(); }));
  const auto stream = engine()->Submit(CompactedRequest("r", 100, 60, "off")).value();
  engine()->Drain();
  EXPECT_FALSE(engine()->idle());
  hold_forced_ = false;
  EXPECT_EQ(ReadAll(stream.get()).ids.size(), 60u);
  EXPECT_TRUE(engine()->idle());
}

TEST_F(ProbedEngineTest, TheEngineEndsWhileAProbeRuns) {
  for (const bool beside : {false, true}) {
    forced_waits_ = false;
    Make(ProbedConfig());
    hold_forced_ = true;
    static_cast<void>(Run("probed", 300, 40));
    ASSERT_TRUE(WaitFor([&] { return forced_waits_.load(); }));
    std::shared_ptr<TokenStream> stream;
    if (beside) stream = engine()->Submit(CompactedRequest("r", 100, kManyTokens, "off")).value();
    // The engine's end waits for its thread, which waits for this.
    std::thread release([this] {
      absl::SleepFor(absl::Milliseconds(20));
      hold_forced_ = false;
    });
    engine().Destroy();
    release.join();
    if (!beside) continue;
    EXPECT_EQ(ReadAll(stream.get()).last.reason, FinishReason::kCancelled);
  }
}

EngineConfig CanaryConfig() {
  EngineConfig config = ProbedConfig();
  config.compression = MakeCompression("lossless").value();
  config.probes = {.share = 0.0,
                   .step_share = 0.5,
                   .canary_interval = absl::Milliseconds(100),
                   .canary_tokens = 1000};
  return config;
}

// Random weights know nothing of what the prompt tells.
TEST_F(ProbedEngineTest, CanariesThatTheFullCacheMissesAreUnavailable) {
  Make(CanaryConfig());
  absl::SleepFor(absl::Milliseconds(110));
  EXPECT_EQ(Run("r", 10, 5, "off").ids.size(), 5u);  // an engine that sleeps wakes up later
  AwaitProbes(ProbeKind::kCanary, ProbeOutcome::kUnavailable, 1);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kDone), 0);
  EXPECT_EQ(metrics_.canary_facts_asked.value(), 0);
  engine().Settled();
}

// A model that knows all answers, but one of those that the compacted cache is asked for.
TEST_F(ProbedEngineTest, CanariesCountWhatTheCompactedCacheMisses) {
  std::vector<int64_t> wrong;  // of all forced tokens, one after another
  on_forced_ = [&, count = int64_t{0}](SampleResult* result) mutable {
    const bool miss = std::find(wrong.begin(), wrong.end(), count++) != wrong.end();
    result->top[0].token = miss ? -1 : result->token;
    // However busy the machine is, the worker gets time before the tokens run out.
    absl::SleepFor(absl::Microseconds(500));
  };
  const EngineConfig config = CanaryConfig();
  const auto tokenizer = Tokenizer::Make(*GgufFile::Open(config.model_path).value()).value();
  int64_t begin = 0;
  for (uint64_t seed = 1; seed <= 8; ++seed) {
    const CanaryText text = MakeCanaryText(*tokenizer, config.probes.canary_tokens, seed);
    ASSERT_EQ(text.answers.size(), static_cast<size_t>(kFactsTogether));
    const auto size = static_cast<int64_t>(text.forced.size());
    wrong.push_back(begin + size + text.answers[1].end - 1);  // of the second run
    begin += 2 * size;
  }
  Make(config);
  absl::SleepFor(absl::Milliseconds(110));
  static_cast<void>(Run("r", 10, 5, "off"));
  AwaitProbes(ProbeKind::kCanary, ProbeOutcome::kDone, 1);
  engine()->PauseCompaction(true);  // no more of them
  engine().Settled();
  const double done = Probes(ProbeKind::kCanary, ProbeOutcome::kDone);
  EXPECT_EQ(metrics_.canary_facts_asked.value(), kFactsTogether * done);
  EXPECT_EQ(metrics_.canary_facts_found.value(), (kFactsTogether - 1) * done);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kUnavailable), 0);
}

TEST_F(ProbedEngineTest, WithoutAGuardNothingIsProbed) {
  EngineConfig config = ProbedConfig();
  config.guard = false;
  Make(config);
  static_cast<void>(Run("r", 100, 30));
  engine().Settled();
  static_cast<void>(Run("s", 100, 30));
  engine().Settled();
  EXPECT_EQ(metrics_.probe_tokens.value(), 0);
}

}  // namespace
}  // namespace condense
