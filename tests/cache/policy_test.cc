#include "cache/policy.h"

#include <gtest/gtest.h>

#include <vector>

#include "cache/policies/policies.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

TEST(PolicyTest, FormatCostsCountCodesScalesAndSideArrays) {
  EXPECT_EQ(MakeFormatCost({16, 16}, 64).plain_bytes, 256);
  EXPECT_EQ(MakeFormatCost({8, 8}, 64).plain_bytes, 132);
  EXPECT_EQ(MakeFormatCost({4, 3}, 64).plain_bytes, 32 + 24 + 4);
  EXPECT_EQ(MakeFormatCost({16, 8}, 64).plain_bytes, 128 + 66);
  EXPECT_EQ(MakeFormatCost({4, 4}, 64).merged_bytes, 73);
}

TEST(PolicyTest, ProtectedEntriesCountInSixteenBits) {
  const UnitFixture unit = MakeUnit(1000, 64, 1);
  PolicyParams params{.formats = {MakeFormatCost({4, 4}, 64)}};
  // Room for 68 protected entries and 100 merged ones.
  params.target_bytes = 68 * 256 + 100 * 73 + 1;
  const MergePlan plan = MakeWindowPolicy()->Plan(unit.View(), params);
  EXPECT_EQ(plan.target_entries, 168);
  EXPECT_EQ(plan.groups.size(), 168u);
  EXPECT_EQ(PlanBytes(plan, unit.View(), params.formats[0]), 68 * 256 + 100 * 73);
}

TEST(PolicyTest, UnmergedRangesPayNoSideArrays) {
  UnitFixture unit = MakeUnit(1000, 64, 1);
  PolicyParams params{.formats = {MakeFormatCost({4, 4}, 64)}};
  params.target_bytes = 68 * 256 + 932 * 68;
  EXPECT_EQ(MakeWindowPolicy()->Plan(unit.View(), params).groups.size(), 1000u);
  unit.counts.assign(1000, 1);
  unit.counts[500] = 2;  // something was merged before
  EXPECT_LT(MakeWindowPolicy()->Plan(unit.View(), params).groups.size(), 1000u);
}

TEST(PolicyTest, WhatCannotBeReachedIsNamed) {
  const UnitFixture unit = MakeUnit(1000, 64, 1);
  PolicyParams params{.target_bytes = 100};
  const MergePlan plan = MakeWindowPolicy()->Plan(unit.View(), params);
  EXPECT_EQ(plan.groups.size(), 68u);
  EXPECT_LT(plan.target_entries, 68);
  EXPECT_EQ(plan.shortfall, Shortfall::kProtected);
}

TEST(PolicyTest, RoomForTheResultIsATargetToo) {
  const UnitFixture unit = MakeUnit(1000, 64, 1);
  const PolicyParams params{.max_entries = 300};
  const MergePlan plan = MakeRandomPolicy()->Plan(unit.View(), params);
  EXPECT_EQ(plan.groups.size(), 300u);
  EXPECT_TRUE(ValidatePlan(plan, unit.View().entries, 300).ok());
}

}  // namespace
}  // namespace condense
