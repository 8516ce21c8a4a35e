#include "engine/utf8.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(Utf8Test, WellFormedTextComesBackUnchanged) {
  const std::string text = "a\xC3\xA4\xE2\x82\xAC\xF0\x9F\x98\x80z";
  EXPECT_EQ(ReplaceInvalidUtf8(text), text);
  EXPECT_TRUE(IsValidUtf8(text));
  EXPECT_TRUE(IsValidUtf8(""));
}

TEST(Utf8Test, EachMaximalIllFormedPartBecomesOneReplacement) {
  const std::string r = "\xEF\xBF\xBD";
  EXPECT_EQ(ReplaceInvalidUtf8("\xFF"), r);
  EXPECT_EQ(ReplaceInvalidUtf8("\x80\x80"), r + r);
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82"), r);  // the beginning of a character
  EXPECT_EQ(ReplaceInvalidUtf8("\xE2\x82!"), r + "!");
  EXPECT_EQ(ReplaceInvalidUtf8("\xC0\xAF"), r + r);                  // overlong
  EXPECT_EQ(ReplaceInvalidUtf8("\xED\xA0\x80"), r + r + r);          // a surrogate
  EXPECT_EQ(ReplaceInvalidUtf8("\xF4\x90\x80\x80"), r + r + r + r);  // past U+10FFFF
  EXPECT_FALSE(IsValidUtf8("\xED\xA0\x80"));
}

TEST(Utf8Test, IncompleteSuffixIsFoundAtEveryLength) {
  const std::string euro = "\xE2\x82\xAC", smile = "\xF0\x9F\x98\x80";
  EXPECT_EQ(IncompleteUtf8Suffix(""), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("abc"), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("a" + euro), 0u);
  EXPECT_EQ(IncompleteUtf8Suffix("a" + euro.substr(0, 1)), 1u);
  EXPECT_EQ(IncompleteUtf8Suffix("a" + euro.substr(0, 2)), 2u);
  for (size_t n = 1; n <= 3; ++n) EXPECT_EQ(IncompleteUtf8Suffix(smile.substr(0, n)), n);
  EXPECT_EQ(IncompleteUtf8Suffix("\x80\x80"), 0u);  // can never become a character
  EXPECT_EQ(IncompleteUtf8Suffix("\xE0\x80"), 0u);  // overlong already
}

}  // namespace
}  // namespace condense
