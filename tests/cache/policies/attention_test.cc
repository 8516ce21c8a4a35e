#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "cache/policies/policies.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kEntries = 1000;
constexpr int32_t kFree = kEntries - 4 - 64;
constexpr int32_t kQuota = 94;  // a tenth of them, rounded up

class AttentionPolicyTest : public testing::Test {
 protected:
  MergePlan Plan(double fill, double ratio = 0) {
    params_.fill = fill;
    params_.target_bytes = ratio > 0 ? kEntries * 256.0 / ratio : 0;
    MergePlan plan = MakeAttentionPolicy()->Plan(unit_.View(), params_);
    EXPECT_TRUE(ValidatePlan(plan, unit_.View().entries, kEntries).ok());
    return plan;
  }
  // Entries that were folded into another one.
  static std::vector<int32_t> Folded(const MergePlan& plan) {
    std::vector<int32_t> folded;
    for (const MergeGroup& group : plan.groups) {
      for (const MergeMember& member : plan.members_of(group).subspan(1)) {
        folded.push_back(member.entry);
      }
    }
    std::sort(folded.begin(), folded.end());
    return folded;
  }
  float MostIn(const std::vector<int32_t>& entries) const {
    float most = 0;
    for (const int32_t entry : entries) most = std::max(most, unit_.evidence.mean[entry]);
    return most;
  }

  UnitFixture unit_ = MakeUnit(kEntries, 64, 1);
  PolicyParams params_{.formats = {MakeFormatCost({16, 16}, 64)}};
};

TEST_F(AttentionPolicyTest, BelowTheMarkNothingHappens) {
  const MergePlan plan = Plan(0.39, 2.0);
  EXPECT_EQ(plan.groups.size(), size_t{kEntries});
  EXPECT_TRUE(plan.marks.empty());
  EXPECT_EQ(plan.shortfall, Shortfall::kUnmarked);
}

TEST_F(AttentionPolicyTest, AboveTheMarkTheLeastImportantAreMarkedAndKept) {
  const MergePlan plan = Plan(0.40, 2.0);
  EXPECT_EQ(plan.groups.size(), size_t{kEntries});
  EXPECT_EQ(plan.marks.size(), size_t{kQuota});
  std::vector<float> means(unit_.evidence.mean.begin() + 4,
                           unit_.evidence.mean.begin() + 4 + kFree);
  std::nth_element(means.begin(), means.begin() + kQuota - 1, means.end());
  EXPECT_EQ(MostIn(plan.marks), means[kQuota - 1]);
}

TEST_F(AttentionPolicyTest, AtTheSoftLimitOnlyTheMarkedGo) {
  const std::vector<int32_t> marks = Plan(0.5).marks;
  for (const int32_t entry : marks) unit_.evidence.marked[entry] = 1;
  unit_.evidence.marked[marks[3]] = 0;  // rescued: attended since
  const MergePlan plan = Plan(0.7, 2.0);
  std::vector<int32_t> expected = marks;
  expected.erase(expected.begin() + 3);
  const std::vector<int32_t> folded = Folded(plan);
  EXPECT_TRUE(std::includes(expected.begin(), expected.end(), folded.begin(), folded.end()));
  // A mark that took up another one outweighs it and may stay.
  EXPECT_GT(folded.size(), size_t{kQuota / 2});
  EXPECT_EQ(plan.marks.size(), size_t{kQuota});
  EXPECT_EQ(plan.shortfall, Shortfall::kUnmarked);
}

TEST_F(AttentionPolicyTest, SoftLimitHonoursTheQuota) {
  std::fill(unit_.evidence.marked.begin(), unit_.evidence.marked.end(), 1);
  const MergePlan plan = Plan(0.7, 2.0);
  EXPECT_EQ(Folded(plan).size(), size_t{kQuota});
  EXPECT_EQ(plan.shortfall, Shortfall::kQuota);
}

TEST_F(AttentionPolicyTest, AtTheHardLimitTheTargetRules) {
  const MergePlan plan = Plan(0.9, 2.0);
  EXPECT_EQ(plan.shortfall, Shortfall::kNone);
  EXPECT_EQ(static_cast<int32_t>(plan.groups.size()), plan.target_entries);
  EXPECT_TRUE(plan.drops.empty());
  EXPECT_TRUE(plan.marks.empty());
}

TEST_F(AttentionPolicyTest, WithoutATargetTheDropShareRules) {
  EXPECT_EQ(Folded(Plan(1.0)).size(), size_t{kQuota});
  params_.drop_share = 0.5;
  EXPECT_EQ(Folded(Plan(1.0)).size(), size_t{kFree / 2});
}

TEST_F(AttentionPolicyTest, HeaviestEntriesStay) {
  const MergePlan plan = Plan(1.0, 1.5);
  std::vector<float> means = unit_.evidence.mean;
  std::sort(means.begin(), means.end());
  EXPECT_LT(MostIn(Folded(plan)), means[kEntries * 6 / 10]);
}

TEST_F(AttentionPolicyTest, GraceIsNotRanked) {
  unit_.protection.window_tokens = 0;
  std::fill(unit_.evidence.mean.end() - 32, unit_.evidence.mean.end(), 1e-6f);
  const std::vector<int32_t> marks = Plan(0.5).marks;
  EXPECT_EQ(std::count_if(marks.begin(), marks.end(), [](int e) { return e >= kEntries - 16; }), 0);
  EXPECT_EQ(std::count_if(marks.begin(), marks.end(), [](int e) { return e >= kEntries - 32; }),
            16);
}

}  // namespace
}  // namespace condense
