#include "cache/merge_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <set>
#include <string>
#include <vector>

#include "cache/merge_builder.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

// Entries: 0 a sink, 1 to 6 free, 7 recent. The plan folds 2 into 3, drops 5 and marks 6.
class MergePlanTest : public testing::Test {
 protected:
  MergePlanTest() {
    entries_ = {.positions = positions_, .protection = {.end_position = 1000}};
    MergeBuilder merges(entries_, std::vector<float>(8, 0.1f), GroupKind::kPivot);
    EXPECT_TRUE(merges.TryFold(2, 3));
    merges.Drop(5);
    plan_ = merges.Build();
    plan_.marks = {6};
  }
  void ExpectBroken(const std::string& what) {
    const absl::Status status = ValidatePlan(plan_, entries_, 8);
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  MergeGroup& merged() { return plan_.groups[2]; }

  const std::vector<int32_t> positions_{0, 10, 11, 12, 13, 14, 15, 990};
  UnitEntries entries_;
  MergePlan plan_;
};

TEST_F(MergePlanTest, AcceptsAGoodPlan) {
  EXPECT_TRUE(ValidatePlan(plan_, entries_, 6).ok()) << ValidatePlan(plan_, entries_, 6);
}

TEST_F(MergePlanTest, AcceptsThePlanOfNothing) {
  EXPECT_TRUE(ValidatePlan(MergePlan(), UnitEntries(), 0).ok());
}

TEST_F(MergePlanTest, NoMoreComesOutThanThereIsRoomFor) {
  EXPECT_FALSE(ValidatePlan(plan_, entries_, 5).ok());
}

TEST_F(MergePlanTest, BelongsToItsSource) {
  plan_.num_entries = 7;
  ExpectBroken("made for 7 entries");
}

TEST_F(MergePlanTest, UsesEveryEntryOnce) {
  plan_.members[1].entry = 0;
  ExpectBroken("used twice");
  plan_.members[1].entry = 8;
  ExpectBroken("entry 8 of 8");
  plan_.members[1].entry = -1;
  ExpectBroken("entry -1");
  plan_.members[1].entry = 1;
  plan_.drops.clear();
  ExpectBroken("entry 5 is not used");
  plan_.drops = {5, 6};
  ExpectBroken("used twice");
}

TEST_F(MergePlanTest, MembersBelongToExactlyOneGroup) {
  merged().num_members = 1;
  ExpectBroken("");
  merged().num_members = 0;
  ExpectBroken("0 members");
  merged().num_members = std::numeric_limits<int32_t>::max();
  ExpectBroken("members of");
  merged().num_members = 2;
  merged().first_member = -5;
  ExpectBroken("starts at member -5");
  merged().first_member = 2;
  plan_.members.push_back({.entry = 1});
  ExpectBroken("1 members belong to no group");
}

TEST_F(MergePlanTest, WeightsSumToOne) {
  MergeMember& second = plan_.members[merged().first_member + 1];
  second.value_weight += 0.01f;
  ExpectBroken("weights of group 2");
  second.value_weight = std::numeric_limits<float>::quiet_NaN();
  ExpectBroken("weighs entry 2");
  second.value_weight = 0.5f;
  second.key_weight = -0.1f;
  ExpectBroken("weighs entry 2");
  second.key_weight = 0.5f;
  ExpectBroken("weights of group 2");
  plan_.members[merged().first_member].key_weight = 0.5f;
  ExpectBroken("pivot of group 2");
}

TEST_F(MergePlanTest, ProtectedEntriesStandAlone) {
  entries_.protection.num_sinks = 12;
  ExpectBroken("protected entry 2");
  entries_.protection.num_sinks = 4;
  entries_.protection.window_tokens = 986;
  ExpectBroken("protected entry 5 is dropped");
  entries_.protection.window_tokens = 64;
  entries_.protection.grace_tokens = 986;
  ExpectBroken("protected entry 5 is dropped");
  entries_.protection.grace_tokens = 985;
  ExpectBroken("marked but");
}

TEST_F(MergePlanTest, LoneEntriesAreCopiedAsTheyAre) {
  MergeGroup& lone = plan_.groups[1];
  lone.bias = 0.1f;
  ExpectBroken("changes entry 1");
  lone.bias = 0.0f;
  lone.count = 2;
  ExpectBroken("changes entry 1");
  lone.count = 1;
  lone.position = 9;
  ExpectBroken("changes entry 1");
  lone.position = 10;
  lone.kind = GroupKind::kAverage;
  ExpectBroken("changes entry 1");
}

TEST_F(MergePlanTest, PivotStaysWhereItIs) {
  merged().position = 11;
  ExpectBroken("outside [12, 12]");
}

TEST_F(MergePlanTest, AverageStandsBetweenItsMembers) {
  merged().kind = GroupKind::kAverage;
  merged().position = 11;
  EXPECT_TRUE(ValidatePlan(plan_, entries_, 8).ok());
  merged().position = 13;
  ExpectBroken("outside [11, 12]");
}

TEST_F(MergePlanTest, PositionsAscend) {
  std::swap(plan_.groups[3], plan_.groups[4]);
  ExpectBroken("");
  std::swap(plan_.groups[3], plan_.groups[4]);
  plan_.groups[3].position = 11;
  ExpectBroken("follows position 12");
}

TEST_F(MergePlanTest, BiasIsCapped) {
  merged().bias = kMaxBias;
  EXPECT_TRUE(ValidatePlan(plan_, entries_, 8).ok());
  merged().bias = kMaxBias + 0.01f;
  ExpectBroken("beyond ln 16");
  merged().bias = -kMaxBias - 0.01f;
  ExpectBroken("beyond ln 16");
  merged().bias = std::numeric_limits<float>::quiet_NaN();
  ExpectBroken("beyond ln 16");
}

TEST_F(MergePlanTest, CountsAddUp) {
  merged().count = 3;
  ExpectBroken("counts 3 tokens");
  const std::vector<int32_t> counts{1, 1, 200, 56, 1, 1, 1, 1};
  entries_.counts = counts;
  merged().count = 256;
  ExpectBroken("at most 255");
}

TEST_F(MergePlanTest, FormatExists) {
  plan_.format = {5, 4};
  ExpectBroken("keys of 5 bits");
  plan_.format = {4, 6};
  ExpectBroken("values of 6 bits");
  plan_.format = {4, 3};
  EXPECT_TRUE(ValidatePlan(plan_, entries_, 8).ok());
}

TEST_F(MergePlanTest, MarksAreEntriesThatStay) {
  for (const int32_t entry : {3, 5, 7, 8, -1}) {
    plan_.marks = {entry};
    ExpectBroken("mark");
  }
  plan_.marks = {6, 6};
  ExpectBroken("mark of entry 6 after 6");
  plan_.marks = {1, 4, 6};
  EXPECT_TRUE(ValidatePlan(plan_, entries_, 8).ok());
}

TEST_F(MergePlanTest, EveryShortfallHasItsName) {
  std::set<std::string> names;
  for (int i = 0; i <= static_cast<int>(Shortfall::kNoPartner); ++i) {
    names.insert(std::string(ShortfallName(static_cast<Shortfall>(i))));
  }
  EXPECT_EQ(names.size(), 8u);
  EXPECT_EQ(names.count("unknown"), 0u);
}

}  // namespace
}  // namespace condense
