#include <gtest/gtest.h>

#include <vector>

#include "cache/policies/policies.h"
#include "cache/unit_keys.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kEntries = 1500;

class SimilarityPolicyTest : public testing::TestWithParam<GroupKind> {
 protected:
  MergePlan Plan() {
    MergePlan plan = MakeSimilarityPolicy(GetParam())->Plan(unit_.View(), params_);
    EXPECT_TRUE(ValidatePlan(plan, unit_.View().entries, kEntries).ok());
    return plan;
  }

  UnitFixture unit_ = MakeUnit(kEntries, 64, 3);
  PolicyParams params_{.formats = UsualFormats(64)};
};

TEST_P(SimilarityPolicyTest, WithoutATargetUsesItsCosine) {
  const MergePlan plan = Plan();
  EXPECT_EQ(plan.cosine, 0.90f);
  EXPECT_EQ(plan.shortfall, Shortfall::kNone);
  EXPECT_LT(plan.groups.size(), size_t{kEntries});
  EXPECT_TRUE(plan.drops.empty());
}

TEST_P(SimilarityPolicyTest, MembersAreAlikeNearAndFew) {
  const MergePlan plan = Plan();
  const UnitKeys keys(unit_.keys, 64);
  for (const MergeGroup& group : plan.groups) {
    EXPECT_LE(group.num_members, 8);
    const int32_t pivot = plan.members[group.first_member].entry;
    for (const MergeMember& member : plan.members_of(group).subspan(1)) {
      EXPECT_EQ(group.kind, GetParam());
      EXPECT_GE(keys.Cosine(pivot, member.entry), 0.8999f);
      EXPECT_EQ(member.entry / 128, pivot / 128);
    }
  }
}

TEST_P(SimilarityPolicyTest, TargetIsReachedAboveItsCosineOrMissed) {
  params_.target_bytes = kEntries * 256.0 / 3.8;
  const MergePlan reached = Plan();
  EXPECT_EQ(reached.shortfall, Shortfall::kNone);
  EXPECT_GT(reached.cosine, 0.90f);
  params_.target_bytes = kEntries * 256.0 / 30;
  const MergePlan missed = Plan();
  EXPECT_EQ(missed.shortfall, Shortfall::kThreshold);
  EXPECT_EQ(missed.cosine, 0.90f);
}

INSTANTIATE_TEST_SUITE_P(Kinds, SimilarityPolicyTest,
                         testing::Values(GroupKind::kPivot, GroupKind::kAverage),
                         [](const auto& info) {
                           return info.param == GroupKind::kPivot ? "Pivot" : "Average";
                         });

}  // namespace
}  // namespace condense
