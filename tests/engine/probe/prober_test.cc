// The prober alone, with sequences played by hand. Those that are compacted: probed_engine_test.

#include "engine/probe/prober.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "engine/steady_now.h"
#include "engine/tokenizer/tokenizer.h"
#include "metrics/metrics.h"
#include "tests/support/metric_value.h"

namespace condense {
namespace {

constexpr int kVocab = 128;
constexpr int kHead = 20;
constexpr int kRecorded = 128;

// Tokens are bytes.
class ByteTokenizer : public Tokenizer {
 public:
  ByteTokenizer() { vocab_size_ = kVocab; }
  std::vector<TokenId> Encode(std::string_view text, const EncodeOptions&) const override {
    return {text.begin(), text.end()};
  }
  std::string TokenBytes(TokenId token, bool) const override {
    return std::string(1, static_cast<char>(token));
  }
  std::string Decode(const std::vector<TokenId>& tokens, bool) const override {
    return {tokens.begin(), tokens.end()};
  }
  std::optional<TokenId> Find(std::string_view) const override { return std::nullopt; }
};

// One distribution for every token of a sequence.
struct Model {
  float best = -0.1f;  // logprob of the likeliest token
  float rest = -5.0f;  // of every other one
  TokenId top1 = -1;   // the likeliest token; -1: the one that is chosen
};

class ProberTest : public ::testing::Test {
 protected:
  ProberTest() {
    options_ = {.share = 1.0,
                .canary_interval = absl::ZeroDuration(),
                .floor_interval = absl::ZeroDuration()};
  }

  Prober& prober() {
    if (prober_ == nullptr) {
      prober_ =
          std::make_unique<Prober>(options_, Prober::Parts{.guard = &guard_,
                                                           .control = &control_,
                                                           .tokenizer = &tokenizer_,
                                                           .metrics = &metrics_,
                                                           .max_tokens = max_request_tokens_});
    }
    return *prober_;
  }

  std::unique_ptr<Sequence> Start(Request request, int max_tokens = 1 << 20) {
    request.id = "r";
    if (request.prompt.empty()) request.prompt = {1, 2, 3, 4, 5};
    auto stream = std::make_shared<TokenStream>(request.id, 1 << 20);
    auto sequence =
        std::make_unique<Sequence>(Submission{request, std::move(stream), absl::UnixEpoch()},
                                   max_tokens, request.stop.stop_ids);
    sequence->Start(absl::UnixEpoch(), nullptr);
    prober().Started(sequence.get());
    return sequence;
  }
  // One step of a sequence, which chooses `token` unless it is forced.
  void Generate(Sequence* sequence, TokenId token, const Model& model) {
    SampleResult result;
    const TokenId target = sequence->RowFor(sequence->known() - 1).target;
    result.token = target >= 0 ? target : token;
    const TokenId top1 = model.top1 >= 0 ? model.top1 : result.token;
    for (int i = 0; i < kHead; ++i) {
      result.top[i] = {(top1 + i) % kVocab, i == 0 ? model.best : model.rest};
    }
    result.logprob = result.token == top1 ? model.best : model.rest;
    sequence->Computed(sequence->known() - sequence->computed());
    sequence->Take(sequence->known() - 1, result, tokenizer_, absl::UnixEpoch());
  }
  // A request that generated so many tokens and ended.
  std::unique_ptr<Sequence> RunLive(int tokens, const Model& model = {}) {
    auto sequence = Start({}, tokens);
    for (int i = 0; i < tokens; ++i) {
      Generate(sequence.get(), i % 25, model);
      prober().Stepped(sequence.get());
    }
    EXPECT_TRUE(sequence->ended());
    prober().Ended(*sequence);
    return sequence;
  }
  void RunProbe(Sequence* probe, const Model& model = {}) {
    probe->Start(absl::UnixEpoch(), nullptr);
    while (!probe->ended()) Generate(probe, 0, model);
    prober().Finished(*probe);
  }
  // Requests take part in a step.
  void HaveTraffic() {
    StepPlan plan;
    plan.items = {{nullptr, 8}};
    plan.num_tokens = 8;
    prober().StepTook(absl::Milliseconds(8), plan);
  }
  double Probes(ProbeKind kind, ProbeOutcome outcome) {
    return metrics_.probes(kind, outcome).value();
  }
  double Floor(const std::string& name) {
    return MetricValue(metrics_, "condense_quality_" + name + "{model=\"tiny\",kind=\"floor\"}");
  }
  void Force(GuardrailMode mode) {
    control_.Force(mode);
    guard_.Judge();
  }

  ProbeOptions options_;
  int64_t max_request_tokens_ = 1 << 20;
  const ByteTokenizer tokenizer_;
  Metrics metrics_{"tiny"};
  CompressionControl control_{MakeCompression("balanced").value()};
  CompactionGuard guard_{GuardrailLimits(), 8, &control_, &metrics_};
  std::unique_ptr<Prober> prober_;
};

TEST_F(ProberTest, AShareOfRequestsKeepsARecord) {
  for (const double share : {0.0, 0.1, 0.5, 1.0}) {
    options_.share = share;
    prober_ = nullptr;
    int recorded = 0;
    for (int i = 0; i < 1000; ++i) recorded += Start({})->record() != nullptr;
    EXPECT_NEAR(recorded, 1000 * share, 50 * share * (1 - share) * 4);
  }
}

TEST_F(ProberTest, WhatIsScoredKeepsNone) {
  Request request;
  request.score = true;
  EXPECT_EQ(Start(std::move(request))->record(), nullptr);
}

TEST_F(ProberTest, AProbeComputesAllTokensAndScoresTheRecordedOnes) {
  const auto live = RunLive(200);
  const auto probe = prober().Next();
  ASSERT_NE(probe, nullptr);
  const Request& request = probe->request();
  EXPECT_EQ(request.forced.size(), static_cast<size_t>(kRecorded));
  std::vector<TokenId> all = request.prompt;
  all.insert(all.end(), request.forced.begin(), request.forced.end());
  EXPECT_EQ(all, live->tokens());
  EXPECT_FALSE(request.compression->active());
  EXPECT_EQ(probe->record()->num_top(), kHead);
  EXPECT_EQ(prober().Next(), nullptr);
}

TEST_F(ProberTest, TheTokenThatEndedARequestIsScoredToo) {
  Request request;
  request.stop.stop_ids = {25};
  const auto live = Start(std::move(request));
  for (int i = 0; i < 30; ++i) Generate(live.get(), i % 25, {});
  Generate(live.get(), 25, {});
  ASSERT_TRUE(live->ended());
  prober().Ended(*live);
  const auto probe = prober().Next();
  ASSERT_NE(probe, nullptr);
  EXPECT_EQ(probe->request().prompt, live->request().prompt);
  EXPECT_EQ(probe->request().forced.size(), 31u);
  EXPECT_EQ(probe->request().forced.back(), 25);
}

TEST_F(ProberTest, FewTokensAreNotWorthAProbe) {
  static_cast<void>(RunLive(15));
  EXPECT_EQ(prober().Next(), nullptr);
  static_cast<void>(RunLive(16));
  EXPECT_NE(prober().Next(), nullptr);
}

TEST_F(ProberTest, ALongRequestIsProbedWhileItRuns) {
  const auto live = Start({});
  for (int i = 1; i <= 1024; ++i) {
    Generate(live.get(), i % 25, {});
    prober().Stepped(live.get());
    const auto probe = prober().Next();
    ASSERT_EQ(probe != nullptr, i % 512 == 0) << i;
    if (probe == nullptr) continue;
    EXPECT_EQ(probe->request().prompt.size() + probe->request().forced.size(), 5u + i);
    RunProbe(probe.get());
    EXPECT_TRUE(live->record()->drift().has_value());
  }
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 2);
}

// Two samples of one request would count as two requests.
TEST_F(ProberTest, ARequestThatEndsWhereItWouldBeProbedIsProbedOnce) {
  const auto live = Start({}, 512);
  for (int i = 0; i < 512; ++i) {
    Generate(live.get(), i % 25, {});
    prober().Stepped(live.get());
  }
  ASSERT_TRUE(live->ended());
  EXPECT_EQ(prober().Next(), nullptr);
  prober().Ended(*live);
  EXPECT_NE(prober().Next(), nullptr);
  EXPECT_EQ(prober().Next(), nullptr);
}

TEST_F(ProberTest, APreemptionBeginsTheRecordAnew) {
  const auto live = Start({});
  for (int i = 0; i < 40; ++i) Generate(live.get(), i % 25, {});
  static_cast<void>(live->Preempt());
  prober().Ended(*live);
  EXPECT_EQ(prober().Next(), nullptr);
  live->Start(absl::UnixEpoch(), nullptr);
  for (int i = 0; i < 20; ++i) Generate(live.get(), i % 25, {});
  prober().Ended(*live);
  EXPECT_EQ(prober().Next()->request().forced.size(), 20u);
}

TEST_F(ProberTest, OneOfTheUncompressedWaitsAtATime) {
  for (int i = 0; i < 6; ++i) static_cast<void>(RunLive(20 + i));
  EXPECT_EQ(prober().Next()->request().forced.size(), 20u);
  EXPECT_EQ(prober().Next(), nullptr);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 0);
}

TEST_F(ProberTest, WhatNoEmptyCacheHoldsIsNotProbed) {
  max_request_tokens_ = 36;
  static_cast<void>(RunLive(32));
  EXPECT_EQ(prober().Next(), nullptr);
  static_cast<void>(RunLive(31));
  EXPECT_NE(prober().Next(), nullptr);
}

TEST_F(ProberTest, TheSameAgainIsNoDrift) {
  const auto live = RunLive(200);
  RunProbe(prober().Next().get());
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 1);
  EXPECT_EQ(live->record()->drift(), 0.0);
  EXPECT_EQ(Floor("kl_nats_count"), 1);
  EXPECT_EQ(Floor("kl_nats_sum"), 0);
  EXPECT_EQ(Floor("nll_delta_nats_sum"), 0);
  EXPECT_EQ(Floor("probed_tokens_total"), kRecorded);
  EXPECT_EQ(Floor("top1_agreements_total"), kRecorded);
  EXPECT_EQ(Probes(ProbeKind::kDrift, ProbeOutcome::kDone), 0);
}

// The live cache was less sure of every token than the full one is.
TEST_F(ProberTest, DriftIsTheMeanOverTheRecordedTokens) {
  const auto live = RunLive(200, {.best = -0.7f, .rest = -4.0f});
  RunProbe(prober().Next().get(), {.best = -0.1f, .rest = -5.5f});
  const double nats = live->record()->drift().value();
  EXPECT_GT(nats, 0.1);
  EXPECT_LT(nats, 0.6);  // p = 0.90 in place of 0.50
  EXPECT_NEAR(Floor("kl_nats_sum"), nats, 1e-9);
  EXPECT_NEAR(Floor("nll_delta_nats_sum"), 0.6, 1e-6);
  EXPECT_EQ(Floor("top1_agreements_total"), kRecorded);
}

TEST_F(ProberTest, OtherLikeliestTokensAreCounted) {
  static_cast<void>(RunLive(16, {.best = -0.5f, .rest = -4.0f, .top1 = 3}));
  RunProbe(prober().Next().get(), {.best = -0.5f, .rest = -4.0f, .top1 = 4});
  EXPECT_EQ(Floor("probed_tokens_total"), 16);
  EXPECT_EQ(Floor("top1_agreements_total"), 0);
}

TEST_F(ProberTest, AProbeThatDidNotGetThroughIsDropped) {
  const auto live = RunLive(30);
  const auto set_back = prober().Next();
  set_back->Start(absl::UnixEpoch(), nullptr);
  for (int i = 0; i < 10; ++i) Generate(set_back.get(), 0, {});
  static_cast<void>(set_back->Preempt());
  prober().Finished(*set_back);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 1);

  static_cast<void>(RunLive(30));
  const auto broken = prober().Next();
  broken->Start(absl::UnixEpoch(), nullptr);
  SampleResult result;
  result.finite = false;
  broken->Take(broken->known() - 1, result, tokenizer_, absl::UnixEpoch());
  prober().Finished(*broken);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 2);

  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 0);
  EXPECT_FALSE(live->record()->drift().has_value());
  // The next one does.
  static_cast<void>(RunLive(30));
  RunProbe(prober().Next().get());
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 1);
}

// Probation asks for evidence of what is done from its beginning on.
TEST_F(ProberTest, WhatBeganBeforeTheEvidenceIsDropped) {
  static_cast<void>(RunLive(30));
  Force(GuardrailMode::kProbation);
  EXPECT_EQ(prober().Next(), nullptr);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 1);

  const auto live = RunLive(30);
  const auto probe = prober().Next();
  ASSERT_NE(probe, nullptr);
  Force(GuardrailMode::kCompacting);
  Force(GuardrailMode::kProbation);
  RunProbe(probe.get());
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDropped), 2);
  EXPECT_EQ(Probes(ProbeKind::kFloor, ProbeOutcome::kDone), 0);
  EXPECT_FALSE(live->record()->drift().has_value());
}

TEST_F(ProberTest, StepsAreCountedAsTheyAre) {
  static_cast<void>(RunLive(30));
  const auto probe = prober().Next();
  StepPlan plan;
  plan.items = {{nullptr, 8}, {probe.get(), 4, /*background=*/true}};
  plan.num_tokens = 12;
  for (int i = 0; i < 3; ++i) prober().StepTook(absl::Milliseconds(12), plan);
  EXPECT_EQ(metrics_.probe_tokens.value(), 12);
  EXPECT_NEAR(metrics_.probe_seconds.value(), 3 * 0.004, 1e-6);
  EXPECT_EQ(metrics_.probes_pending.value(), 1);
  RunProbe(probe.get());
  plan.items.pop_back();
  plan.num_tokens = 8;
  prober().StepTook(absl::Milliseconds(8), plan);
  EXPECT_EQ(metrics_.probes_pending.value(), 0);
  EXPECT_EQ(metrics_.probe_tokens.value(), 12);
}

TEST_F(ProberTest, AnIdleEngineNeedNotLookBeforeThereMayBeSomething) {
  EXPECT_EQ(prober().UntilNext(), absl::InfiniteDuration());
  static_cast<void>(RunLive(30));
  EXPECT_EQ(prober().UntilNext(), absl::ZeroDuration());
  static_cast<void>(prober().Next());
  EXPECT_EQ(prober().UntilNext(), absl::InfiniteDuration());

  options_.canary_interval = absl::Hours(1);
  prober_ = nullptr;
  EXPECT_EQ(prober().UntilNext(), absl::InfiniteDuration());
  HaveTraffic();
  EXPECT_GT(prober().UntilNext(), absl::Minutes(59));
  EXPECT_LE(prober().UntilNext(), absl::Hours(1));
  options_.canary_interval = absl::Milliseconds(100);
  prober_ = nullptr;
  HaveTraffic();
  EXPECT_EQ(prober().UntilNext(), absl::Seconds(1));
}

class CanaryProberTest : public ProberTest {
 protected:
  CanaryProberTest() {
    options_ = {.share = 0.0, .canary_interval = absl::Milliseconds(100), .canary_tokens = 256};
  }
  // The next canary, when it is due, and requests have run.
  std::unique_ptr<Sequence> NextDue() {
    HaveTraffic();
    const absl::Time until = SteadyNow() + absl::Milliseconds(101);
    while (SteadyNow() < until) absl::SleepFor(absl::Milliseconds(2));
    return prober().Next();
  }
  // Answers every question, or none.
  static constexpr Model kKnows = {.best = -0.1f, .rest = -5.0f};
  static constexpr Model kKnowsNothing = {.best = -0.1f, .rest = -5.0f, .top1 = 127};
};

TEST_F(CanaryProberTest, IsAskedOfTheFullCacheFirst) {
  EXPECT_EQ(prober().Next(), nullptr);
  const auto reference = NextDue();
  ASSERT_NE(reference, nullptr);
  EXPECT_FALSE(reference->request().compression->active());
  const CanaryText text = MakeCanaryText(tokenizer_, 256, 1);
  EXPECT_EQ(reference->request().prompt, text.prompt);
  EXPECT_EQ(reference->request().forced, text.forced);
  RunProbe(reference.get(), kKnows);
  // Then, at once, of the compacted one.
  const auto canary = prober().Next();
  ASSERT_NE(canary, nullptr);
  EXPECT_EQ(canary->request().compression->preset, "balanced");
  EXPECT_EQ(canary->request().prompt, text.prompt);
  EXPECT_EQ(canary->request().forced, text.forced);
  EXPECT_EQ(canary->record()->size(), 0);
}

TEST_F(CanaryProberTest, AModelThatCannotAnswerIsNotAskedFurther) {
  prober();
  RunProbe(NextDue().get(), kKnowsNothing);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kUnavailable), 1);
  EXPECT_EQ(prober().Next(), nullptr);
  EXPECT_EQ(metrics_.canary_facts_asked.value(), 0);
  // The next one is another text.
  EXPECT_NE(NextDue()->request().prompt, MakeCanaryText(tokenizer_, 256, 1).prompt);
}

// Nothing was compacted: that says nothing of compaction.
TEST_F(CanaryProberTest, ACanaryThatWasNotCompactedIsDropped) {
  prober();
  RunProbe(NextDue().get(), kKnows);
  RunProbe(prober().Next().get(), kKnows);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kDropped), 1);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kDone), 0);
  EXPECT_EQ(metrics_.canary_facts_asked.value(), 0);
  EXPECT_EQ(prober().Next(), nullptr);
  EXPECT_NE(NextDue(), nullptr);
}

TEST_F(CanaryProberTest, SetBackItIsDroppedInBothStages) {
  prober();
  for (const bool reference_done : {false, true}) {
    auto canary = NextDue();
    if (reference_done) {
      RunProbe(canary.get(), kKnows);
      canary = prober().Next();
    }
    canary->Start(absl::UnixEpoch(), nullptr);
    Generate(canary.get(), 0, kKnows);
    static_cast<void>(canary->Preempt());
    prober().Finished(*canary);
    EXPECT_EQ(prober().Next(), nullptr);
  }
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kDropped), 2);
}

TEST_F(CanaryProberTest, OneThatNoEmptyCacheHoldsIsUnavailable) {
  max_request_tokens_ = 300;
  prober();
  EXPECT_EQ(NextDue(), nullptr);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kUnavailable), 1);
  EXPECT_EQ(prober().Next(), nullptr);
  EXPECT_EQ(Probes(ProbeKind::kCanary, ProbeOutcome::kUnavailable), 1);
}

TEST_F(CanaryProberTest, RunsOnlyWhereNewRequestsAreCompacted) {
  prober();
  for (const GuardrailMode mode : {GuardrailMode::kHolding, GuardrailMode::kUncompressed}) {
    Force(mode);
    EXPECT_EQ(NextDue(), nullptr);
  }
  Force(GuardrailMode::kCompacting);
  control_.Pause(true);
  EXPECT_EQ(prober().Next(), nullptr);
  control_.Pause(false);
  control_.SetDefault(Compression());
  EXPECT_EQ(prober().Next(), nullptr);
  control_.SetDefault(MakeCompression("light").value());
  EXPECT_NE(prober().Next(), nullptr);
}

TEST_F(CanaryProberTest, NoneWithoutTrafficSinceTheLast) {
  prober();
  RunProbe(NextDue().get(), kKnowsNothing);
  absl::SleepFor(absl::Milliseconds(105));
  EXPECT_EQ(prober().Next(), nullptr);
  HaveTraffic();
  EXPECT_NE(prober().Next(), nullptr);
}

TEST_F(CanaryProberTest, TakesTurnsWithRequests) {
  options_.share = 1.0;
  static_cast<void>(RunLive(30));
  const auto canary = NextDue();
  EXPECT_EQ(canary->request().forced, MakeCanaryText(tokenizer_, 256, 1).forced);
  RunProbe(canary.get(), kKnowsNothing);
  HaveTraffic();
  absl::SleepFor(absl::Milliseconds(105));
  EXPECT_EQ(prober().Next()->request().forced.size(), 30u);
  static_cast<void>(RunLive(30));
  EXPECT_NE(prober().Next()->request().forced.size(), 30u);
}

}  // namespace
}  // namespace condense
