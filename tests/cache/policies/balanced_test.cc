#include <gtest/gtest.h>

#include <vector>

#include "cache/policies/policies.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kEntries = 2000;

class BalancedPolicyTest : public testing::Test {
 protected:
  MergePlan Plan(double ratio) {
    params_.target_bytes = kEntries * 256.0 / ratio;
    MergePlan plan = MakeBalancedPolicy()->Plan(unit_.View(), params_);
    EXPECT_TRUE(ValidatePlan(plan, unit_.View().entries, kEntries).ok());
    return plan;
  }

  UnitFixture unit_ = MakeUnit(kEntries, 64, 2);
  PolicyParams params_{.formats = UsualFormats(64)};
};

TEST_F(BalancedPolicyTest, TakesTheWidestFormatThatIsEnough) {
  const struct {
    double ratio;
    StorageFormat format;
  } cases[] = {{1.0, {16, 16}}, {1.5, {8, 8}}, {1.85, {8, 8}}, {2.5, {6, 4}}, {3.2, {4, 4}}};
  for (const auto& [ratio, format] : cases) {
    const MergePlan plan = Plan(ratio);
    EXPECT_EQ(plan.format, format) << ratio;
    EXPECT_EQ(plan.groups.size(), size_t{kEntries}) << ratio;
    EXPECT_EQ(plan.shortfall, Shortfall::kNone) << ratio;
    EXPECT_EQ(plan.cosine, 0.0f) << "no clusters were needed at " << ratio;
  }
}

TEST_F(BalancedPolicyTest, WithoutATargetMergesNothing) {
  const MergePlan plan = MakeBalancedPolicy()->Plan(unit_.View(), params_);
  EXPECT_EQ(plan.groups.size(), size_t{kEntries});
  EXPECT_EQ(plan.format, (StorageFormat{4, 4}));
}

TEST_F(BalancedPolicyTest, ThenMergesNoMoreThanTheTargetAsks) {
  const MergePlan less = Plan(3.6), more = Plan(4.5);
  for (const MergePlan* plan : {&less, &more}) {
    EXPECT_EQ(plan->format, (StorageFormat{4, 4}));
    EXPECT_EQ(plan->shortfall, Shortfall::kNone);
    EXPECT_TRUE(plan->drops.empty());
    EXPECT_LE(plan->cosine, 0.97f);
    EXPECT_GT(static_cast<double>(plan->groups.size()), 0.97 * plan->target_entries);
  }
  EXPECT_GT(less.cosine, more.cosine);
  EXPECT_GT(less.groups.size(), more.groups.size());
}

TEST_F(BalancedPolicyTest, NeverGoesBelowItsLowestCosine) {
  const MergePlan plan = Plan(30.0);
  EXPECT_EQ(plan.cosine, 0.87f);
  EXPECT_EQ(plan.shortfall, Shortfall::kThreshold);
  EXPECT_GT(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
}

TEST_F(BalancedPolicyTest, FoldsByImportanceOnlyWhenAllowed) {
  params_.allow_importance = true;
  const MergePlan plan = Plan(12.0);
  EXPECT_EQ(plan.shortfall, Shortfall::kNone);
  EXPECT_EQ(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
  EXPECT_TRUE(plan.drops.empty());
}

TEST_F(BalancedPolicyTest, CalibrationMayWithholdNarrowFormats) {
  params_.formats = {MakeFormatCost({16, 16}, 64), MakeFormatCost({8, 8}, 64)};
  const MergePlan plan = Plan(2.4);
  EXPECT_EQ(plan.format, (StorageFormat{8, 8}));
  EXPECT_LT(plan.groups.size(), size_t{kEntries});
}

}  // namespace
}  // namespace condense
