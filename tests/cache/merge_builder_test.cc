#include "cache/merge_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace condense {
namespace {

using ::testing::ElementsAre;

class MergeBuilderTest : public testing::Test {
 protected:
  MergeBuilder Make(GroupKind kind = GroupKind::kPivot) {
    entries_ = {.positions = positions_,
                .biases = biases_,
                .counts = counts_,
                .protection = {.end_position = 1000}};
    return MergeBuilder(entries_, masses_, kind);
  }
  std::vector<int32_t> positions_{2, 10, 11, 12, 13, 980};  // the first a sink, the last recent
  std::vector<float> biases_;
  std::vector<int32_t> counts_;
  std::vector<float> masses_{0.1f, 0.1f, 0.2f, 0.3f, 0.1f, 0.1f};
  UnitEntries entries_;
};

TEST_F(MergeBuilderTest, StartsWithEveryEntryOnItsOwn) {
  const MergePlan plan = Make().Build();
  EXPECT_TRUE(ValidatePlan(plan, entries_, 6).ok());
  ASSERT_EQ(plan.groups.size(), 6u);
  for (int i = 0; i < 6; ++i) {
    EXPECT_EQ(plan.groups[i].num_members, 1);
    EXPECT_EQ(plan.groups[i].bias, 0.0f);
    EXPECT_EQ(plan.members[i].key_weight, 1.0f);
    EXPECT_EQ(plan.members[i].value_weight, 1.0f);
  }
}

TEST_F(MergeBuilderTest, FoldAddsMassAndLeavesTheRest) {
  MergeBuilder merges = Make();
  ASSERT_TRUE(merges.TryFold(1, 3));
  EXPECT_EQ(merges.num_left(), 5);
  EXPECT_FALSE(merges.is_left(1));
  EXPECT_NEAR(merges.mass(3), 0.4, 1e-6);
  const MergePlan plan = merges.Build();
  EXPECT_TRUE(ValidatePlan(plan, entries_, 5).ok());
  const MergeGroup& group = plan.groups[2];
  EXPECT_EQ(group.position, 12);
  EXPECT_EQ(group.count, 2);
  EXPECT_NEAR(group.bias, std::log(4.0 / 3.0), 1e-6);
  EXPECT_NEAR(plan.members_of(group)[0].value_weight, 0.75, 1e-6);
}

TEST_F(MergeBuilderTest, ProtectedEntriesNeitherGiveNorTake) {
  MergeBuilder merges = Make();
  EXPECT_FALSE(merges.TryFold(0, 1));
  EXPECT_FALSE(merges.TryFold(1, 0));
  EXPECT_FALSE(merges.TryFold(5, 1));
  EXPECT_FALSE(merges.TryFold(1, 5));
  EXPECT_EQ(merges.num_left(), 6);
}

TEST_F(MergeBuilderTest, RefusesWhatWouldPassTheBiasCap) {
  masses_ = {0.1f, 0.01f, 0.149f, 0.01f, 0.0005f, 0.1f};
  MergeBuilder merges = Make();
  EXPECT_TRUE(merges.TryFold(2, 1));   // 15.9 times the pivot's own mass
  EXPECT_FALSE(merges.TryFold(3, 1));  // 16.9 times
  EXPECT_TRUE(merges.CanFold(4, 1));   // 15.95 times
  const MergePlan plan = merges.Build();
  EXPECT_TRUE(ValidatePlan(plan, entries_, 6).ok());
  EXPECT_NEAR(plan.groups[1].bias, std::log(15.9), 1e-4);
}

TEST_F(MergeBuilderTest, EarlierBiasesCountTowardsTheCap) {
  biases_ = {0, std::log(14.9f), std::log(2.0f), 0, 0, 0};
  masses_ = {0.1f, 0.1f, 0.1f, 0.1f, 0.1f, 0.1f};
  EXPECT_FALSE(Make().CanFold(2, 1));  // 29.8
  EXPECT_TRUE(Make().CanFold(1, 2));
  EXPECT_FALSE(Make(GroupKind::kAverage).CanFold(1, 2));  // 16.9
  EXPECT_TRUE(Make(GroupKind::kAverage).CanFold(1, 3));
}

TEST_F(MergeBuilderTest, RefusesCountsThatDoNotFitAByte) {
  counts_ = {1, 250, 5, 6, 1, 1};
  MergeBuilder merges = Make();
  EXPECT_FALSE(merges.TryFold(3, 1));
  EXPECT_TRUE(merges.TryFold(2, 1));
  EXPECT_EQ(merges.Build().groups[1].count, 255);
}

TEST_F(MergeBuilderTest, DropTakesAGroupWithAllItsMembers) {
  MergeBuilder merges = Make();
  ASSERT_TRUE(merges.TryFold(4, 2));
  merges.Drop(2);
  EXPECT_EQ(merges.num_left(), 4);
  const MergePlan plan = merges.Build();
  EXPECT_TRUE(ValidatePlan(plan, entries_, 4).ok());
  EXPECT_THAT(plan.drops, ElementsAre(2, 4));
}

TEST_F(MergeBuilderTest, AveragesAreSortedByTheirNewPosition) {
  MergeBuilder merges = Make(GroupKind::kAverage);
  ASSERT_TRUE(merges.TryFold(4, 1));  // to 12, behind entry 2
  const MergePlan plan = merges.Build();
  EXPECT_TRUE(ValidatePlan(plan, entries_, 5).ok());
  std::vector<int32_t> positions;
  for (const MergeGroup& group : plan.groups) positions.push_back(group.position);
  EXPECT_THAT(positions, ElementsAre(2, 11, 12, 12, 980));
  EXPECT_EQ(plan.groups[2].kind, GroupKind::kAverage);
  EXPECT_NEAR(plan.groups[2].bias, std::log(2.0), 1e-6);
}

TEST_F(MergeBuilderTest, CopiesGoTheirOwnWays) {
  MergeBuilder merges = Make();
  MergeBuilder copy = merges;
  ASSERT_TRUE(copy.TryFold(1, 2));
  EXPECT_EQ(merges.num_left(), 6);
  EXPECT_EQ(copy.num_left(), 5);
}

}  // namespace
}  // namespace condense
