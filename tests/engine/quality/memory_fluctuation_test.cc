#include "engine/quality/memory_fluctuation.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(MemoryFluctuationTest, ConstantMemoryDoesNotFluctuate) {
  MemoryFluctuation fluctuation;
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000}), std::nullopt);
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000, .cycle_end = true}), 0.0);
}

TEST(MemoryFluctuationTest, GrowthByTokensIsTakenOff) {
  MemoryFluctuation fluctuation;
  int64_t used = 1000;
  for (int step = 0; step < 64; ++step) {
    const bool end = step % 8 == 7;
    used += 50;
    const std::optional<double> value =
        fluctuation.Observe({.used_bytes = used, .grown_bytes = 50, .cycle_end = end});
    ASSERT_EQ(value.has_value(), end);
    EXPECT_EQ(value.value_or(0), 0.0);
  }
}

TEST(MemoryFluctuationTest, SoAreRequestsThatEnd) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000, .cycle_end = true});
  fluctuation.Observe({.used_bytes = 1000});
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 400, .grown_bytes = -600, .cycle_end = true}), 0.0);
}

TEST(MemoryFluctuationTest, StagingCountsAsHeld) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000});
  fluctuation.Observe({.used_bytes = 1000, .staging_bytes = 100});
  fluctuation.Observe({.used_bytes = 1000, .staging_bytes = 100});
  // The swap gives back the sources: 1000 + 100 becomes 800. Held: 1000, 1100, 1100, 800.
  const std::optional<double> value = fluctuation.Observe({.used_bytes = 800, .cycle_end = true});
  ASSERT_TRUE(value.has_value());
  EXPECT_DOUBLE_EQ(*value, 300.0 / 1000);
}

TEST(MemoryFluctuationTest, AChangeBetweenTwoCyclesIsSeenByTheLater) {
  MemoryFluctuation fluctuation;
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000, .cycle_end = true}), 0.0);
  fluctuation.Observe({.used_bytes = 900});
  EXPECT_DOUBLE_EQ(*fluctuation.Observe({.used_bytes = 900, .cycle_end = true}), 100.0 / 900);
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 900, .cycle_end = true}), 0.0);
}

TEST(MemoryFluctuationTest, GrowthOfOneCycleIsNotThatOfTheNext) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000});
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1500, .grown_bytes = 500, .cycle_end = true}), 0.0);
  // 100 tokens' bytes come, 200 go by compaction: 1500 -> 1600 -> 1400.
  fluctuation.Observe({.used_bytes = 1600, .grown_bytes = 100});
  EXPECT_DOUBLE_EQ(*fluctuation.Observe({.used_bytes = 1400, .cycle_end = true}), 200.0 / 1500);
}

TEST(MemoryFluctuationTest, NothingHeldIsNoFluctuation) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({});
  EXPECT_EQ(fluctuation.Observe({.cycle_end = true}), std::nullopt);
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 10, .grown_bytes = 10, .cycle_end = true}), 0.0);
}

}  // namespace
}  // namespace condense
