#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>

#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "server/convert_request.h"
#include "server/convert_response.h"
#include "server/convert_status.h"
#include "tests/support/fake_tokenizer.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class ConvertTest : public ::testing::Test {
 protected:
  ConvertTest() : chat_template_(ChatTemplate::Recognise("")) {
    info_.name = "tiny";
    info_.vocab_size = 26;
    info_.max_context = 16;
  }

  ServedModel model() const { return {info_, tokenizer_, chat_template_, limits_}; }

  static v1::GenerateRequest Parse(const std::string& text) {
    v1::GenerateRequest message;
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
    return message;
  }
  absl::StatusOr<GenerateCall> Convert(const v1::GenerateRequest& message) const {
    return ToGenerateCall(message, "", absl::InfiniteFuture(), model());
  }
  std::string Refusal(const std::string& text) const { return Refusal(Parse(text)); }
  std::string Refusal(const v1::GenerateRequest& message) const {
    const absl::StatusOr<GenerateCall> call = Convert(message);
    if (call.ok()) return "accepted";
    if (absl::IsInvalidArgument(call.status())) return std::string(call.status().message());
    return call.status().ToString();
  }

  ModelInfo info_;
  FakeTokenizer tokenizer_;
  ChatTemplate chat_template_;
  Limits limits_;
};

TEST_F(ConvertTest, UnsetFieldsTakeTheDocumentedDefaults) {
  const absl::StatusOr<GenerateCall> call = Convert(Parse("text: 'abc'"));
  ASSERT_TRUE(call.ok()) << call.status();
  const Request& request = call->request;
  EXPECT_THAT(request.prompt, ElementsAre(0, 1, 2));
  EXPECT_EQ(request.sampling.temperature, 1.0f);
  EXPECT_EQ(request.sampling.top_k, 0);
  EXPECT_EQ(request.sampling.top_p, 1.0f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.0f);
  EXPECT_EQ(request.stop.max_tokens, 0);
  EXPECT_EQ(request.num_logprobs, -1);
  EXPECT_EQ(request.deadline, absl::InfiniteFuture());
  EXPECT_FALSE(request.score);
  EXPECT_EQ(request.id.size(), 16u);
  EXPECT_TRUE(call->output.text);
  EXPECT_TRUE(call->output.tokens);
  EXPECT_FALSE(call->output.prompt);
}

TEST_F(ConvertTest, EveryFieldArrives) {
  const absl::StatusOr<GenerateCall> call = Convert(Parse(R"(
    request_id: 'r1' model: 'tiny' token_ids { ids: [3, 4] } priority: -5 tenant: 'team'
    sampling { temperature: 0.5 top_k: 7 top_p: 0.9 min_p: 0.1 repetition_penalty: 1.2
               presence_penalty: -1 frequency_penalty: 2 seed: 99
               logit_bias { key: 9 value: -100 } logit_bias { key: 2 value: 1.5 } }
    stopping { max_tokens: 8 min_tokens: 2 stop: 'x' stop: 'yz' stop_token_ids: 5 ignore_eos: true }
    output { text: false token_ids: false logprobs: 3 prompt: true })"));
  ASSERT_TRUE(call.ok()) << call.status();
  const Request& request = call->request;
  EXPECT_EQ(request.id, "r1");
  EXPECT_THAT(request.prompt, ElementsAre(3, 4));
  EXPECT_EQ(request.priority, -5);
  EXPECT_EQ(request.tenant, "team");
  EXPECT_EQ(request.sampling.temperature, 0.5f);
  EXPECT_EQ(request.sampling.top_k, 7);
  EXPECT_EQ(request.sampling.top_p, 0.9f);
  EXPECT_EQ(request.sampling.min_p, 0.1f);
  EXPECT_EQ(request.sampling.repetition_penalty, 1.2f);
  EXPECT_EQ(request.sampling.presence_penalty, -1.0f);
  EXPECT_EQ(request.sampling.frequency_penalty, 2.0f);
  EXPECT_EQ(request.sampling.seed, 99u);
  EXPECT_THAT(request.sampling.logit_bias, ElementsAre(Pair(2, 1.5f), Pair(9, -100.0f)));
  EXPECT_EQ(request.stop.max_tokens, 8);
  EXPECT_EQ(request.stop.min_tokens, 2);
  EXPECT_THAT(request.stop.stop_strings, ElementsAre("x", "yz"));
  EXPECT_THAT(request.stop.stop_ids, ElementsAre(5));
  EXPECT_TRUE(request.stop.ignore_eos);
  EXPECT_EQ(request.num_logprobs, 3);
  EXPECT_FALSE(call->output.text);
  EXPECT_TRUE(call->output.tokens);  // they carry the log-probabilities
  EXPECT_TRUE(call->output.prompt);
}

TEST_F(ConvertTest, DrawnIdsAndSeedsDiffer) {
  const absl::StatusOr<GenerateCall> first = Convert(Parse("text: 'a'"));
  const absl::StatusOr<GenerateCall> second = Convert(Parse("text: 'a'"));
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_NE(first->request.id, second->request.id);
  EXPECT_NE(first->request.sampling.seed, second->request.sampling.seed);
}

TEST_F(ConvertTest, MetadataNamesARequestThatDoesNotNameItself) {
  const auto id = [&](const std::string& text) {
    return ToGenerateCall(Parse(text), "from-metadata", absl::InfiniteFuture(), model())
        ->request.id;
  };
  EXPECT_EQ(id("text: 'a'"), "from-metadata");
  EXPECT_EQ(id("text: 'a' request_id: 'own'"), "own");
}

struct BadField {
  const char* request;
  const char* message;
};

TEST_F(ConvertTest, RefusalsNameFieldValueAndLimit) {
  const BadField cases[] = {
      {"", "input is not set; must be one of text, token_ids, chat"},
      {"text: ''", "prompt has 0 tokens; at least 1"},
      {"token_ids {}", "prompt has 0 tokens; at least 1"},
      {"token_ids { ids: [1, 26] }", "token_ids[1] is 26; must be in [0, 25]"},
      {"token_ids { ids: [-1] }", "token_ids[0] is -1; must be in [0, 25]"},
      {"text: 'aaaaaaaaaaaaaaaa'", "prompt has 16 tokens; at most 15"},
      {"token_ids { ids: [1] } parse_special: true",
       "parse_special is set; it is for the input `text` only"},
      {"text: 'a' request_id: ''", "request_id has 0 bytes; at least 1, or leave it out"},
      {"text: 'a' request_id: 'a\\nb'",
       "request_id has the control character 0x0a at byte 1; none is allowed"},
      {"text: 'a' sampling { temperature: -0.5 }",
       "sampling.temperature is -0.5; must be in [0, 100]"},
      {"text: 'a' sampling { temperature: 101 }",
       "sampling.temperature is 101; must be in [0, 100]"},
      {"text: 'a' sampling { top_k: -1 }", "sampling.top_k is -1; must be in [0, 26]"},
      {"text: 'a' sampling { top_k: 27 }", "sampling.top_k is 27; must be in [0, 26]"},
      {"text: 'a' sampling { top_p: 1.5 }", "sampling.top_p is 1.5; must be in (0, 1]"},
      {"text: 'a' sampling { top_p: 0 }", "sampling.top_p is 0; must be in (0, 1]"},
      {"text: 'a' sampling { min_p: 1.25 }", "sampling.min_p is 1.25; must be in [0, 1]"},
      {"text: 'a' sampling { repetition_penalty: 0 }",
       "sampling.repetition_penalty is 0; must be in [0.01, 10]"},
      {"text: 'a' sampling { presence_penalty: 11 }",
       "sampling.presence_penalty is 11; must be in [-10, 10]"},
      {"text: 'a' sampling { frequency_penalty: -11 }",
       "sampling.frequency_penalty is -11; must be in [-10, 10]"},
      {"text: 'a' sampling { logit_bias { key: 26 value: 1 } }",
       "sampling.logit_bias key is 26; must be in [0, 25]"},
      {"text: 'a' sampling { logit_bias { key: 5 value: 200 } }",
       "sampling.logit_bias[5] is 200; must be in [-100, 100]"},
      {"text: 'a' stopping { max_tokens: 0 }", "stopping.max_tokens is 0; must be in [1, 16]"},
      {"text: 'a' stopping { max_tokens: 17 }", "stopping.max_tokens is 17; must be in [1, 16]"},
      {"text: 'a' stopping { max_tokens: 4 min_tokens: 5 }",
       "stopping.min_tokens is 5; must be in [0, 4]"},
      {"text: 'a' stopping { min_tokens: -1 }", "stopping.min_tokens is -1; must be in [0, 16]"},
      {"text: 'a' stopping { stop: 'b' stop: '' }",
       "bytes of stopping.stop[1] is 0; must be in [1, 256]"},
      {"text: 'a' stopping { stop_token_ids: [1, -7] }",
       "stopping.stop_token_ids[1] is -7; must be in [0, 25]"},
      {"text: 'a' output { logprobs: 21 }", "output.logprobs is 21; must be in [0, 20]"},
      {"text: 'a' output { logprobs: -1 }", "output.logprobs is -1; must be in [0, 20]"},
      {"text: 'a' priority: 101", "priority is 101; must be in [-100, 100]"},
      {"text: 'a' priority: -2147483648", "priority is -2147483648; must be in [-100, 100]"},
      {"text: 'a' tenant: 'a\\x7f'",
       "tenant has the control character 0x7f at byte 1; none is allowed"},
  };
  for (const BadField& bad : cases) EXPECT_EQ(Refusal(bad.request), bad.message) << bad.request;
}

TEST_F(ConvertTest, NotANumberAndInfinityAreRefusedEverywhere) {
  for (const float value : {kNan, kInfinity, -kInfinity}) {
    using Sampling = v1::SamplingParams;
    const auto refused = [&](auto set) {
      v1::GenerateRequest message = Parse("text: 'a'");
      set(message.mutable_sampling());
      return Refusal(message) != "accepted";
    };
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_temperature(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_top_p(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_min_p(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_repetition_penalty(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_presence_penalty(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { s->set_frequency_penalty(value); }));
    EXPECT_TRUE(refused([&](Sampling* s) { (*s->mutable_logit_bias())[1] = value; }));
  }
  v1::GenerateRequest message = Parse("text: 'a'");
  message.mutable_sampling()->set_temperature(kNan);
  EXPECT_EQ(Refusal(message), "sampling.temperature is nan; must be in [0, 100]");
}

TEST_F(ConvertTest, CountsAndSizesAreLimited) {
  limits_.max_prompt_bytes = 20;
  limits_.max_logit_bias = 3;
  const auto refusal = [&](auto change) {
    v1::GenerateRequest message = Parse("text: 'a'");
    change(&message);
    return Refusal(message);
  };
  EXPECT_EQ(refusal([](auto* m) { m->set_text(std::string(21, 'a')); }),
            "text has 21 bytes; at most 20");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 17; ++i) m->mutable_token_ids()->add_ids(1);
            }),
            "token_ids has 17 ids; at most 16");
  EXPECT_EQ(refusal([](auto* m) { m->set_request_id(std::string(129, 'a')); }),
            "request_id has 129 bytes; at most 128");
  EXPECT_EQ(refusal([](auto* m) { m->set_tenant(std::string(65, 'a')); }),
            "tenant has 65 bytes; at most 64");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 1'000'000; ++i)
                m->mutable_stopping()->add_stop(std::string(1, 'x'));
            }),
            "stopping.stop has 1000000 entries; at most 16");
  EXPECT_EQ(refusal([](auto* m) { m->mutable_stopping()->add_stop(std::string(257, 'x')); }),
            "bytes of stopping.stop[0] is 257; must be in [1, 256]");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 65; ++i) m->mutable_stopping()->add_stop_token_ids(1);
            }),
            "stopping.stop_token_ids has 65 entries; at most 64");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 4; ++i) (*m->mutable_sampling()->mutable_logit_bias())[i] = 1;
            }),
            "sampling.logit_bias has 4 entries; at most 3");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 1025; ++i) m->mutable_chat()->add_messages();
            }),
            "chat.messages has 1025 entries; at most 1024");
  EXPECT_EQ(refusal([](auto* m) {
              for (int i = 0; i < 3; ++i) m->mutable_chat()->add_messages()->set_content("1234567");
            }),
            "chat.messages has 21 bytes; at most 20");
  EXPECT_EQ(
      refusal([](auto* m) { m->mutable_chat()->add_messages()->set_role(std::string(65, 'r')); }),
      "chat.messages[0].role has 65 bytes; at most 64");
}

TEST_F(ConvertTest, AnotherModelIsNotFound) {
  EXPECT_EQ(Refusal("text: 'a' model: 'huge'"),
            "NOT_FOUND: model is \"huge\"; this server has only \"tiny\"");
}

TEST_F(ConvertTest, AChatWithoutAKnownTemplateIsAFailedPrecondition) {
  EXPECT_THAT(Refusal("chat { messages { role: 'user' content: 'hi' } }"),
              HasSubstr("FAILED_PRECONDITION"));
}

TEST_F(ConvertTest, AScoreNeedsTwoTokensAndMayFillTheContext) {
  const auto score = [&](int tokens) {
    v1::ScoreRequest message;
    for (int i = 0; i < tokens; ++i) message.mutable_token_ids()->add_ids(1);
    return ToScoreRequest(message, "", absl::InfiniteFuture(), model());
  };
  EXPECT_EQ(score(1).status().message(), "prompt has 1 tokens; at least 2");
  EXPECT_EQ(score(17).status().message(), "token_ids has 17 ids; at most 16");
  ASSERT_TRUE(score(16).ok());
  EXPECT_TRUE(score(16)->score);
  EXPECT_EQ(score(16)->stop.max_tokens, 0);
}

TEST_F(ConvertTest, ARequestIsCompressedAsItSaysOrLeavesItToTheEngine) {
  EXPECT_FALSE(Convert(Parse("text: 'a'"))->request.compression.has_value());
  EXPECT_FALSE(Convert(Parse("text: 'a' compression {}"))->request.compression.has_value());
  const absl::StatusOr<GenerateCall> call =
      Convert(Parse("text: 'a' compression { preset: 'light' ratio: 2.5 }"));
  ASSERT_TRUE(call.ok()) << call.status();
  ASSERT_TRUE(call->request.compression.has_value());
  EXPECT_EQ(call->request.compression->ratio, 2.5);
  EXPECT_EQ(call->request.compression->cluster_window, model().cluster_window);
  EXPECT_EQ(Refusal("text: 'a' compression { ratio: 17 }"),
            "compression.ratio is 17; must be in [1, 16]");
}

TEST_F(ConvertTest, AScoreIsUncompressedUnlessItAsks) {
  v1::ScoreRequest message;
  for (int i = 0; i < 3; ++i) message.mutable_token_ids()->add_ids(1);
  const auto score = [&] { return ToScoreRequest(message, "", absl::InfiniteFuture(), model()); };
  ASSERT_TRUE(score().ok());
  ASSERT_TRUE(score()->compression.has_value());
  EXPECT_FALSE(score()->compression->active());
  message.mutable_compression()->set_preset("lossless");
  EXPECT_EQ(score()->compression->preset, "lossless");
  message.mutable_compression()->set_preset("x");
  EXPECT_THAT(std::string(score().status().message()), HasSubstr("compression.preset is \"x\""));
}

TEST_F(ConvertTest, DetokenizeTakesOnlyKnownIds) {
  v1::DetokenizeRequest message;
  message.add_token_ids(3);
  ASSERT_TRUE(ToTokenIds(message, model()).ok());
  message.add_token_ids(26);
  EXPECT_EQ(ToTokenIds(message, model()).status().message(),
            "token_ids[1] is 26; must be in [0, 25]");
  limits_.max_token_ids = 1;
  EXPECT_EQ(ToTokenIds(message, model()).status().message(), "token_ids has 2 ids; at most 1");
}

TEST_F(ConvertTest, StatusCodesMapByValueAndRetryInfoRidesInTheDetails) {
  for (int code = 1; code <= 16; ++code) {
    const grpc::Status status =
        ToGrpcStatus(absl::Status(static_cast<absl::StatusCode>(code), "because"));
    EXPECT_EQ(static_cast<int>(status.error_code()), code);
    EXPECT_EQ(status.error_message(), "because");
    EXPECT_TRUE(status.error_details().empty());
  }
  EXPECT_TRUE(ToGrpcStatus(absl::OkStatus()).ok());

  absl::Status full = absl::ResourceExhaustedError("full");
  SetRetryAfter(absl::Milliseconds(1500), &full);
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(ToGrpcStatus(full).error_details()));
  EXPECT_EQ(details.code(), 8);
  EXPECT_EQ(details.message(), "full");
  ASSERT_EQ(details.details_size(), 1);
  EXPECT_EQ(details.details(0).type_url(), "type.googleapis.com/google.rpc.RetryInfo");
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_EQ(retry.retry_delay().seconds(), 1);
  EXPECT_EQ(retry.retry_delay().nanos(), 500'000'000);
}

TEST_F(ConvertTest, TokensCarryOnlyWhatWasAskedFor) {
  TokenEvent event;
  event.text = "ab";
  event.tokens = {{.token = 0, .logprob = -0.5f, .top = {{.token = 1, .logprob = -0.25f}}},
                  {.token = 1, .logprob = -1.0f}};
  const auto append = [&](OutputChoice output, bool logprobs) {
    v1::GenerateEvent::Tokens tokens;
    AppendTokens(event, {.tokenizer = &tokenizer_, .output = output, .logprobs = logprobs},
                 tokens.mutable_text(), tokens.mutable_tokens());
    return tokens;
  };
  const v1::GenerateEvent::Tokens all = append({}, true);
  EXPECT_EQ(all.text(), "ab");
  ASSERT_EQ(all.tokens_size(), 2);
  EXPECT_EQ(all.tokens(0).logprob(), -0.5f);
  ASSERT_EQ(all.tokens(0).top_size(), 1);
  EXPECT_EQ(all.tokens(0).top(0).token_bytes(), "b");
  EXPECT_FALSE(append({}, false).tokens(0).has_logprob());
  EXPECT_EQ(append({.text = false}, false).text(), "");
  EXPECT_EQ(append({.tokens = false}, false).tokens_size(), 0);
}

TEST_F(ConvertTest, ScoresAreAveraged) {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinished;
  event.prompt_logprobs = {-1.0f, -3.0f};
  v1::ScoreResponse response;
  FillScore(event, &response);
  EXPECT_THAT(response.logprobs(), ElementsAre(-1.0f, -3.0f));
  EXPECT_DOUBLE_EQ(response.mean_nll(), 2.0);
}

TEST_F(ConvertTest, ReceiptsArriveWhole) {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinished;
  event.receipt = {.logical_tokens = 1,
                   .entries_held = 2,
                   .bytes_held = 3,
                   .bytes_16bit = 4,
                   .ratio = 5.5,
                   .swaps_accepted = 6,
                   .swaps_refused = 7,
                   .min_hit_ratio = 0.875,
                   .max_output_error = 0.0625,
                   .preset = "light",
                   .policy = "similarity",
                   .mode = "holding"};
  v1::GenerateEvent::Finished finished;
  v1::GenerateResponse response;
  v1::ScoreResponse score;
  FillFinished(event, &finished);
  FillFinished(event, &response);
  FillScore(event, &score);
  for (const v1::CompactionReceipt& receipt :
       {finished.receipt(), response.receipt(), score.receipt()}) {
    EXPECT_EQ(receipt.logical_tokens(), 1);
    EXPECT_EQ(receipt.entries_held(), 2);
    EXPECT_EQ(receipt.bytes_held(), 3);
    EXPECT_EQ(receipt.bytes_16bit(), 4);
    EXPECT_EQ(receipt.ratio(), 5.5);
    EXPECT_EQ(receipt.swaps_accepted(), 6);
    EXPECT_EQ(receipt.swaps_refused(), 7);
    EXPECT_EQ(receipt.min_hit_ratio(), 0.875);
    EXPECT_EQ(receipt.max_output_error(), 0.0625);
    EXPECT_EQ(receipt.preset(), "light");
    EXPECT_EQ(receipt.policy(), "similarity");
    EXPECT_EQ(receipt.mode(), "holding");
  }
}

TEST_F(ConvertTest, OnlyErrorsThatMayPassAreRetryable) {
  const auto retryable = [](absl::Status status) {
    TokenEvent event;
    event.kind = TokenEvent::Kind::kFinished;
    event.reason = FinishReason::kError;
    event.status = std::move(status);
    v1::GenerateEvent::Error error;
    FillError(event, &error);
    EXPECT_EQ(error.code(), static_cast<int>(event.status.code()));
    return error.retryable();
  };
  EXPECT_FALSE(retryable(absl::InternalError("the model's output was not a number")));
  absl::Status failed_step = absl::InternalError("a kernel failed");
  SetTransient(&failed_step);
  EXPECT_TRUE(retryable(failed_step));
  EXPECT_TRUE(retryable(absl::UnavailableError("draining")));
  EXPECT_FALSE(retryable(absl::ResourceExhaustedError("it does not fit")));
  absl::Status full = absl::ResourceExhaustedError("full");
  SetRetryAfter(absl::Seconds(1), &full);
  EXPECT_TRUE(retryable(full));
  EXPECT_FALSE(retryable(absl::CancelledError("aborted")));
}

TEST_F(ConvertTest, TheLoadTellsOfTheWholeCache) {
  EngineLoad load;
  load.kv_bytes_used = 100;
  load.kv_bytes_16bit = 425;
  load.staging_bytes = 7;
  load.slack_bytes = 8;
  load.jobs_out = 9;
  load.swaps.refused = 10;
  v1::GetLoadResponse message;
  FillLoad(load, absl::Now(), &message);
  EXPECT_EQ(message.kv_ratio(), 4.25);
  EXPECT_EQ(message.kv_bytes_16bit(), 425);
  EXPECT_EQ(message.kv_bytes_staging(), 7);
  EXPECT_EQ(message.kv_bytes_slack(), 8);
  EXPECT_EQ(message.compaction_jobs_out(), 9);
  EXPECT_EQ(message.swaps().refused(), 10u);
}

}  // namespace
}  // namespace condense
