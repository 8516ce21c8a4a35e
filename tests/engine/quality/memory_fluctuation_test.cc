#include "engine/quality/memory_fluctuation.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

constexpr int64_t kArena = 10000;

TEST(MemoryFluctuationTest, ConstantMemoryDoesNotFluctuate) {
  MemoryFluctuation fluctuation;
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000}), std::nullopt);
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
}

TEST(MemoryFluctuationTest, GrowthByTokensIsTakenOff) {
  MemoryFluctuation fluctuation;
  int64_t used = 1000;
  for (int step = 0; step < 64; ++step) {
    const bool end = step % 8 == 7;
    used += 50;
    const std::optional<double> value = fluctuation.Observe(
        {.used_bytes = used, .grown_bytes = 50, .arena_bytes = kArena, .cycle_end = end});
    ASSERT_EQ(value.has_value(), end);
    EXPECT_EQ(value.value_or(0), 0.0);
  }
}

TEST(MemoryFluctuationTest, SoAreRequestsThatEnd) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000, .arena_bytes = kArena, .cycle_end = true});
  fluctuation.Observe({.used_bytes = 1000});
  EXPECT_EQ(fluctuation.Observe(
                {.used_bytes = 400, .grown_bytes = -600, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
}

TEST(MemoryFluctuationTest, WhatCompactionFreesForGoodIsNoFluctuation) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 100000, .arena_bytes = kArena, .cycle_end = true});
  int64_t used = 100000;
  for (int step = 0; step < 24; ++step) {
    used -= 3000;
    const std::optional<double> value = fluctuation.Observe(
        {.used_bytes = used, .arena_bytes = kArena, .cycle_end = step % 8 == 7});
    EXPECT_EQ(value.value_or(0), 0.0) << step;
  }
}

TEST(MemoryFluctuationTest, AStagingPeakReadsItsHeight) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000});
  fluctuation.Observe({.used_bytes = 1000, .staging_bytes = 100});
  fluctuation.Observe({.used_bytes = 1000, .staging_bytes = 100});
  // The swap gives back the sources: 1000 + 100 becomes 800. Held: 1000, 1100, 1100, 800, and 200
  // of the 300 stay away.
  const std::optional<double> value =
      fluctuation.Observe({.used_bytes = 800, .arena_bytes = kArena, .cycle_end = true});
  ASSERT_TRUE(value.has_value());
  EXPECT_DOUBLE_EQ(*value, 100.0 / kArena);
}

// Wherever in its swing the cycles begin.
TEST(MemoryFluctuationTest, ASawToothReadsItsHeight) {
  for (int phase = 0; phase < 8; ++phase) {
    MemoryFluctuation fluctuation;
    std::optional<double> value;
    for (int step = 0; step < 24; ++step) {
      const int64_t staging = 10 * ((step + phase) % 8);
      value = fluctuation.Observe({.used_bytes = 965,
                                   .staging_bytes = staging,
                                   .arena_bytes = kArena,
                                   .cycle_end = step % 8 == 7});
    }
    ASSERT_TRUE(value.has_value());
    EXPECT_DOUBLE_EQ(*value, 70.0 / kArena) << phase;
  }
}

TEST(MemoryFluctuationTest, AChangeBetweenTwoCyclesIsSeenByTheLater) {
  MemoryFluctuation fluctuation;
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
  fluctuation.Observe({.used_bytes = 900});
  EXPECT_DOUBLE_EQ(
      *fluctuation.Observe({.used_bytes = 1000, .arena_bytes = kArena, .cycle_end = true}),
      100.0 / kArena);
  EXPECT_EQ(fluctuation.Observe({.used_bytes = 1000, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
}

TEST(MemoryFluctuationTest, GrowthOfOneCycleIsNotThatOfTheNext) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({.used_bytes = 1000});
  EXPECT_EQ(fluctuation.Observe(
                {.used_bytes = 1500, .grown_bytes = 500, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
  // 100 tokens' bytes come, 200 go by compaction and 150 of those come back.
  fluctuation.Observe({.used_bytes = 1400, .grown_bytes = 100});
  EXPECT_DOUBLE_EQ(
      *fluctuation.Observe({.used_bytes = 1550, .arena_bytes = kArena, .cycle_end = true}),
      150.0 / kArena);
}

TEST(MemoryFluctuationTest, NothingHeldIsNoFluctuation) {
  MemoryFluctuation fluctuation;
  fluctuation.Observe({});
  EXPECT_EQ(fluctuation.Observe({.arena_bytes = kArena, .cycle_end = true}), std::nullopt);
  EXPECT_EQ(fluctuation.Observe(
                {.used_bytes = 10, .grown_bytes = 10, .arena_bytes = kArena, .cycle_end = true}),
            0.0);
}

}  // namespace
}  // namespace condense
