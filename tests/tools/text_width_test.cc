#include "tools/text_width.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::ElementsAre;

TEST(TextWidthTest, CountsCharactersAndNotBytes) {
  EXPECT_EQ(TextWidth(""), 0u);
  EXPECT_EQ(TextWidth("a\xc3\xa9\xe2\x80\xa6"), 3u);
}

TEST(TextWidthTest, CutsWhereItDoesNotFit) {
  EXPECT_EQ(CutToWidth("abc", 3), "abc");
  EXPECT_EQ(CutToWidth("abcd", 3), "ab\xe2\x80\xa6");
  EXPECT_EQ(CutToWidth("\xc3\xa9\xc3\xa9\xc3\xa9", 2), "\xc3\xa9\xe2\x80\xa6");
  EXPECT_EQ(CutToWidth("ab", 1), "\xe2\x80\xa6");
  EXPECT_EQ(CutToWidth("ab", 0), "");
  EXPECT_EQ(CutToWidth("", 0), "");
}

TEST(TextWidthTest, WrapsAtSpaces) {
  EXPECT_THAT(WrapToWidth("one two three", 8), ElementsAre("one two", "three"));
  EXPECT_THAT(WrapToWidth("one two three", 7), ElementsAre("one two", "three"));
  EXPECT_THAT(WrapToWidth("one two three", 13), ElementsAre("one two three"));
  EXPECT_THAT(WrapToWidth("one   two", 4), ElementsAre("one ", "two"));
  EXPECT_THAT(WrapToWidth("", 4), ElementsAre(""));
}

TEST(TextWidthTest, WrapsInsideOfWordsThatAreLonger) {
  EXPECT_THAT(WrapToWidth("abcdefg hi", 3), ElementsAre("abc", "def", "g", "hi"));
  EXPECT_THAT(WrapToWidth("\xc3\xa9\xc3\xa9\xc3\xa9", 2),
              ElementsAre("\xc3\xa9\xc3\xa9", "\xc3\xa9"));
  EXPECT_THAT(WrapToWidth(" abc", 2), ElementsAre(" a", "bc"));
}

}  // namespace
}  // namespace condense
