#include "cache/validator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace condense {
namespace {

using testing::ElementsAre;

// Of 5 entries: 0 and 2 merge, 1 is dropped, 3 and 4 stay.
MergePlan Plan() {
  return {.num_entries = 5,
          .groups = {{.first_member = 0, .num_members = 2},
                     {.first_member = 2, .num_members = 1},
                     {.first_member = 3, .num_members = 1}},
          .members = {{0, 1, 0.5f}, {2, 0, 0.5f}, {3, 1, 1}, {4, 1, 1}},
          .drops = {1}};
}

TEST(SwapMapTest, MapsTheRangeByThePlanAndTheRestOneToOne) {
  const SwapMap map = MakeSwapMap(Plan(), 2, 9);
  EXPECT_THAT(map.back_of, ElementsAre(0, 1, 2, SwapMap::kDropped, 2, 3, 4, 5, 6));
  EXPECT_EQ(map.num_back, 7);
  const SwapMap whole = MakeSwapMap(Plan(), 0, 5);
  EXPECT_THAT(whole.back_of, ElementsAre(0, SwapMap::kDropped, 0, 1, 2));
  EXPECT_EQ(whole.num_back, 3);
}

// One query of one head, D = 2, over the five entries of Plan() and the three that they become.
QueryFindings Front() {
  return {.head_dim = 2,
          .num_entries = 5,
          .out = {3.0f, 4.0f},
          .log_sum_exp = {1.5f},
          .mass = {0.25f, 0.125f, 0.125f, 0.25f, 0.25f}};
}
QueryFindings Back() {
  return {.head_dim = 2,
          .num_entries = 3,
          .out = {3.0f, 3.5f},
          .log_sum_exp = {1.25f},
          .mass = {0.5f, 0.375f, 0.125f}};
}

TEST(ValidatorTest, AgreesWithPenAndPaper) {
  Validator validator(MakeSwapMap(Plan(), 0, 5));
  validator.Add(Front(), Back());
  EXPECT_EQ(validator.num_rows(), 1);
  // |(0, -0.5)| / |(3, 4)|; |1.25 - 1.5|; min(0.375, 0.5) + min(0.25, 0.375) + min(0.25, 0.125).
  EXPECT_DOUBLE_EQ(validator.Quality().output_error, 0.1);
  EXPECT_DOUBLE_EQ(validator.Quality().log_mass_error, 0.25);
  EXPECT_DOUBLE_EQ(validator.Quality().hit_ratio, 0.75);
}

TEST(ValidatorTest, TakesMeansOverRowsAndCalls) {
  QueryFindings front = Front(), back = Back();
  // A second row that finds the same on both sides, but for the dropped eighth.
  front.out.insert(front.out.end(), {1.0f, 0.0f});
  back.out.insert(back.out.end(), {1.0f, 0.0f});
  front.log_sum_exp.push_back(2.0f);
  back.log_sum_exp.push_back(2.0f);
  front.mass.insert(front.mass.end(), {0.25f, 0.125f, 0.125f, 0.25f, 0.25f});
  back.mass.insert(back.mass.end(), {0.375f, 0.25f, 0.25f});
  Validator validator(MakeSwapMap(Plan(), 0, 5));
  validator.Add(front, back);
  validator.Add(Front(), Back());
  EXPECT_EQ(validator.num_rows(), 3);
  EXPECT_DOUBLE_EQ(validator.Quality().output_error, 0.2 / 3);
  EXPECT_DOUBLE_EQ(validator.Quality().log_mass_error, 0.5 / 3);
  EXPECT_DOUBLE_EQ(validator.Quality().hit_ratio, (0.75 + 0.875 + 0.75) / 3);
}

TEST(ValidatorTest, NothingMeasuredIsNothingFound) {
  const SwapQuality quality = Validator(MakeSwapMap(Plan(), 0, 5)).Quality();
  EXPECT_EQ(quality.output_error, 0.0);
  EXPECT_EQ(quality.log_mass_error, 0.0);
  EXPECT_EQ(quality.hit_ratio, 1.0);
}

TEST(ValidatorTest, ZeroOutputsOnBothSidesDoNotDiffer) {
  QueryFindings front = Front(), back = Back();
  front.out = back.out = {0.0f, 0.0f};
  Validator same(MakeSwapMap(Plan(), 0, 5));
  same.Add(front, back);
  EXPECT_EQ(same.Quality().output_error, 0.0);
  back.out = {0.0f, 1e-3f};
  Validator differs(MakeSwapMap(Plan(), 0, 5));
  differs.Add(front, back);
  EXPECT_TRUE(std::isinf(differs.Quality().output_error));
}

TEST(ValidatorTest, NumbersThatAreNotFiniteAreNeverWithinLimits) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const SwapLimits wide = {std::numeric_limits<double>::max(), std::numeric_limits<double>::max()};
  for (const float bad : {nan, infinity, -infinity}) {
    for (int place = 0; place < 6; ++place) {
      QueryFindings front = Front(), back = Back();
      QueryFindings& side = place % 2 == 0 ? front : back;
      (place / 2 == 0 ? side.out : place / 2 == 1 ? side.log_sum_exp : side.mass)[0] = bad;
      Validator validator(MakeSwapMap(Plan(), 0, 5));
      validator.Add(Front(), Back());
      validator.Add(front, back);
      validator.Add(Front(), Back());
      EXPECT_FALSE(WithinLimits(validator.Quality(), wide)) << bad << " at place " << place;
      EXPECT_FALSE(std::isnan(validator.Quality().hit_ratio)) << bad << " at place " << place;
    }
  }
  EXPECT_TRUE(WithinLimits({1.0, 1.0, 0.0}, wide));
}

TEST(WithinLimitsTest, EachErrorHasItsLimit) {
  const SwapLimits limits = {0.1, 0.2};
  EXPECT_TRUE(WithinLimits({0.1, 0.2, 0.0}, limits));
  EXPECT_FALSE(WithinLimits({0.11, 0.0, 1.0}, limits));
  EXPECT_FALSE(WithinLimits({0.0, 0.21, 1.0}, limits));
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_FALSE(WithinLimits({nan, 0.0, 1.0}, limits));
  EXPECT_FALSE(WithinLimits({0.0, 0.0, 1.0}, {nan, nan}));
}

}  // namespace
}  // namespace condense
