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

}  // namespace
}  // namespace condense
