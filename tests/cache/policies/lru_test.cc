#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <vector>

#include "cache/policies/policies.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kEntries = 600;

class LruTest : public testing::Test {
 protected:
  LruTest() {
    for (int32_t i = 0; i < kEntries; ++i) unit_.evidence.idle_steps[i] = i * 7 % kEntries;
  }
  MergePlan Plan() {
    const MergePlan plan = MakeLruPolicy()->Plan(unit_.View(), params_);
    EXPECT_TRUE(ValidatePlan(plan, unit_.View().entries, kEntries).ok());
    return plan;
  }
  // Entries that are neither pivots nor on their own.
  static std::set<int32_t> Gone(const MergePlan& plan) {
    std::set<int32_t> gone(plan.drops.begin(), plan.drops.end());
    for (const MergeGroup& group : plan.groups) {
      for (const MergeMember& member : plan.members_of(group).subspan(1)) gone.insert(member.entry);
    }
    return gone;
  }

  UnitFixture unit_ = MakeUnit(kEntries, 64, 5);
  PolicyParams params_{.formats = UsualFormats(64), .target_bytes = kEntries * 256.0 / 6};
};

TEST_F(LruTest, TheLongestIdleGoFirstAndNothingElse) {
  const MergePlan plan = Plan();
  ASSERT_EQ(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
  const std::set<int32_t> gone = Gone(plan);
  int32_t least_gone = kEntries, most_left = 0;
  for (int32_t i = 0; i < kEntries; ++i) {
    if (unit_.protection.Covers(unit_.positions[i])) continue;
    int32_t& bound = gone.count(i) > 0 ? least_gone : most_left;
    bound = gone.count(i) > 0 ? std::min(bound, unit_.evidence.idle_steps[i])
                              : std::max(bound, unit_.evidence.idle_steps[i]);
  }
  EXPECT_EQ(least_gone, most_left + 1);
  EXPECT_TRUE(plan.drops.empty());  // others took them up
}

TEST_F(LruTest, WhatNobodyCanTakeUpIsDropped) {
  params_.fold_window = 0;
  const MergePlan plan = Plan();
  EXPECT_EQ(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
  EXPECT_EQ(static_cast<int32_t>(plan.drops.size()), kEntries - plan.target_entries);
}

TEST_F(LruTest, WithoutATargetNothingGoes) {
  params_.target_bytes = 0;
  EXPECT_EQ(static_cast<int32_t>(Plan().groups.size()), kEntries);
}

}  // namespace
}  // namespace condense
