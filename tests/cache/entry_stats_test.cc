#include "cache/entry_stats.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "cache/merge_builder.h"

namespace condense {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::FloatEq;

EntryStats Observed(const std::vector<std::vector<float>>& steps) {
  EntryStats stats;
  for (const std::vector<float>& step : steps) {
    if (static_cast<int32_t>(step.size()) > stats.size())
      stats.AppendMany(static_cast<int32_t>(step.size()) - stats.size());
    stats.Observe(step);
  }
  return stats;
}

UnitEvidence All(const EntryStats& stats) { return stats.Freeze(0, stats.size()); }

// A plan over n unprotected entries that folds each `from` into its `into`.
MergePlan FoldPlan(int32_t n, const std::vector<std::pair<int, int>>& folds,
                   const std::vector<int>& drops = {}) {
  std::vector<int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 100);
  const UnitEntries entries{.positions = positions, .protection = {.end_position = 1000}};
  MergeBuilder merges(entries, std::vector<float>(n, 0.1f), GroupKind::kPivot);
  for (const auto& [from, into] : folds) EXPECT_TRUE(merges.TryFold(from, into));
  for (const int entry : drops) merges.Drop(entry);
  return merges.Build();
}

TEST(EntryStatsTest, MeanCountsOnlyStepsThatCouldSeeTheEntry) {
  const UnitEvidence evidence = All(Observed({{1.0f}, {0.5f, 0.5f}, {0.3f, 0.1f, 0.6f}}));
  EXPECT_THAT(evidence.mean, ElementsAre(FloatEq(0.6f), FloatEq(0.3f), FloatEq(0.6f)));
  EXPECT_THAT(evidence.steps, ElementsAre(3, 2, 1));
}

TEST(EntryStatsTest, FreshEntriesHaveNoEvidence) {
  EntryStats stats;
  stats.Append();
  stats.AppendMany(2);
  const UnitEvidence evidence = All(stats);
  EXPECT_THAT(evidence.mean, ElementsAre(0, 0, 0));
  EXPECT_THAT(evidence.steps, ElementsAre(0, 0, 0));
  EXPECT_THAT(evidence.marked, ElementsAre(0, 0, 0));
}

TEST(EntryStatsTest, WindowMaximumForgetsAfterTwoHalves) {
  EntryStats stats;
  stats.Append();
  stats.Observe(std::vector<float>{0.75f});
  for (int step = 1; step < 2 * EntryStats::kHalfWindow; ++step) {
    EXPECT_EQ(All(stats).window_max[0], 0.75f) << step;
    stats.Observe(std::vector<float>{0.25f});
  }
  EXPECT_EQ(All(stats).window_max[0], 0.75f);
  stats.Observe(std::vector<float>{0.125f});
  EXPECT_EQ(All(stats).window_max[0], 0.25f);
}

TEST(EntryStatsTest, WindowMaximumCoversAtLeastTheLastHalf) {
  for (int before = 0; before < 2 * EntryStats::kHalfWindow; ++before) {
    EntryStats stats;
    stats.Append();
    for (int step = 0; step < before; ++step) stats.Observe(std::vector<float>{0.0f});
    stats.Observe(std::vector<float>{0.5f});
    for (int step = 1; step < EntryStats::kHalfWindow; ++step) {
      stats.Observe(std::vector<float>{0.0f});
    }
    EXPECT_EQ(All(stats).window_max[0], 0.5f) << before;
  }
}

TEST(EntryStatsTest, WindowMaximumLosesLessThanOnePercentToRounding) {
  for (float p = 1e-6f; p < 1; p *= 1.37f) {
    const float kept = All(Observed({{p}})).window_max[0];
    EXPECT_LE(kept, p);
    EXPECT_GT(kept, 0.99f * p);
  }
}

TEST(EntryStatsTest, AttendedMeansMoreThanAQuarterOfAnEvenShare) {
  // Four entries: the limit is 1/16.
  const UnitEvidence evidence = All(Observed({{0.9f, 0.0625f, 0.063f, 0}, {0.9f, 0, 0, 0.1f}}));
  EXPECT_THAT(evidence.idle_steps, ElementsAre(0, 2, 1, 0));
}

TEST(EntryStatsTest, AnEvenShareIsThatOfAllThatWasSeen) {
  EntryStats stats;
  stats.AppendMany(2);
  const std::vector<float> probability = {0.0625f, 0.063f};
  stats.Observe(probability, 4);
  EXPECT_THAT(All(stats).idle_steps, ElementsAre(1, 0));
  stats.Observe({}, 4);  // a step that saw neither
  EXPECT_THAT(All(stats).idle_steps, ElementsAre(1, 0));
  EXPECT_THAT(All(stats).steps, ElementsAre(1, 1));
}

TEST(EntryStatsTest, IdleStepsStopCountingInsteadOfWrapping) {
  EntryStats stats;
  stats.AppendMany(2);
  const std::vector<float> step{1.0f, 0.0f};
  for (int i = 0; i < 66000; ++i) stats.Observe(step);
  EXPECT_EQ(All(stats).idle_steps[1], 65535);
}

TEST(EntryStatsTest, MeansSurviveVeryManySteps) {
  EntryStats stats;
  stats.Append();
  for (int i = 0; i < 40000; ++i) stats.Observe(std::vector<float>{0.5f});
  stats.Append();
  for (int i = 0; i < 100000; ++i) stats.Observe(std::vector<float>{0.5f, 0.25f});
  const UnitEvidence evidence = All(stats);
  EXPECT_NEAR(evidence.mean[0], 0.5f, 1e-4);
  EXPECT_NEAR(evidence.mean[1], 0.25f, 1e-4);
  EXPECT_GT(evidence.steps[1], 30000);
}

TEST(EntryStatsTest, NanAndInfinityDoNoHarm) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const UnitEvidence evidence = All(Observed({{nan, infinity, -1.0f, 0.5f}}));
  EXPECT_THAT(evidence.mean, ElementsAre(0, 1, 0, 0.5f));
  EXPECT_THAT(evidence.window_max, ElementsAre(0, 1, 0, 0.5f));
}

TEST(EntryStatsTest, FoldedEntriesAddUp) {
  EntryStats stats = Observed({{0.5f, 0.25f, 0.125f, 0.125f}, {0.25f, 0.25f, 0.25f, 0.25f}});
  stats.CarryOver(FoldPlan(4, {{0, 2}, {3, 2}}), 0);
  const UnitEvidence evidence = All(stats);
  EXPECT_THAT(evidence.mean, ElementsAre(0.25f, 0.75f));
  EXPECT_THAT(evidence.window_max, ElementsAre(0.25f, 0.5f));
  EXPECT_THAT(evidence.steps, ElementsAre(2, 2));
}

TEST(EntryStatsTest, CarryOverKeepsTheSumOfMeansWhateverTheAges) {
  EntryStats stats = Observed({{1.0f}, {0.5f, 0.5f}, {0.3f, 0.1f, 0.6f}});
  stats.CarryOver(FoldPlan(3, {{2, 0}}), 0);
  const UnitEvidence evidence = All(stats);
  EXPECT_THAT(evidence.mean, ElementsAre(FloatEq(1.2f), FloatEq(0.3f)));
  EXPECT_THAT(evidence.steps, ElementsAre(3, 2));

  stats = Observed({{1.0f}, {0.5f, 0.5f}, {0.3f, 0.1f, 0.6f}});
  stats.CarryOver(FoldPlan(3, {{1, 2}}), 0);
  EXPECT_THAT(All(stats).mean, ElementsAre(FloatEq(0.6f), FloatEq(0.9f)));
  EXPECT_THAT(All(stats).steps, ElementsAre(3, 2));
}

TEST(EntryStatsTest, CarryOverTouchesOnlyItsRange) {
  EntryStats stats = Observed({{0.1f, 0.2f, 0.3f, 0.4f, 0.5f, 0.6f}});
  stats.CarryOver(FoldPlan(3, {{0, 1}}, {2}), 2);  // entries 2..4: 2 into 3, 4 dropped
  EXPECT_THAT(All(stats).mean,
              ElementsAre(FloatEq(0.1f), FloatEq(0.2f), FloatEq(0.7f), FloatEq(0.6f)));
  stats.Append();
  EXPECT_EQ(stats.size(), 5);
}

TEST(EntryStatsTest, FoldedEntryIsAsFreshAsItsMostRecentMember) {
  EntryStats stats = Observed({{0.5f, 0.5f}, {1.0f, 0}, {1.0f, 0}});
  stats.CarryOver(FoldPlan(2, {{0, 1}}), 0);
  EXPECT_THAT(All(stats).idle_steps, ElementsAre(0));
}

TEST(EntryStatsTest, MarksComeFromThePlanAndGoWhenAttended) {
  EntryStats stats = Observed({{0.4f, 0.3f, 0.3f}});
  MergePlan plan = FoldPlan(3, {});
  plan.marks = {0, 2};
  stats.CarryOver(plan, 0);
  EXPECT_THAT(All(stats).marked, ElementsAre(1, 0, 1));
  stats.Observe(std::vector<float>{0.95f, 0.05f, 0.0f});
  EXPECT_THAT(All(stats).marked, ElementsAre(0, 0, 1));
  stats.CarryOver(FoldPlan(3, {}), 0);
  EXPECT_THAT(All(stats).marked, Each(0));
}

TEST(EntryStatsTest, FreezeTakesARange) {
  const EntryStats stats = Observed({{0.1f, 0.2f, 0.3f, 0.4f}});
  EXPECT_THAT(stats.Freeze(1, 2).mean, ElementsAre(FloatEq(0.2f), FloatEq(0.3f)));
  EXPECT_EQ(stats.Freeze(4, 0).size(), 0);
}

TEST(EntryStatsTest, ClearForgetsEverything) {
  EntryStats stats = Observed({{0.5f, 0.5f}});
  stats.Clear();
  EXPECT_EQ(stats.size(), 0);
}

TEST(EntryStatsTest, MassOfUnseenEntriesIsTheAverage) {
  UnitEvidence evidence = All(Observed({{0.5f, 0.25f}}));
  EXPECT_THAT(ObservedMasses(evidence), ElementsAre(0.5f, 0.25f));
  EntryStats stats = Observed({{0.5f, 0.25f}});
  stats.Append();
  EXPECT_THAT(ObservedMasses(All(stats)), ElementsAre(0.5f, 0.25f, 0.375f));
  EntryStats unseen;
  unseen.AppendMany(4);
  EXPECT_THAT(ObservedMasses(All(unseen)), Each(0.25f));
  EXPECT_TRUE(ObservedMasses(UnitEvidence()).empty());
}

TEST(EntryStatsTest, MassesArePositiveAndFinite) {
  UnitEvidence evidence = All(Observed({{0.0f, 0.5f, 0.5f, 0.5f}}));
  evidence.mean[1] = std::numeric_limits<float>::quiet_NaN();
  evidence.mean[2] = std::numeric_limits<float>::infinity();
  EXPECT_THAT(ObservedMasses(evidence), ElementsAre(kLeastMass, 0.5f, 1.0f, 0.5f));
}

TEST(EntryStatsDeathTest, MoreProbabilitiesThanEntriesAreABug) {
  EntryStats stats;
  EXPECT_DEATH(stats.Observe(std::vector<float>{1.0f}), "probability.size");
}

}  // namespace
}  // namespace condense
