// The policies that other ones must beat: none, window, random.

#include <gtest/gtest.h>

#include <vector>

#include "cache/policies/policies.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kEntries = 1000;

class FloorPoliciesTest : public testing::Test {
 protected:
  MergePlan Plan(const Policy& policy) {
    MergePlan plan = policy.Plan(unit_.View(), params_);
    EXPECT_TRUE(ValidatePlan(plan, unit_.View().entries, kEntries).ok());
    return plan;
  }

  UnitFixture unit_ = MakeUnit(kEntries, 64, 4);
  PolicyParams params_{.formats = UsualFormats(64), .target_bytes = kEntries * 256.0 / 6};
};

TEST_F(FloorPoliciesTest, NoneKeepsEveryEntryAsItIs) {
  const MergePlan plan = Plan(*MakeNonePolicy());
  EXPECT_EQ(plan.groups.size(), size_t{kEntries});
  EXPECT_EQ(plan.shortfall, Shortfall::kKeepsAll);
  EXPECT_EQ(plan.format, (StorageFormat{4, 4}));
}

TEST_F(FloorPoliciesTest, WindowKeepsSinksAndTheNewest) {
  const MergePlan plan = Plan(*MakeWindowPolicy());
  EXPECT_EQ(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
  for (size_t g = 0; g < plan.groups.size(); ++g) {
    const int32_t newest = kEntries - static_cast<int32_t>(plan.groups.size() - g);
    EXPECT_EQ(plan.groups[g].position, g < 4 ? static_cast<int32_t>(g) : newest);
  }
}

TEST_F(FloorPoliciesTest, RandomDropsByItsSeed) {
  const MergePlan first = Plan(*MakeRandomPolicy());
  EXPECT_EQ(static_cast<int32_t>(first.groups.size()), first.target_entries);
  params_.seed = 1;
  EXPECT_NE(Plan(*MakeRandomPolicy()).drops, first.drops);
  params_.seed = 0;
  EXPECT_EQ(Plan(*MakeRandomPolicy()).drops, first.drops);
}

TEST_F(FloorPoliciesTest, RandomSparesNoRegion) {
  int32_t in_first_half = 0;
  const MergePlan plan = Plan(*MakeRandomPolicy());
  for (const int32_t entry : plan.drops) in_first_half += entry < 4 + (kEntries - 68) / 2;
  const double share = static_cast<double>(in_first_half) / static_cast<double>(plan.drops.size());
  EXPECT_NEAR(share, 0.5, 0.08);
}

}  // namespace
}  // namespace condense
