#include "engine/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <fstream>
#include <random>

#include "metrics/metrics.h"
#include "tests/support/engine_harness.h"
#include "tests/support/fault_backend.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

const char kTinyModel[] = CONDENSE_TEST_DATA "/tiny/llama-f32.gguf";

// Two layers x two KV heads; a slab of 64 KiB holds 16 blocks of 32 tokens, 512 tokens of a unit.
constexpr int64_t kSmallestTinyCache = 4 * (64 << 10);

EngineConfig TinyConfig() {
  EngineConfig config;
  config.model_path = kTinyModel;
  config.kv_memory_bytes = 16 << 20;
  config.backend = {.kind = "cpu", .num_threads = 2};
  return config;
}

std::unique_ptr<Engine> MakeEngine(EngineConfig config, std::unique_ptr<Backend> backend = nullptr,
                                   Metrics* metrics = nullptr) {
  auto engine = Engine::Make(std::move(config), metrics, std::move(backend));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? std::move(*engine) : nullptr;
}

std::vector<TokenId> RandomPrompt(uint32_t seed, int length) {
  std::mt19937 random(seed);
  std::vector<TokenId> prompt;
  for (int i = 0; i < length; ++i) prompt.push_back(static_cast<TokenId>(3 + random() % 280));
  return prompt;
}

// The load is published at the end of a step, after the step's last events were read.
int64_t SettledKvBytes(const Engine& engine) {
  for (int i = 0; i < 1000 && engine.load().kv_bytes_used != 0; ++i)
    absl::SleepFor(absl::Milliseconds(1));
  return engine.load().kv_bytes_used;
}

// On the reference backend everything is exact; on the cpu the kernels are batch-invariant, so it
// is exact there too.
class EngineExactnessTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Backend> NewBackend() {
    if (std::string(GetParam()) == "reference") return std::make_unique<ReferenceBackend>();
    return MakeBackend({.kind = "cpu", .num_threads = 2}).value();
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, EngineExactnessTest, ::testing::Values("reference", "cpu"),
                         [](const auto& info) { return std::string(info.param); });

Request SampledRequest(int i) {
  Request request = GreedyRequest("r" + std::to_string(i), RandomPrompt(i, 5 + 7 * i), 12);
  request.sampling.temperature = 1.0f;
  request.sampling.seed = 1000 + i;
  request.num_logprobs = 0;
  return request;
}

TEST_P(EngineExactnessTest, ABatchOfEightEqualsEightRuns) {
  const auto engine = MakeEngine(TinyConfig(), NewBackend());
  std::vector<Answer> alone;
  for (int i = 0; i < 8; ++i) alone.push_back(RunRequest(engine.get(), SampledRequest(i)));
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 8; ++i) streams.push_back(engine->Submit(SampledRequest(i)).value());
  for (int i = 0; i < 8; ++i) {
    const Answer together = ReadAll(streams[i].get());
    EXPECT_EQ(together.ids, alone[i].ids);
    EXPECT_EQ(together.logprobs, alone[i].logprobs);  // bit for bit
    EXPECT_EQ(together.ids.size(), 12u);
  }
}

TEST_P(EngineExactnessTest, AChunkedPromptEqualsAWholeOne) {
  Request request = GreedyRequest("r", RandomPrompt(3, 150), 20);
  request.num_logprobs = 0;
  EngineConfig whole = TinyConfig(), chunked = TinyConfig();
  chunked.step_tokens = 7;
  const Answer a = RunRequest(MakeEngine(whole, NewBackend()).get(), request);
  const Answer b = RunRequest(MakeEngine(chunked, NewBackend()).get(), request);
  EXPECT_EQ(a.ids, b.ids);
  EXPECT_EQ(a.logprobs, b.logprobs);
}

TEST_P(EngineExactnessTest, APreemptedRequestEqualsAnUndisturbedOne) {
  EngineConfig small = TinyConfig();
  small.kv_memory_bytes = kSmallestTinyCache;
  small.decode_reserve_tokens = 0;
  const auto crowded = MakeEngine(small, NewBackend());
  const auto roomy = MakeEngine(TinyConfig(), NewBackend());
  const auto request = [](int i) {
    Request r = GreedyRequest("r" + std::to_string(i), RandomPrompt(i, 100), 100);
    r.num_logprobs = 0;
    return r;
  };
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 4; ++i) streams.push_back(crowded->Submit(request(i)).value());
  int preemptions = 0;
  for (int i = 0; i < 4; ++i) {
    const Answer disturbed = ReadAll(streams[i].get());
    const Answer undisturbed = RunRequest(roomy.get(), request(i));
    preemptions += disturbed.last.usage.preemptions;
    EXPECT_EQ(disturbed.ids, undisturbed.ids);
    EXPECT_EQ(disturbed.logprobs, undisturbed.logprobs);
    EXPECT_EQ(disturbed.text, undisturbed.text);
  }
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(SettledKvBytes(*crowded), 0);
}

TEST(EngineTest, TheSameSeedGivesTheSameTextAndAnotherAnother) {
  const auto engine = MakeEngine(TinyConfig());
  Request request = SampledRequest(1);
  const Answer a = RunRequest(engine.get(), request);
  const Answer b = RunRequest(engine.get(), request);
  EXPECT_EQ(a.ids, b.ids);
  request.sampling.seed = 5;
  EXPECT_NE(RunRequest(engine.get(), request).ids, a.ids);
}

TEST(EngineTest, ScoringGivesOneLogprobPerPromptTokenAfterTheFirst) {
  EngineConfig config = TinyConfig();
  config.step_tokens = 16;  // so that a score spans steps
  const auto engine = MakeEngine(config);
  Request request = GreedyRequest("s", RandomPrompt(1, 90), 0);
  request.score = true;
  const Answer answer = RunRequest(engine.get(), request);
  EXPECT_EQ(answer.last.prompt_logprobs.size(), 89u);
  EXPECT_TRUE(answer.ids.empty());
  for (const float logprob : answer.last.prompt_logprobs) EXPECT_LT(logprob, 0.0f);
}

TEST(EngineTest, ForcedTokensAreTakenAndScored) {
  const auto engine = MakeEngine(TinyConfig());
  const std::vector<TokenId> prompt = RandomPrompt(1, 40), forced = RandomPrompt(2, 30);
  Request request = GreedyRequest("f", prompt, 30);
  request.num_logprobs = 0;
  request.forced = forced;
  const Answer answer = RunRequest(engine.get(), request);
  EXPECT_EQ(answer.ids, forced);
  Request score = GreedyRequest("s", prompt, 0);
  score.prompt.insert(score.prompt.end(), forced.begin(), forced.end());
  score.score = true;
  const std::vector<float> scored = RunRequest(engine.get(), score).last.prompt_logprobs;
  ASSERT_EQ(scored.size(), 69u);
  EXPECT_EQ(answer.logprobs, std::vector<float>(scored.begin() + 39, scored.end()));  // to the bit
}

TEST(EngineTest, AfterForcedTokensTheModelChooses) {
  const auto engine = MakeEngine(TinyConfig());
  const Answer free = RunRequest(engine.get(), GreedyRequest("a", RandomPrompt(1, 20), 12));
  Request request = GreedyRequest("b", RandomPrompt(1, 20), 12);
  request.forced.assign(free.ids.begin(), free.ids.begin() + 5);
  EXPECT_EQ(RunRequest(engine.get(), request).ids, free.ids);
  request.forced.back() = (free.ids[4] + 1) % 280;
  const Answer other = RunRequest(engine.get(), request);
  EXPECT_EQ(other.ids[4], request.forced.back());
  EXPECT_EQ(other.ids.size(), 12u);
  EXPECT_NE(other.ids, free.ids);
}

TEST(EngineTest, LogprobsComeWithTheAlternativesAskedFor) {
  const auto engine = MakeEngine(TinyConfig());
  Request request = GreedyRequest("r", RandomPrompt(1, 5), 3);
  request.num_logprobs = 4;
  const auto stream = engine->Submit(request).value();
  int tokens = 0;
  while (const auto event = stream->Next(absl::Seconds(20))) {
    for (const TokenOutput& output : event->tokens) {
      ASSERT_EQ(output.top.size(), 4u);
      EXPECT_EQ(output.top[0].token, output.token);  // greedy
      EXPECT_EQ(output.top[0].logprob, output.logprob);
      EXPECT_GE(output.top[0].logprob, output.top[3].logprob);
      ++tokens;
    }
  }
  EXPECT_EQ(tokens, 3);
}

TEST(EngineTest, AStopTokenEndsTheAnswerAndIsNotDelivered) {
  const auto engine = MakeEngine(TinyConfig());
  const Answer free = RunRequest(engine.get(), GreedyRequest("a", RandomPrompt(2, 9), 16));
  const TokenId stop = free.ids[5];
  Request request = GreedyRequest("b", RandomPrompt(2, 9), 16);
  request.stop.stop_ids = {stop};
  const Answer stopped = RunRequest(engine.get(), request);
  EXPECT_EQ(stopped.last.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.last.stop_token, stop);
  const auto first = std::find(free.ids.begin(), free.ids.end(), stop) - free.ids.begin();
  EXPECT_EQ(stopped.ids, std::vector<TokenId>(free.ids.begin(), free.ids.begin() + first));

  request.id = "c";
  request.stop.min_tokens = 10;
  const Answer late = RunRequest(engine.get(), request);
  EXPECT_GE(late.ids.size(), 10u);
}

TEST(EngineTest, AStopStringNeverLeaks) {
  const auto engine = MakeEngine(TinyConfig());
  const Answer free = RunRequest(engine.get(), GreedyRequest("a", RandomPrompt(4, 9), 48));
  // Random weights say little that is text: the first two neighbours that are plain letters will
  // do.
  size_t at = 1;
  while (at + 1 < free.text.size() && (free.text[at] < ' ' || free.text[at + 1] < ' ')) ++at;
  ASSERT_LT(at + 1, free.text.size());
  Request request = GreedyRequest("b", RandomPrompt(4, 9), 48);
  request.stop.stop_strings = {free.text.substr(at, 2)};
  const Answer stopped = RunRequest(engine.get(), request);
  EXPECT_EQ(stopped.last.reason, FinishReason::kStop);
  EXPECT_EQ(stopped.last.stop_string, request.stop.stop_strings[0]);
  EXPECT_EQ(stopped.text, free.text.substr(0, free.text.find(request.stop.stop_strings[0])));
}

TEST(EngineTest, MalformedRequestsAreRefusedWithValueAndLimit) {
  const auto engine = MakeEngine(TinyConfig());
  Request request = GreedyRequest("r", {1, 2, 999}, 4);
  absl::Status status = engine->Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("token_ids[2] is 999; must be in 0..287"));
  request.prompt = {};
  EXPECT_EQ(engine->Submit(request).status().code(), absl::StatusCode::kInvalidArgument);
  request.prompt = RandomPrompt(1, 10);
  request.stop.max_tokens = 1 << 20;
  status = engine->Submit(request).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("1048576"));
}

TEST(EngineTest, ARequestThatCanNeverFitIsRefusedWithTheNumbers) {
  // The tiny model with a longer context, so that the smallest possible cache is smaller than it.
  GgufWriter writer = GgufWriter::FromFile(kTinyModel);
  writer.SetU32("llama.context_length", 4096);
  EngineConfig config = TinyConfig();
  config.model_path = ::testing::TempDir() + "/long_context.gguf";
  std::ofstream(config.model_path, std::ios::binary) << writer.Bytes();
  config.kv_memory_bytes = kSmallestTinyCache;
  const auto engine = MakeEngine(config);
  ASSERT_EQ(engine->model_info().max_request_tokens, 512);
  const absl::Status status = engine->Submit(GreedyRequest("r", RandomPrompt(1, 512), 1)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("can never fit"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("513 tokens"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("holds 512"));
  // One token fewer does fit.
  const Answer answer = RunRequest(engine.get(), GreedyRequest("s", RandomPrompt(1, 511), 1));
  EXPECT_EQ(answer.last.reason, FinishReason::kLength);
}

TEST(EngineTest, WithoutALimitTheContextIsTheLimit) {
  EngineConfig config = TinyConfig();
  config.max_context = 40;
  const auto engine = MakeEngine(config);
  const Answer answer = RunRequest(engine.get(), GreedyRequest("r", RandomPrompt(1, 30), 0));
  EXPECT_EQ(answer.ids.size(), 10u);
  EXPECT_EQ(answer.last.reason, FinishReason::kLength);
}

TEST(EngineTest, CancelEndsARunningAndAWaitingRequest) {
  // The engine is held after its first step, so that the request surely still runs.
  std::atomic<bool> held{false}, go{false};
  EngineConfig config = TinyConfig();
  config.max_sequences = 1;
  config.on_published = [&] {
    held = true;
    while (!go) absl::SleepFor(absl::Microseconds(50));
  };
  const auto engine = MakeEngine(config);
  const auto running = engine->Submit(GreedyRequest("a", RandomPrompt(1, 10), 100)).value();
  const auto waiting = engine->Submit(GreedyRequest("b", RandomPrompt(1, 10), 5)).value();
  while (!held) absl::SleepFor(absl::Microseconds(50));
  waiting->Cancel();
  EXPECT_TRUE(engine->Abort("a"));
  go = true;
  const Answer never_ran = ReadAll(waiting.get());
  EXPECT_EQ(never_ran.last.reason, FinishReason::kCancelled);
  EXPECT_EQ(never_ran.last.status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(never_ran.ids.empty());
  EXPECT_EQ(ReadAll(running.get()).last.reason, FinishReason::kCancelled);
  EXPECT_FALSE(engine->Abort("a"));
  EXPECT_TRUE(engine->idle());
  EXPECT_EQ(SettledKvBytes(*engine), 0);
}

TEST(EngineTest, ADeadlineEndsARequestInQueueAndInDecode) {
  EngineConfig config = TinyConfig();
  config.max_sequences = 1;
  config.max_context = 256;
  const auto engine = MakeEngine(config);
  Request running = GreedyRequest("a", RandomPrompt(1, 10), 0);
  running.deadline = absl::Now() + absl::Milliseconds(3);
  Request waiting = GreedyRequest("b", RandomPrompt(1, 10), 5);
  waiting.deadline = absl::Now() + absl::Milliseconds(1);
  const auto a = engine->Submit(running).value();
  const auto b = engine->Submit(waiting).value();
  const Answer late = ReadAll(a.get());
  // On a fast machine the answer may be whole before the deadline; then it must be.
  if (late.last.reason != FinishReason::kLength) {
    EXPECT_EQ(late.last.status.code(), absl::StatusCode::kDeadlineExceeded);
  }
  static_cast<void>(ReadAll(b.get()));
  Request past = GreedyRequest("c", RandomPrompt(1, 10), 5);
  past.deadline = absl::Now() - absl::Seconds(1);
  const Answer never = RunRequest(engine.get(), past);
  EXPECT_EQ(never.last.reason, FinishReason::kDeadline);
  EXPECT_TRUE(never.ids.empty());
}

TEST(EngineTest, ASlowReaderEndsItsOwnRequestOnly) {
  EngineConfig config = TinyConfig();
  config.stream_buffer_tokens = 8;
  const auto engine = MakeEngine(config);
  const auto slow = engine->Submit(GreedyRequest("slow", RandomPrompt(1, 10), 100)).value();
  const auto quick = engine->Submit(GreedyRequest("quick", RandomPrompt(2, 10), 100)).value();
  // The quick reader collects as it comes.
  const Answer whole = ReadAll(quick.get());
  EXPECT_LE(whole.ids.size(), 100u);
  while (!engine->idle()) absl::SleepFor(absl::Milliseconds(1));
  const Answer cut = ReadAll(slow.get());
  EXPECT_EQ(cut.last.status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_LE(cut.ids.size(), 8u);
}

TEST(EngineTest, ADrainingEngineFinishesWhatItHas) {
  const auto engine = MakeEngine(TinyConfig());
  const auto stream = engine->Submit(GreedyRequest("a", RandomPrompt(1, 10), 30)).value();
  engine->Drain();
  EXPECT_TRUE(engine->draining());
  EXPECT_EQ(engine->Submit(GreedyRequest("b", {4}, 1)).status().code(),
            absl::StatusCode::kUnavailable);
  EXPECT_EQ(ReadAll(stream.get()).ids.size(), 30u);
}

TEST(EngineTest, DestructionEndsWhatIsLive) {
  auto engine = MakeEngine(TinyConfig());
  const auto stream = engine->Submit(GreedyRequest("a", RandomPrompt(1, 10), 200)).value();
  engine.reset();
  const Answer answer = ReadAll(stream.get());
  EXPECT_TRUE(answer.last.reason == FinishReason::kCancelled || answer.ids.size() == 200);
}

TEST(EngineTest, ReadersAreWokenOncePerStep) {
  std::atomic<int> wakes{0};
  EngineConfig config = TinyConfig();
  config.on_published = [&] { ++wakes; };
  auto engine = MakeEngine(config);
  std::vector<std::shared_ptr<TokenStream>> streams;
  for (int i = 0; i < 8; ++i) {
    streams.push_back(
        engine->Submit(GreedyRequest(std::to_string(i), RandomPrompt(i, 4), 20)).value());
  }
  for (const auto& stream : streams) static_cast<void>(ReadAll(stream.get()));
  // The last step is counted when it publishes that nothing is held any more.
  EXPECT_EQ(SettledKvBytes(*engine), 0);
  const int steps = static_cast<int>(engine->load().steps);
  // A reader may see the last token before the call that announces it: the engine's end is after
  // both.
  engine.reset();
  EXPECT_LE(wakes.load(), steps + 1);
  EXPECT_GE(wakes.load(), 20);
}

TEST(EngineTest, MetricsAddUp) {
  Metrics metrics("tiny");
  const auto engine = MakeEngine(TinyConfig(), nullptr, &metrics);
  for (int i = 0; i < 3; ++i)
    static_cast<void>(RunRequest(engine.get(), GreedyRequest("r", RandomPrompt(i, 10), 5)));
  EXPECT_EQ(metrics.requests(RequestOutcome::kLength).value(), 3);
  EXPECT_EQ(metrics.prompt_tokens.value(), 30);
  EXPECT_EQ(metrics.generated_tokens.value(), 15);
  EXPECT_THAT(metrics.Serialize(), HasSubstr("condense_ttft_seconds_count"));
}

// Every op of a request's life fails once: its step's requests end INTERNAL, the books return to
// zero, the next works.
TEST(EngineTest, EveryBackendCallMayFailOnce) {
  auto faulty =
      std::make_unique<FaultBackend>(MakeBackend({.kind = "cpu", .num_threads = 1}).value());
  FaultBackend* const faults = faulty.get();
  EngineConfig config = TinyConfig();
  const auto engine = MakeEngine(config, std::move(faulty));
  const Answer good = RunRequest(engine.get(), GreedyRequest("good", RandomPrompt(1, 6), 3));
  ASSERT_EQ(good.ids.size(), 3u);
  const int64_t before = faults->num_ops();
  static_cast<void>(RunRequest(engine.get(), GreedyRequest("count", RandomPrompt(1, 6), 3)));
  const int64_t calls = faults->num_ops() - before;
  ASSERT_GT(calls, 50);
  for (int64_t n = 0; n < calls; ++n) {
    faults->FailOp(faults->num_ops() + n);
    const Answer failed = RunRequest(engine.get(), GreedyRequest("f", RandomPrompt(1, 6), 3));
    EXPECT_EQ(failed.last.reason, FinishReason::kError) << "call " << n;
    EXPECT_EQ(failed.last.status.code(), absl::StatusCode::kInternal) << "call " << n;
    EXPECT_TRUE(IsTransient(failed.last.status)) << "call " << n;  // the next step is a new one
    EXPECT_EQ(SettledKvBytes(*engine), 0) << "call " << n;
    const Answer next = RunRequest(engine.get(), GreedyRequest("n", RandomPrompt(1, 6), 3));
    EXPECT_EQ(next.ids, good.ids) << "after call " << n;
  }
}

}  // namespace
}  // namespace condense
