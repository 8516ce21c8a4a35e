#include "engine/sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "tests/support/fake_tokenizer.h"

namespace condense {
namespace {

constexpr int kHead = 20;

class SequenceTest : public ::testing::Test {
 protected:
  std::unique_ptr<Sequence> Make(Request request, int max_tokens) {
    request.id = "r";
    if (request.prompt.empty()) request.prompt = {1, 2, 3};
    auto stream = std::make_shared<TokenStream>(request.id, 1000);
    auto sequence =
        std::make_unique<Sequence>(Submission{std::move(request), std::move(stream), now_},
                                   max_tokens, std::vector<TokenId>{});
    sequence->Start(now_, nullptr);
    return sequence;
  }
  static std::unique_ptr<TokenRecord> Record(int capacity) {
    return std::make_unique<TokenRecord>(capacity, kHead, absl::UnixEpoch());
  }
  // One step: the row of the last known token gives `token`.
  void Generate(Sequence* sequence, TokenId token) {
    SampleResult result;
    result.token = token;
    result.logprob = -0.5f * static_cast<float>(token);
    for (int i = 0; i < kHead; ++i) result.top[i] = {i, -static_cast<float>(i)};
    sequence->Computed(sequence->known() - sequence->computed());
    sequence->Take(sequence->known() - 1, result, tokenizer_, now_);
  }

  FakeTokenizer tokenizer_;
  absl::Time now_ = absl::UnixEpoch();
};

TEST_F(SequenceTest, ARecordKeepsTheNewestTokens) {
  const auto sequence = Make({}, 100);
  Generate(sequence.get(), 4);  // before there is a record
  sequence->SetRecord(Record(3));
  EXPECT_EQ(sequence->record()->size(), 0);
  for (const TokenId token : {5, 6, 7, 8}) Generate(sequence.get(), token);
  const TokenRecord& record = *sequence->record();
  ASSERT_EQ(record.size(), 3);
  EXPECT_EQ(record.added(), 4);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(record.at(i).token, 6 + i);
    EXPECT_EQ(record.at(i).logprob, -0.5f * static_cast<float>(6 + i));
    EXPECT_EQ(record.at(i).top[kHead - 1].token, kHead - 1);
  }
}

TEST_F(SequenceTest, PromptScoresAreNoPartOfARecord) {
  Request request;
  request.score = true;
  const auto sequence = Make(std::move(request), 0);
  sequence->SetRecord(Record(3));
  SampleResult result;
  result.token = 2;
  sequence->Take(0, result, tokenizer_, now_);
  EXPECT_EQ(sequence->record()->size(), 0);
}

// What it generates afterwards is of another cache.
TEST_F(SequenceTest, APreemptionClearsTheRecord) {
  const auto sequence = Make({}, 100);
  sequence->SetRecord(Record(3));
  for (const TokenId token : {5, 6}) Generate(sequence.get(), token);
  static_cast<void>(sequence->Preempt());
  EXPECT_EQ(sequence->record()->size(), 0);
  EXPECT_EQ(sequence->record()->added(), 2);
  sequence->Start(now_, nullptr);
  Generate(sequence.get(), 9);
  ASSERT_EQ(sequence->record()->size(), 1);
  EXPECT_EQ(sequence->record()->at(0).token, 9);
}

TEST_F(SequenceTest, TheTokenThatEndsItIsRecorded) {
  Request request;
  request.stop.stop_ids = {7};
  auto stream = std::make_shared<TokenStream>("r", 1000);
  request.id = "r";
  request.prompt = {1};
  Sequence sequence(Submission{request, stream, now_}, 100, {7});
  sequence.SetRecord(Record(3));
  sequence.Start(now_, nullptr);
  Generate(&sequence, 5);
  Generate(&sequence, 7);
  EXPECT_TRUE(sequence.ended());
  EXPECT_EQ(sequence.known(), 2);
  ASSERT_EQ(sequence.record()->size(), 2);
  EXPECT_EQ(sequence.record()->at(1).token, 7);
}

TEST_F(SequenceTest, ARowThatIsNotFiniteIsNotRecorded) {
  const auto sequence = Make({}, 100);
  sequence->SetRecord(Record(3));
  SampleResult result;
  result.finite = false;
  sequence->Take(2, result, tokenizer_, now_);
  EXPECT_TRUE(sequence->broken());
  EXPECT_EQ(sequence->record()->size(), 0);
}

// Copies go to where they are probed, and the sequence hears of it.
TEST_F(SequenceTest, WhatAProbeFindsIsSeenInTheRecord) {
  const auto sequence = Make({}, 100);
  sequence->SetRecord(Record(3));
  Generate(sequence.get(), 5);
  const TokenRecord copy = *sequence->record();
  Generate(sequence.get(), 6);
  EXPECT_EQ(copy.size(), 1);
  EXPECT_FALSE(sequence->record()->drift().has_value());
  copy.set_drift(0.25);
  EXPECT_EQ(sequence->record()->drift(), 0.25);
}

TEST_F(SequenceTest, RequestsGetTheAlternativesTheyAskedForWhateverIsRecorded) {
  for (const int asked : {-1, 0, 2, kHead}) {
    Request request;
    request.num_logprobs = asked;
    const auto sequence = Make(std::move(request), 100);
    EXPECT_EQ(sequence->RowFor(2).num_top, std::max(0, asked));
    sequence->SetRecord(Record(3));
    EXPECT_EQ(sequence->RowFor(2).num_top, kHead);
    Generate(sequence.get(), 5);
    TokenEvent event;
    ASSERT_TRUE(sequence->Collect(&event));
    ASSERT_EQ(event.tokens.size(), 1u);
    EXPECT_EQ(event.tokens[0].top.size(), static_cast<size_t>(std::max(0, asked)));
    EXPECT_EQ(event.tokens[0].logprob, asked >= 0 ? -2.5f : 0.0f);
  }
}

TEST_F(SequenceTest, ForcedTokensSurviveAPreemption) {
  Request request;
  request.forced = {4, 5, 6};
  const auto sequence = Make(std::move(request), 3);
  Generate(sequence.get(), 4);
  static_cast<void>(sequence->Preempt());
  sequence->Start(now_, nullptr);
  EXPECT_EQ(sequence->RowFor(sequence->known() - 1).target, 5);
}

}  // namespace
}  // namespace condense
