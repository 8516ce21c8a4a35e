#include "tools/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace condense {
namespace {

TEST(FormatTest, BytesHaveBinaryUnits) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(int64_t{96} << 20), "96.0 MiB");
  EXPECT_EQ(FormatBytes(int64_t{200} << 30), "200 GiB");
  EXPECT_EQ(FormatBytes(std::numeric_limits<int64_t>::max()), "8.0 EiB");
}

TEST(FormatTest, CountsHaveThousandsApart) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(134515008), "134,515,008");
  EXPECT_EQ(FormatCount(-123456), "-123,456");
  EXPECT_EQ(FormatCount(-123), "-123");
}

TEST(FormatTest, SecondsTakeTheUnitThatFits) {
  EXPECT_EQ(FormatSeconds(0), "0 us");
  EXPECT_EQ(FormatSeconds(850e-6), "850 us");
  EXPECT_EQ(FormatSeconds(0.01234), "12.3 ms");
  EXPECT_EQ(FormatSeconds(4.213), "4.21 s");
  EXPECT_EQ(FormatSeconds(125), "2 min 05 s");
  EXPECT_EQ(FormatSeconds(3720), "1 h 02 min");
  EXPECT_EQ(FormatSeconds(std::nan("")), "-");
}

TEST(FormatTest, NumbersKeepThreeDigits) {
  EXPECT_EQ(FormatNumber(1.234), "1.23");
  EXPECT_EQ(FormatNumber(12.34), "12.3");
  EXPECT_EQ(FormatNumber(9.999), "10.0");
  EXPECT_EQ(FormatNumber(1234.5), "1234");
}

TEST(FormatTest, WithoutControlsKeepsTextAndDropsWhatSteersTerminals) {
  EXPECT_EQ(WithoutControls("plain\n\ttext \xc3\xa9 \xf0\x9f\x98\x80"),
            "plain\n\ttext \xc3\xa9 \xf0\x9f\x98\x80");
  EXPECT_EQ(WithoutControls("a\x1b[2Jb"), "a\xef\xbf\xbd[2Jb");
  EXPECT_EQ(WithoutControls("a\rb\x7f"),
            "a\xef\xbf\xbd"
            "b\xef\xbf\xbd");
  EXPECT_EQ(WithoutControls("\xc2\x9b"
                            "1m"),
            "\xef\xbf\xbd"
            "1m");
}

TEST(FormatTest, OneLineEscapesAndCutsAtCharacters) {
  EXPECT_EQ(OneLine("a\nb\t\xff", 40), "a\\nb\\t\\xff");
  EXPECT_EQ(OneLine("\xc2\x9b", 40), "\\xc2\\x9b");
  EXPECT_EQ(OneLine("abcdef", 6), "abcdef");
  EXPECT_EQ(OneLine("abcdefg", 6), "abcdef\xe2\x80\xa6");
  EXPECT_EQ(OneLine("abcd\xf0\x9f\x98\x80", 6), "abcd\xe2\x80\xa6");
}

}  // namespace
}  // namespace condense
