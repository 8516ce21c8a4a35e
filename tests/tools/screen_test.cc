#include "tools/screen.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(ScreenTest, AFrameOverwritesEveryLineAndClearsWhatIsBelow) {
  EXPECT_EQ(FrameOf("one\ntwo\n", 10), "\x1b[Hone\x1b[K\ntwo\x1b[K\x1b[J");
  EXPECT_EQ(FrameOf("a\n\nb\n", 10), "\x1b[Ha\x1b[K\n\x1b[K\nb\x1b[K\x1b[J");
  EXPECT_EQ(FrameOf("", 10), "\x1b[H\x1b[J");
}

TEST(ScreenTest, AFrameNeverScrolls) {
  EXPECT_EQ(FrameOf("one\ntwo\nthree\n", 2), FrameOf("one\ntwo\n", 2));
  EXPECT_EQ(FrameOf("one\ntwo\n", 1), "\x1b[Hone\x1b[K\x1b[J");
}

}  // namespace
}  // namespace condense
