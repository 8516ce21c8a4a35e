#include "tools/progress_bar.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(ProgressBarTest, FillsFromLeftToRight) {
  EXPECT_EQ(DrawBar(0.0, 4), "[>   ]   0%");
  EXPECT_EQ(DrawBar(0.5, 4), "[==> ]  50%");
  EXPECT_EQ(DrawBar(1.0, 4), "[====] 100%");
}

TEST(ProgressBarTest, StaysInsideItsBounds) {
  EXPECT_EQ(DrawBar(-1.0, 4), DrawBar(0.0, 4));
  EXPECT_EQ(DrawBar(7.0, 4), DrawBar(1.0, 4));
}

}  // namespace
}  // namespace condense
