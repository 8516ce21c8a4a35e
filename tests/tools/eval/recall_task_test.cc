#include "tools/eval/recall_task.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/tools/eval/byte_tokenizer.h"
#include "tools/eval/lookup_task.h"
#include "tools/eval/needle_task.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kContext = 1200;

std::vector<EvalText> Texts() {
  std::string prose;
  while (prose.size() < 6000) prose += "The rain fell on the roof. Nobody came to the door.\n";
  return {EvalText("prose", prose, ByteTokenizer())};
}

using MakeContexts = absl::StatusOr<std::vector<RecallContext>> (*)(const std::vector<EvalText>&,
                                                                    const RecallOptions&,
                                                                    const Tokenizer&);

struct TaskCase {
  const char* name;
  MakeContexts make;
};

class RecallTaskTest : public ::testing::TestWithParam<TaskCase> {
 protected:
  std::vector<RecallContext> Make(const RecallOptions& options, bool bos = false) const {
    const auto contexts = GetParam().make(Texts(), options, ByteTokenizer(bos));
    EXPECT_TRUE(contexts.ok()) << contexts.status();
    return contexts.ok() ? *contexts : std::vector<RecallContext>();
  }
  static std::string TextOf(const RecallContext& context) {
    return ByteTokenizer().Decode(context.tokens, false);
  }
};
INSTANTIATE_TEST_SUITE_P(Tasks, RecallTaskTest,
                         ::testing::Values(TaskCase{"needle", MakeNeedleContexts},
                                           TaskCase{"lookup", MakeLookupContexts}),
                         [](const auto& info) { return std::string(info.param.name); });

TEST_P(RecallTaskTest, EveryAnswerStandsOnceInItsContextAfterItsQuestion) {
  const auto contexts = Make({.context_tokens = kContext, .questions = 40});
  ASSERT_EQ(contexts.size(), 10u);
  for (const RecallContext& context : contexts) {
    ASSERT_EQ(context.questions.size(), 4u);
    const std::string text = TextOf(context);
    for (const RecallQuestion& question : context.questions) {
      // The line that the question begins; a list's heading may stand further away.
      const std::string start = question.text.substr(question.text.rfind('\n'));
      const size_t place = text.find(start + " " + question.answer);
      ASSERT_NE(place, std::string::npos) << question.text;
      EXPECT_EQ(text.find(start, place + 1), std::string::npos) << question.text;
      EXPECT_LT(place + start.size() + question.answer.size(), text.size() - 64);
    }
  }
}

TEST_P(RecallTaskTest, ContextsHaveExactlyTheTokensAskedFor) {
  for (const int64_t size : {700, 701, 1200}) {
    for (const bool bos : {false, true}) {
      for (const RecallContext& context : Make({.context_tokens = size, .questions = 8}, bos)) {
        EXPECT_EQ(static_cast<int64_t>(context.tokens.size()), size);
        EXPECT_EQ(context.tokens.front() == ByteTokenizer::kBos, bos);
      }
    }
  }
}

TEST_P(RecallTaskTest, TheSeedFixesEverything) {
  const RecallOptions options{.context_tokens = kContext, .questions = 6, .seed = 3};
  const auto once = Make(options), again = Make(options);
  auto changed = options;
  changed.seed = 4;
  const auto other = Make(changed);
  ASSERT_EQ(once.size(), 2u);
  EXPECT_EQ(once[1].questions.size(), 2u);
  for (size_t c = 0; c < once.size(); ++c) {
    EXPECT_EQ(once[c].tokens, again[c].tokens);
    EXPECT_NE(once[c].tokens, other[c].tokens);
  }
}

TEST_P(RecallTaskTest, QuestionsOfAContextHaveDifferentAnswers) {
  for (const RecallContext& context : Make({.context_tokens = kContext, .questions = 80})) {
    std::set<std::string> texts, answers;
    for (const RecallQuestion& question : context.questions) {
      texts.insert(question.text);
      answers.insert(question.answer);
    }
    EXPECT_EQ(texts.size(), context.questions.size());
    EXPECT_EQ(answers.size(), context.questions.size());
  }
}

TEST_P(RecallTaskTest, TooShortAContextOrATextIsRefusedWithTheNumbers) {
  const auto small =
      GetParam().make(Texts(), {.context_tokens = 100, .questions = 4}, ByteTokenizer());
  EXPECT_EQ(small.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(small.status().message()), HasSubstr("100"));
  const auto large =
      GetParam().make(Texts(), {.context_tokens = 9000, .questions = 4}, ByteTokenizer());
  EXPECT_EQ(large.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(large.status().message()), HasSubstr("\"prose\""));
}

TEST_P(RecallTaskTest, NoQuestionsAreNoContexts) {
  EXPECT_TRUE(Make({.context_tokens = 10, .questions = 0}).empty());
}

TEST(NeedleTaskTest, FactsLieInDifferentQuarters) {
  const auto contexts =
      MakeNeedleContexts(Texts(), {.context_tokens = 2000, .questions = 40}, ByteTokenizer());
  ASSERT_TRUE(contexts.ok());
  for (const RecallContext& context : *contexts) {
    const std::string text = ByteTokenizer().Decode(context.tokens, false);
    size_t last = 0;
    for (const RecallQuestion& question : context.questions) {
      const size_t place = text.find(question.text);
      EXPECT_GT(place, last + (last == 0 ? 0 : 100));
      last = place;
    }
  }
}

TEST(CheckAnswerTest, IsOpenUntilItIsKnown) {
  EXPECT_EQ(CheckAnswer("", "48213"), Verdict::kOpen);
  EXPECT_EQ(CheckAnswer(" ", "48213"), Verdict::kOpen);
  EXPECT_EQ(CheckAnswer(" 482", "48213"), Verdict::kOpen);
  EXPECT_EQ(CheckAnswer(" 48213", "48213"), Verdict::kRight);
  EXPECT_EQ(CheckAnswer("48213.\nThe", "48213"), Verdict::kRight);
  EXPECT_EQ(CheckAnswer(" 483", "48213"), Verdict::kWrong);
  EXPECT_EQ(CheckAnswer(" a", "48213"), Verdict::kWrong);
  EXPECT_EQ(CheckAnswer(" 48 213", "48213"), Verdict::kWrong);
}

}  // namespace
}  // namespace condense
