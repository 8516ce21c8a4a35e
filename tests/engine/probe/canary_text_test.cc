#include "engine/probe/canary_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <memory>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "engine/gguf.h"
#include "engine/probe/fact_words.h"

namespace condense {
namespace {

// The longest sentence with the longest words, and a fact with what surrounds it: bytes.
constexpr size_t kLongestSentence = 100;
constexpr size_t kLongestFact = 60;

struct Fact {
  std::string question;  // "The serial number of the Raven archive is"
  std::string number;
  size_t end = 0;  // where it ends in the text
};

class CanaryTextTest : public ::testing::TestWithParam<const char*> {
 protected:
  CanaryTextTest() {
    const auto file =
        GgufFile::Open(std::string(CONDENSE_TEST_DATA "/tiny/") + GetParam() + ".gguf");
    EXPECT_TRUE(file.ok()) << file.status();
    if (file.ok()) tokenizer_ = Tokenizer::Make(**file).value();
  }

  CanaryText Make(int32_t tokens, uint64_t seed) const {
    return MakeCanaryText(*tokenizer_, tokens, seed);
  }
  std::string Text(const std::vector<TokenId>& tokens, size_t begin, size_t end) const {
    std::string text;
    for (size_t i = begin; i < end; ++i) {
      text += tokenizer_->TokenBytes(tokens[i], /*special=*/false);
    }
    return text;
  }
  std::string Text(const std::vector<TokenId>& tokens) const {
    return Text(tokens, 0, tokens.size());
  }
  static std::vector<Fact> FindFacts(const std::string& text) {
    static const std::regex kFact(
        "\n(The [a-z]+ [a-z]+ of the [A-Z][a-z]+ archive is) ([0-9]{5})\\.");
    std::vector<Fact> facts;
    for (std::sregex_iterator it(text.begin(), text.end(), kFact), end; it != end; ++it) {
      facts.push_back({(*it)[1], (*it)[2], static_cast<size_t>(it->position() + it->length())});
    }
    return facts;
  }

  std::unique_ptr<const Tokenizer> tokenizer_;
};

TEST_P(CanaryTextTest, ASeedMakesOneText) {
  const CanaryText a = Make(1000, 7), b = Make(1000, 7), other = Make(1000, 8);
  EXPECT_EQ(a.prompt, b.prompt);
  EXPECT_EQ(a.forced, b.forced);
  EXPECT_NE(a.prompt, other.prompt);
  EXPECT_NE(a.forced, other.forced);
  std::set<std::string> numbers;
  for (const CanaryText* text : {&a, &other}) {
    for (const Fact& fact : FindFacts(Text(text->prompt))) numbers.insert(fact.number);
  }
  EXPECT_EQ(numbers.size(), 2u * kFactsTogether);
}

TEST_P(CanaryTextTest, EveryAnswerIsTheNumberThatWasTold) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const CanaryText canary = Make(seed % 2 == 0 ? 1000 : 256, seed);
    const std::vector<Fact> facts = FindFacts(Text(canary.prompt));
    ASSERT_EQ(canary.answers.size(), facts.size());
    std::set<std::string> asked;
    for (const CanaryText::Answer& answer : canary.answers) {
      ASSERT_LT(answer.begin, answer.end);
      ASSERT_LE(static_cast<size_t>(answer.end), canary.forced.size());
      const std::string before = Text(canary.forced, 0, answer.begin);
      const auto told = std::find_if(facts.begin(), facts.end(), [&](const Fact& fact) {
        return before.ends_with("\n" + fact.question);
      });
      ASSERT_NE(told, facts.end()) << before;
      EXPECT_EQ(Text(canary.forced, answer.begin, answer.end), " " + told->number);
      EXPECT_TRUE(asked.insert(told->question).second);
    }
  }
}

// A model that mixes up facts of one kind in the full cache would measure nothing.
TEST_P(CanaryTextTest, FactsDifferInAllThatIsAskedFor) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    std::set<std::string> kinds, owners;
    for (const Fact& fact : FindFacts(Text(Make(1000, seed).prompt))) {
      const size_t of = fact.question.find(" of the ");
      kinds.insert(fact.question.substr(0, of));
      owners.insert(fact.question.substr(of));
    }
    EXPECT_EQ(kinds.size(), static_cast<size_t>(kFactsTogether));
    EXPECT_EQ(owners.size(), static_cast<size_t>(kFactsTogether));
  }
}

TEST_P(CanaryTextTest, TheQuestionsComeInAnyOrder) {
  int in_order = 0;
  for (uint64_t seed = 1; seed <= 48; ++seed) {
    const CanaryText canary = Make(1000, seed);
    const std::vector<Fact> told = FindFacts(Text(canary.prompt));
    const std::vector<Fact> asked = FindFacts(Text(canary.forced));
    ASSERT_EQ(told.size(), asked.size());
    in_order += std::equal(told.begin(), told.end(), asked.begin(),
                           [](const auto& a, const auto& b) { return a.number == b.number; });
  }
  EXPECT_LT(in_order, 12);  // 2 of 48, on average
}

TEST_P(CanaryTextTest, FactsStandInTheFirstNineTenths) {
  for (const int32_t tokens : {1000, 1024, 3000}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      SCOPED_TRACE(testing::Message() << tokens << " tokens, seed " << seed);
      const CanaryText canary = Make(tokens, seed);
      const std::vector<Fact> facts = FindFacts(Text(canary.prompt));
      ASSERT_EQ(facts.size(), static_cast<size_t>(kFactsTogether));
      const auto nine_tenths = static_cast<size_t>(0.9 * tokens);
      EXPECT_LE(facts.back().end, Text(canary.prompt, 0, nine_tenths).size());
      // The first is far from the end, too: they are spread.
      EXPECT_LT(facts.front().end, Text(canary.prompt, 0, tokens / 2).size());
    }
  }
}

// These tokens are short.
TEST_P(CanaryTextTest, AShortPromptTellsWhatItHasRoomFor) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    const CanaryText canary = Make(256, seed);
    const std::vector<Fact> facts = FindFacts(Text(canary.prompt));
    ASSERT_GE(facts.size(), 1u);
    EXPECT_LT(facts.size(), static_cast<size_t>(kFactsTogether));
    EXPECT_LE(facts.back().end, Text(canary.prompt, 0, 230).size());
    EXPECT_EQ(FindFacts(Text(canary.forced)).size(), facts.size());
  }
}

TEST_P(CanaryTextTest, ThePromptIsAsLongAsAskedFor) {
  for (const int32_t tokens : {256, 1000, 3000}) {
    for (uint64_t seed = 1; seed <= 10; ++seed) {
      const CanaryText canary = Make(tokens, seed);
      const auto size = static_cast<int32_t>(canary.prompt.size());
      EXPECT_GE(size, tokens);
      EXPECT_LT(Text(canary.prompt, tokens, size).size(), kLongestSentence + kLongestFact);
    }
  }
}

TEST_P(CanaryTextTest, NoDigitStandsOutsideAFact) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const CanaryText canary = Make(2000, seed);
    for (const auto* tokens : {&canary.prompt, &canary.forced}) {
      const std::string text = Text(*tokens);
      const auto digits = std::count_if(text.begin(), text.end(),
                                        [](unsigned char c) { return std::isdigit(c) != 0; });
      EXPECT_EQ(digits, 5 * kFactsTogether);
      EXPECT_EQ(text.find('{'), std::string::npos);
    }
  }
}

TEST_P(CanaryTextTest, ThereIsTimeToCompactBeforeTheFirstQuestion) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    const CanaryText canary = Make(1000, seed);
    EXPECT_THAT(Text(canary.forced, 0, kCanaryRunUp), testing::Not(testing::HasSubstr("archive")));
    EXPECT_GT(canary.answers.front().begin, kCanaryRunUp);
  }
}

TEST_P(CanaryTextTest, ItBeginsAsTheModelsTextsDo) {
  const CanaryText canary = Make(256, 1);
  if (tokenizer_->adds_bos()) {
    EXPECT_EQ(canary.prompt.front(), tokenizer_->bos());
  } else {
    EXPECT_EQ(Text(canary.prompt, 0, 1).substr(0, 1), " ");
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CanaryTextTest, ::testing::Values("llama-f32", "gemma3"),
                         [](const auto& info) {
                           return std::string(info.param) == "gemma3" ? "gemma3" : "llama";
                         });

}  // namespace
}  // namespace condense
