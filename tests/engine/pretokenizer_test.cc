#include "engine/tokenizer/pretokenizer.h"

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace condense {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

std::vector<std::string> Words(const char* rule, std::string_view text) {
  const auto pretokenizer = Pretokenizer::Make(rule);
  EXPECT_TRUE(pretokenizer.ok()) << pretokenizer.status();
  std::vector<std::string> words;
  if (!pretokenizer.ok()) return words;
  for (const std::string_view word : (*pretokenizer)->Split(text)) words.emplace_back(word);
  return words;
}

constexpr const char* kRules[] = {"default", "gpt-2", "llama-bpe", "qwen2", "smollm"};

TEST(PretokenizerTest, UnknownNamesAreRefusedWithTheKnownOnes) {
  const absl::Status status = Pretokenizer::Make("wordle").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  for (const char* rule : kRules) EXPECT_THAT(std::string(status.message()), HasSubstr(rule));
  EXPECT_THAT(std::string(status.message()), HasSubstr("'wordle'"));
}

TEST(PretokenizerTest, AliasesNameTheSameRule) {
  EXPECT_TRUE((*Pretokenizer::Make("llama3"))->takes_whole_words());
  EXPECT_FALSE((*Pretokenizer::Make("deepseek-r1-qwen"))->takes_whole_words());
}

TEST(PretokenizerTest, OnlyLlama3TakesWholeWordsAndAddsBos) {
  for (const char* rule : kRules) {
    const auto pretokenizer = *Pretokenizer::Make(rule);
    EXPECT_EQ(pretokenizer->takes_whole_words(), std::string_view(rule) == "llama-bpe");
    EXPECT_EQ(pretokenizer->adds_bos(), std::string_view(rule) == "llama-bpe");
  }
}

TEST(PretokenizerTest, SmolLmCutsDigitsOneByOne) {
  EXPECT_THAT(Words("smollm", "a 12b  3"), ElementsAre("a", " ", "1", "2", "b", "  ", "3"));
  EXPECT_THAT(Words("smollm", "it's  ok\n\n x"), ElementsAre("it", "'s", " ", " ok", "\n\n", " x"));
  EXPECT_THAT(Words("smollm", "IT'S"), ElementsAre("IT", "'", "S"));
}

TEST(PretokenizerTest, Gpt2KeepsNumbersWithTheirSpace) {
  EXPECT_THAT(Words("gpt-2", "a 12b  3"), ElementsAre("a", " 12", "b", " ", " 3"));
  EXPECT_THAT(Words("gpt-2", "we'll, \"no\" "),
              ElementsAre("we", "'ll", ",", " \"", "no", "\"", " "));
}

TEST(PretokenizerTest, LlamaCutsDigitsInThreesAndLineBreaksWithTheSpaceBefore) {
  EXPECT_THAT(Words("llama-bpe", "a 12345"), ElementsAre("a", " ", "123", "45"));
  EXPECT_THAT(Words("llama-bpe", "x  \n\n  y"), ElementsAre("x", "  \n\n", " ", " y"));
  EXPECT_THAT(Words("llama-bpe", "DON'T (a) end.\n"),
              ElementsAre("DON", "'T", " (", "a", ")", " end", ".\n"));
  EXPECT_THAT(Words("llama-bpe", "\tif"), ElementsAre("\tif"));
}

TEST(PretokenizerTest, QwenCutsDigitsOneByOne) {
  EXPECT_THAT(Words("qwen2", "a 123"), ElementsAre("a", " ", "1", "2", "3"));
  EXPECT_THAT(Words("qwen2", "we'RE"), ElementsAre("we", "'RE"));
}

TEST(PretokenizerTest, DefaultCutsPunctuationAndThenDigitsInThrees) {
  EXPECT_THAT(Words("default", "it's 12345!? a"),
              ElementsAre("it", "'", "s", " ", "123", "45", "!?", " a"));
}

TEST(PretokenizerTest, LettersAndSpacesAreThoseOfUnicode) {
  EXPECT_THAT(Words("smollm", "na\u00efve \u65e5\u672c"),
              ElementsAre("na\u00efve", " \u65e5\u672c"));
  EXPECT_THAT(Words("smollm", "a\u3000\u3000b"), ElementsAre("a", "\u3000", "\u3000", "b"));
  EXPECT_THAT(Words("smollm", "a\u180e\u180eb"), ElementsAre("a", "\u180e\u180e", "b"));
  EXPECT_THAT(Words("smollm", "x\u00bd"), ElementsAre("x", "\u00bd"));
}

TEST(PretokenizerTest, BytesThatAreNotUtf8AreAWordOfTheirOwn) {
  EXPECT_THAT(Words("smollm",
                    "ab\xff\xfe"
                    "cd \xe2\x82"),
              ElementsAre("ab", "\xff\xfe", "cd", " ", "\xe2\x82"));
  EXPECT_THAT(Words("smollm", "\xed\xa0\x80"), ElementsAre("\xed\xa0\x80"));
  EXPECT_THAT(Words("smollm", "\xc0\x80"), ElementsAre("\xc0\x80"));
}

TEST(PretokenizerTest, LongRunsStayLinearAndWhole) {
  constexpr size_t kSize = 1 << 20;
  for (const char* rule : kRules) {
    SCOPED_TRACE(rule);
    for (const char letter : {'a', ' ', '\n', '!', '\t'}) {
      EXPECT_THAT(Words(rule, std::string(kSize, letter)), SizeIs(1)) << static_cast<int>(letter);
    }
    EXPECT_THAT(Words(rule, std::string(kSize, ' ') + "x"), SizeIs(2));
    std::string joined;
    const std::string text = std::string(kSize, ' ') + "\n" + std::string(kSize, ' ') + "7";
    for (const std::string& word : Words(rule, text)) joined += word;
    EXPECT_EQ(joined, text);
  }
}

}  // namespace
}  // namespace condense
