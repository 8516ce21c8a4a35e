#include "tools/answer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::HasSubstr;

v1::GenerateEvent Tokens(const std::string& text, std::vector<int32_t> ids) {
  v1::GenerateEvent event;
  event.mutable_tokens()->set_text(text);
  for (const int32_t id : ids) event.mutable_tokens()->add_tokens()->set_token_id(id);
  return event;
}

Answer ThreeTokens() {
  Answer answer;
  answer.started = absl::UnixEpoch();
  answer.Add(Tokens("a", {1}), absl::UnixEpoch() + absl::Seconds(1));
  answer.Add(Tokens("bc", {2, 3}), absl::UnixEpoch() + absl::Seconds(2));
  return answer;
}

TEST(AnswerTest, CollectsTextAndTokens) {
  const Answer answer = ThreeTokens();
  EXPECT_EQ(answer.text, "abc");
  EXPECT_EQ(answer.tokens.size(), 3u);
  EXPECT_DOUBLE_EQ(answer.SecondsToFirstToken(), 1.0);
  EXPECT_DOUBLE_EQ(answer.SecondsInTotal(), 2.0);
}

TEST(AnswerTest, SpeedCountsTokensAfterTheFirst) {
  EXPECT_DOUBLE_EQ(ThreeTokens().TokensPerSecond(), 2.0);
  EXPECT_DOUBLE_EQ(Answer().TokensPerSecond(), 0.0);
}

TEST(AnswerTest, JsonOfAFailureHasTheErrorAndWhatCameBefore) {
  const auto json = AnswerToJson(ThreeTokens(), absl::DeadlineExceededError("late"));
  EXPECT_EQ(json["text"], "abc");
  EXPECT_EQ(json["error"]["code"], "DEADLINE_EXCEEDED");
  EXPECT_FALSE(json.contains("usage"));
}

TEST(AnswerTest, DescriptionNamesWhatEndedTheText) {
  Answer answer = ThreeTokens();
  v1::GenerateEvent event;
  event.mutable_finished()->set_reason(v1::FINISH_REASON_STOP);
  event.mutable_finished()->set_stop_string("E\nD");
  answer.Add(event, absl::UnixEpoch() + absl::Seconds(3));
  EXPECT_THAT(DescribeAnswer(answer), HasSubstr("stop at \"E\\nD\""));
}

TEST(AnswerTest, TheReceiptTellsWhatTheCacheDid) {
  Answer answer = ThreeTokens();
  v1::GenerateEvent event;
  v1::CompactionReceipt* receipt = event.mutable_finished()->mutable_receipt();
  receipt->set_logical_tokens(1000);
  receipt->set_entries_held(5400);
  receipt->set_bytes_held(1 << 20);
  receipt->set_bytes_16bit(4 << 20);
  receipt->set_ratio(4.0);
  receipt->set_preset("balanced");
  receipt->set_policy("balanced");
  receipt->set_mode("compacting");
  receipt->set_swaps_accepted(12);
  receipt->set_swaps_refused(3);
  receipt->set_min_hit_ratio(0.9125);
  receipt->set_hit_ratio(0.87);
  receipt->set_max_output_error(0.0421);
  answer.Add(event, absl::UnixEpoch() + absl::Seconds(3));
  const std::string text = DescribeAnswer(answer);
  EXPECT_THAT(text, HasSubstr("1.0 MiB in 5,400 entries for 1,000 tokens, ratio 4.00 (16 bits: "
                              "4.0 MiB), preset balanced, policy balanced, mode compacting"));
  EXPECT_THAT(
      text,
      HasSubstr("12 accepted, 3 refused; hit ratio 0.870, of one 0.912 at least, largest output "
                "error 0.042"));
  const auto json = AnswerToJson(answer, absl::OkStatus())["receipt"];
  EXPECT_EQ(json["swaps_accepted"], 12);
  EXPECT_EQ(json["swaps_refused"], 3);
  EXPECT_EQ(json["min_hit_ratio"], 0.9125);
  EXPECT_EQ(json["max_output_error"], 0.0421);

  receipt->set_swaps_accepted(0);
  answer.Add(event, absl::UnixEpoch() + absl::Seconds(3));
  EXPECT_THAT(DescribeAnswer(answer), HasSubstr("none, 3 refused"));
}

}  // namespace
}  // namespace condense
