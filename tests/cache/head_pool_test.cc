#include "cache/head_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace condense {
namespace {

TEST(HeadPoolTest, StartsWithItsShareOfTheEstimate) {
  const HeadPool pool({}, 1000);
  EXPECT_EQ(pool.capacity_bytes(), 600);
  EXPECT_EQ(pool.num_growths(), 0);
  EXPECT_EQ(pool.used_bytes(), 0);
  EXPECT_EQ(pool.cap_bytes(), int64_t{2} << 30);
}

TEST(HeadPoolTest, GrowsByAFifthOfTheStartWhenFourFifthsFull) {
  HeadPool pool({}, 1000);
  pool.Take(480);
  EXPECT_EQ(pool.capacity_bytes(), 600);
  EXPECT_EQ(pool.num_growths(), 0);
  pool.Take(1);
  EXPECT_EQ(pool.capacity_bytes(), 720);
  EXPECT_EQ(pool.num_growths(), 1);
  pool.Take(1000);  // several steps at once: 1481 / 0.8 is 1851
  EXPECT_EQ(pool.capacity_bytes(), 1920);
  EXPECT_EQ(pool.num_growths(), 2);
  pool.Give(1481);
  EXPECT_EQ(pool.capacity_bytes(), 1920);
  EXPECT_EQ(pool.used_bytes(), 0);
}

TEST(HeadPoolTest, StopsAtTheCap) {
  HeadPool pool({.cap_bytes = 700}, 1000);
  EXPECT_TRUE(pool.CanTake(700));
  EXPECT_FALSE(pool.CanTake(701));
  pool.Take(600);
  EXPECT_EQ(pool.capacity_bytes(), 700);
  EXPECT_EQ(pool.num_growths(), 1);
  EXPECT_TRUE(pool.CanTake(100));
  EXPECT_FALSE(pool.CanTake(101));
  EXPECT_DOUBLE_EQ(pool.fill(), 600.0 / 700.0);
  pool.Take(100);
  EXPECT_EQ(pool.num_growths(), 1);  // at the cap there is nothing to grow by
  EXPECT_EQ(HeadPool({.cap_bytes = 100}, 1000).capacity_bytes(), 100);
}

TEST(HeadPoolTest, NoCapMeansNone) {
  const HeadPool pool({.cap_bytes = 0}, 1000);
  EXPECT_TRUE(pool.CanTake(int64_t{1} << 60));
}

TEST(HeadPoolTest, OptionsOutOfRangeAreRefusedByName) {
  const auto message = [](HeadPoolOptions options) {
    return std::string(options.Validate().message());
  };
  EXPECT_TRUE(HeadPoolOptions{}.Validate().ok());
  EXPECT_THAT(message({.preallocate = 0}), testing::HasSubstr("pool_preallocate is 0"));
  EXPECT_THAT(message({.grow_at = 1.5}), testing::HasSubstr("pool_grow_at is 1.5"));
  EXPECT_THAT(message({.grow_by = -1}), testing::HasSubstr("pool_grow_by is -1"));
  EXPECT_THAT(message({.cap_bytes = -1}), testing::HasSubstr("pool_cap_bytes is -1"));
}

TEST(HeadPoolDeathTest, GivingWhatWasNotTakenDies) {
  HeadPool pool({}, 1000);
  pool.Take(10);
  EXPECT_DEATH(pool.Give(11), "Check failed");
}

}  // namespace
}  // namespace condense
