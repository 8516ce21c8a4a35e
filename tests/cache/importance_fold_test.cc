#include "cache/importance_fold.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class ImportanceFoldTest : public testing::Test {
 protected:
  // Entries one token apart, keys given by the angle's cosine and sine; nothing is protected.
  void Make(const std::vector<float>& masses, const std::vector<float>& angles) {
    masses_ = masses;
    positions_.resize(masses.size());
    std::iota(positions_.begin(), positions_.end(), 100);
    for (const float angle : angles) {
      keys_.insert(keys_.end(), {std::cos(angle), std::sin(angle), 0, 0, 0, 0, 0, 0});
    }
    candidates_.resize(masses.size());
    std::iota(candidates_.begin(), candidates_.end(), 0);
  }
  // Groups of the result, pivot first.
  std::vector<std::vector<int32_t>> Fold(int32_t target, int32_t quota, int32_t window = 256) {
    const UnitEntries entries{.positions = positions_, .protection = protection_};
    MergeBuilder merges(entries, masses_, GroupKind::kPivot);
    num_folded_ =
        FoldLeastImportant(candidates_, target, quota, window, UnitKeys(keys_, 8), &merges);
    const MergePlan plan = merges.Build();
    EXPECT_TRUE(ValidatePlan(plan, entries, entries.size()).ok());
    std::vector<std::vector<int32_t>> groups;
    for (const MergeGroup& group : plan.groups) {
      groups.emplace_back();
      for (const MergeMember& member : plan.members_of(group)) {
        groups.back().push_back(member.entry);
      }
    }
    return groups;
  }

  Protection protection_{.end_position = 5000};
  std::vector<float> masses_, keys_;
  std::vector<int32_t> positions_, candidates_;
  int32_t num_folded_ = 0;
};

using Ints = std::vector<int32_t>;

TEST_F(ImportanceFoldTest, LeastGoesToItsMostSimilarNeighbour) {
  Make({0.3f, 0.1f, 0.4f, 0.2f}, {0.0f, 0.9f, 2.0f, 1.0f});
  EXPECT_THAT(Fold(3, 100), ElementsAre(Ints{0}, Ints{2}, Ints{3, 1}));
  EXPECT_EQ(num_folded_, 1);
}

TEST_F(ImportanceFoldTest, WhoTookMassIsRescoredBeforeTheNextPop) {
  // 1 folds into 3, which then weighs more than 0: the next to go is 0, not 3.
  Make({0.15f, 0.05f, 0.7f, 0.14f}, {0.0f, 0.9f, 0.3f, 1.0f});
  EXPECT_THAT(Fold(2, 100), ElementsAre(Ints{2, 0}, Ints{3, 1}));
}

TEST_F(ImportanceFoldTest, StopsAtTheTarget) {
  Make(std::vector<float>(10, 0.1f), std::vector<float>(10, 0.0f));
  EXPECT_EQ(Fold(7, 100).size(), 7u);
  EXPECT_EQ(Fold(10, 100).size(), 10u);
}

TEST_F(ImportanceFoldTest, StopsAtTheQuota) {
  Make(std::vector<float>(10, 0.1f), std::vector<float>(10, 0.0f));
  EXPECT_EQ(Fold(0, 4).size(), 6u);
  EXPECT_EQ(num_folded_, 4);
  EXPECT_EQ(Fold(0, 0).size(), 10u);
}

TEST_F(ImportanceFoldTest, OnlyCandidatesLeave) {
  Make({0.01f, 0.02f, 0.3f, 0.4f}, {0, 0, 0, 0});
  candidates_ = {1, 3};
  EXPECT_THAT(Fold(0, 100), ElementsAre(Ints{0, 1}, Ints{2, 3}));
}

TEST_F(ImportanceFoldTest, ProtectedEntriesTakeNothing) {
  Make({0.01f, 0.02f, 0.3f, 0.4f}, {0, 0, 0, 0.1f});
  protection_.num_sinks = 103;  // the first three
  candidates_ = {3};
  EXPECT_EQ(Fold(0, 100).size(), 4u);
  EXPECT_EQ(num_folded_, 0);
}

TEST_F(ImportanceFoldTest, ReachesHalfTheWindowToEitherSide) {
  Make({0.1f, 0.2f, 0.05f, 0.2f, 0.1f}, {0.0f, 1.0f, 0.0f, 0.9f, 0.0f});
  candidates_ = {2};
  EXPECT_THAT(Fold(0, 1, 2), ElementsAre(Ints{0}, Ints{1}, Ints{3, 2}, Ints{4}));
  EXPECT_THAT(Fold(0, 1, 4), ElementsAre(Ints{0, 2}, Ints{1}, Ints{3}, Ints{4}));
}

TEST_F(ImportanceFoldTest, FullPartnerPassesTheNextBestOn) {
  // The pivot weighs 0.01, so 0.2 would need a bias above ln 16.
  Make({0.2f, 0.01f, 0.3f}, {0.0f, 0.0f, 0.5f});
  candidates_ = {0};
  EXPECT_THAT(Fold(0, 1), ElementsAre(Ints{1}, Ints{2, 0}));
}

TEST_F(ImportanceFoldTest, LeastImportantAreListedByEntry) {
  Make({0.4f, 0.1f, 0.3f, 0.2f}, {0, 0, 0, 0});
  const UnitEntries entries{.positions = positions_, .protection = protection_};
  MergeBuilder merges(entries, masses_, GroupKind::kPivot);
  EXPECT_THAT(LeastImportant(candidates_, 3, merges), ElementsAre(1, 2, 3));
  merges.Drop(1);
  EXPECT_THAT(LeastImportant(candidates_, 1, merges), ElementsAre(3));
  EXPECT_THAT(LeastImportant(candidates_, 0, merges), IsEmpty());
  EXPECT_EQ(LeastImportant(candidates_, 100, merges).size(), 3u);
}

}  // namespace
}  // namespace condense
