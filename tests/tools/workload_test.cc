#include "tools/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(WorkloadTest, LengthRangesAreNumbersOrPairs) {
  EXPECT_EQ(ParseLengthRange("--x", "128")->low, 128);
  EXPECT_EQ(ParseLengthRange("--x", "128")->high, 128);
  EXPECT_EQ(ParseLengthRange("--x", "64-256")->low, 64);
  EXPECT_EQ(ParseLengthRange("--x", "64-256")->high, 256);
  for (const char* bad : {"", "0", "-5", "8-4", "a", "1-", "-", "1-b", "99999999999", "1 2"}) {
    const auto range = ParseLengthRange("--x", bad);
    ASSERT_FALSE(range.ok()) << bad;
    EXPECT_THAT(std::string(range.status().message()), HasSubstr("--x")) << bad;
  }
}

TEST(WorkloadTest, SameSeedSameRequestsWhateverTheRhythm) {
  Workload one({1, 2, 3}, {2, 9}, {1, 5}, 7), other({1, 2, 3}, {2, 9}, {1, 5}, 7);
  for (int i = 0; i < 20; ++i) {
    one.NextGap(3.0, Arrivals::kPoisson);
    const WorkloadItem a = one.Next(), b = other.Next();
    EXPECT_EQ(a.prompt, b.prompt);
    EXPECT_EQ(a.output_tokens, b.output_tokens);
  }
}

TEST(WorkloadTest, LengthsReachBothBoundsAndStayInside) {
  Workload workload({5, 6}, {2, 4}, {1, 2}, 1);
  bool low = false, high = false;
  for (int i = 0; i < 100; ++i) {
    const WorkloadItem item = workload.Next();
    ASSERT_GE(item.prompt.size(), 2u);
    ASSERT_LE(item.prompt.size(), 4u);
    low |= item.prompt.size() == 2;
    high |= item.prompt.size() == 4;
    for (const TokenId token : item.prompt) EXPECT_TRUE(token == 5 || token == 6);
  }
  EXPECT_TRUE(low && high);
}

TEST(WorkloadTest, PoissonArrivalsKeepTheRate) {
  Workload workload({1}, {1, 1}, {1, 1}, 3);
  absl::Duration total;
  bool varies = false;
  for (int i = 0; i < 4000; ++i) {
    const absl::Duration gap = workload.NextGap(50.0, Arrivals::kPoisson);
    varies |= gap > absl::Milliseconds(40);
    total += gap;
  }
  EXPECT_NEAR(absl::ToDoubleSeconds(total) / 4000, 0.02, 0.001);
  EXPECT_TRUE(varies);
  EXPECT_EQ(workload.NextGap(50.0, Arrivals::kFixed), absl::Milliseconds(20));
}

}  // namespace
}  // namespace condense
