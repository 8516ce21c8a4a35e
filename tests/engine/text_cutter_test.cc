#include "engine/text_cutter.h"

#include <gtest/gtest.h>

#include <random>

#include "engine/utf8.h"

namespace condense {
namespace {

TEST(TextCutterTest, PlainTokensPassAtOnce) {
  TextCutter cutter({});
  TextCut cut = cutter.Append("Hello", true);
  EXPECT_EQ(cut.text, "Hello");
  EXPECT_EQ(cut.released_tokens, 1);
  EXPECT_EQ(cut.stop_index, -1);
}

TEST(TextCutterTest, ACharacterIsHeldUntilItIsWhole) {
  TextCutter cutter({});
  TextCut cut = cutter.Append("\xF0\x9F", true);
  EXPECT_EQ(cut.text, "");
  EXPECT_EQ(cut.released_tokens, 0);
  cut = cutter.Append("\x98\x80!", true);
  EXPECT_EQ(cut.text, "\xF0\x9F\x98\x80!");
  EXPECT_EQ(cut.released_tokens, 2);
}

TEST(TextCutterTest, AnUnfinishedCharacterIsReplacedOnFlush) {
  TextCutter cutter({});
  static_cast<void>(cutter.Append("a\xE2\x82", true));
  const TextCut cut = cutter.Flush();
  EXPECT_EQ(cut.text, "\xEF\xBF\xBD");
  EXPECT_EQ(cut.released_tokens, 1);
}

TEST(TextCutterTest, AStopStringAcrossTokensNeverLeaks) {
  TextCutter cutter({"<end>"});
  TextCut cut = cutter.Append("say <e", true);
  EXPECT_EQ(cut.text, "say ");
  EXPECT_EQ(cut.released_tokens, 0);
  cut = cutter.Append("nd", true);
  EXPECT_EQ(cut.text, "");
  cut = cutter.Append("> more", true);
  EXPECT_EQ(cut.text, "");
  EXPECT_EQ(cut.stop_index, 0);
  EXPECT_EQ(cut.released_tokens, 1);  // the token that gave "say "
}

TEST(TextCutterTest, AFalseStartIsDeliveredWhole) {
  TextCutter cutter({"<end>"});
  static_cast<void>(cutter.Append("<en", true));
  const TextCut cut = cutter.Append("try>", true);
  EXPECT_EQ(cut.text, "<entry>");
  EXPECT_EQ(cut.released_tokens, 2);
}

TEST(TextCutterTest, OnlyTheSuffixThatCanStillMatchIsHeld) {
  TextCutter cutter({"aab"});
  const TextCut cut = cutter.Append("aaa", true);
  EXPECT_EQ(cut.text, "a");
  EXPECT_EQ(cutter.Append("b", true).stop_index, 0);
}

TEST(TextCutterTest, TheEarliestOfSeveralStopStringsWins) {
  TextCutter cutter({"world", "lo"});
  const TextCut cut = cutter.Append("hello world", true);
  EXPECT_EQ(cut.text, "hel");
  EXPECT_EQ(cut.stop_index, 1);
  EXPECT_EQ(cut.released_tokens, 1);
}

TEST(TextCutterTest, AStopStringThatBeginsInsideACharacterDoesNotSplitIt) {
  TextCutter cutter({"\xA4z"});
  EXPECT_EQ(cutter.Append("\xC3", true).text, "");
  EXPECT_EQ(cutter.Append("\xA4", true).text, "");
  const TextCut cut = cutter.Append("!", true);
  EXPECT_EQ(cut.text, "\xC3\xA4!");
  EXPECT_EQ(cut.released_tokens, 3);
}

TEST(TextCutterTest, AStopStringAtTheStartReleasesNoToken) {
  TextCutter cutter({"x"});
  const TextCut cut = cutter.Append("xyz", true);
  EXPECT_EQ(cut.text, "");
  EXPECT_EQ(cut.released_tokens, 0);
  EXPECT_EQ(cut.stop_index, 0);
}

TEST(TextCutterTest, StopStringsAreIgnoredInTokensThatMayNotStop) {
  TextCutter cutter({"end"});
  TextCut cut = cutter.Append("the end", false);
  EXPECT_EQ(cut.text, "the end");
  EXPECT_EQ(cut.stop_index, -1);
  cut = cutter.Append(" end", true);
  EXPECT_EQ(cut.text, " ");
  EXPECT_EQ(cut.stop_index, 0);
}

TEST(TextCutterTest, TokensWithoutBytesAreReleasedInOrder) {
  TextCutter cutter({"ab"});
  static_cast<void>(cutter.Append("a", true));
  EXPECT_EQ(cutter.Append("", true).released_tokens, 0);  // behind a token that is held
  const TextCut cut = cutter.Append("c", true);
  EXPECT_EQ(cut.text, "ac");
  EXPECT_EQ(cut.released_tokens, 3);
}

// Whatever the tokens: the text is the prefix of the whole up to the first stop string, every
// delivered piece is valid UTF-8, and a released token's bytes are all delivered.
TEST(TextCutterTest, RandomTokensAgreeWithCuttingTheWhole) {
  for (uint32_t seed = 0; seed < 3000; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const std::vector<std::string> alphabet = {"a",        "b",    "ab", "\xC3",     "\xA4",
                                               "\xE2\x82", "\xAC", "",   "\xC3\xA4", "ba"};
    std::vector<std::string> stops;
    if (random() % 3 != 0)
      stops.push_back(random() % 2 ? "abab"
                                   : "\xC3\xA4"
                                     "b");
    if (random() % 3 == 0) stops.push_back("bba");
    std::vector<std::string> tokens;
    for (int i = 0; i < 12; ++i) tokens.push_back(alphabet[random() % alphabet.size()]);

    TextCutter cutter(stops);
    std::string delivered, whole;
    int32_t released = 0;
    bool stopped = false;
    for (const std::string& token : tokens) {
      whole += token;
      const TextCut cut = cutter.Append(token, true);
      EXPECT_TRUE(IsValidUtf8(cut.text));
      delivered += cut.text;
      released += cut.released_tokens;
      if (cut.stop_index >= 0) {
        stopped = true;
        break;
      }
    }
    if (!stopped) {
      const TextCut cut = cutter.Flush();
      delivered += cut.text;
      released += cut.released_tokens;
    }
    size_t first = std::string::npos;
    for (const std::string& stop : stops) first = std::min(first, whole.find(stop));
    EXPECT_EQ(stopped, first != std::string::npos);
    EXPECT_EQ(delivered, ReplaceInvalidUtf8(std::string_view(whole).substr(0, first)));
    if (!stopped) {
      EXPECT_EQ(released, static_cast<int32_t>(tokens.size()));
    }
  }
}

}  // namespace
}  // namespace condense
