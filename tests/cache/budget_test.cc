#include "cache/budget.h"

#include <gtest/gtest.h>

#include <vector>

namespace condense {
namespace {

constexpr FormatCost kCost = {.plain_bytes = 68.0, .merged_bytes = 74.0};

// Unit 0: alike; unit 1: distinct. Shares fall by `slope` for each 0.01 of cosine below 1.
MergeCurves TwoUnits() {
  MergeCurves curves(2);
  const double slopes[] = {0.04, 0.01};
  for (int32_t unit = 0; unit < 2; ++unit) {
    MergeCurves::Shares left;
    for (int32_t i = 0; i < MergeCurves::kNumPoints; ++i) {
      left[i] = static_cast<float>(1.0 - slopes[unit] * (20 - i));
    }
    curves.Set(unit, left);
  }
  return curves;
}

double TotalBytes(const Budget& budget, const std::vector<BudgetItem>& items, double cosine) {
  double bytes = 0.0;
  for (const BudgetItem& item : items) bytes += budget.Bytes(item, cosine);
  return bytes;
}

TEST(BudgetTest, OneCosineReachesTheTargetOfAll) {
  const MergeCurves curves = TwoUnits();
  const Budget budget(&curves, kCost, 1.0);
  const std::vector<BudgetItem> items = {{0, 1000}, {1, 3000}};
  for (const double share : {0.95, 0.85, 0.75}) {
    const double target = share * 4000 * kCost.plain_bytes;
    const double cosine = budget.FindCosine(items, target, 0.8);
    EXPECT_LE(TotalBytes(budget, items, cosine), target);
    EXPECT_GT(TotalBytes(budget, items, cosine + 0.001), target);
  }
}

TEST(BudgetTest, StopsAtTheLowest) {
  const MergeCurves curves = TwoUnits();
  const Budget budget(&curves, kCost, 1.0);
  EXPECT_NEAR(budget.FindCosine(std::vector<BudgetItem>{{0, 1000}}, 1.0, 0.9), 0.9, 1e-9);
}

TEST(BudgetTest, FewMergesAreNotWorthTheirSideArrays) {
  const MergeCurves curves = TwoUnits();
  const Budget budget(&curves, kCost, 1.0);
  // 68 / 74 = 0.919 must be left at most.
  EXPECT_FALSE(budget.Merges({0, 1000}, 0.981));
  EXPECT_TRUE(budget.Merges({0, 1000}, 0.979));
  EXPECT_FALSE(budget.Merges({1, 1000}, 0.93));
  EXPECT_DOUBLE_EQ(budget.Bytes({1, 1000}, 0.93), 68000.0);
}

TEST(BudgetTest, TheTextsFactorScalesWhatIsLeftButNotBeyondAll) {
  const MergeCurves curves = TwoUnits();
  const Budget usual(&curves, kCost, 1.0), harder(&curves, kCost, 1.5);
  const BudgetItem item = {0, 1000};
  EXPECT_DOUBLE_EQ(harder.CurveEntries(item, 0.9), usual.Entries(item, 0.9));
  EXPECT_NEAR(harder.Entries(item, 0.9), 1.5 * usual.Entries(item, 0.9), 1e-9);
  EXPECT_EQ(harder.Entries(item, 0.95), 1000.0);
  const double target = 0.7 * 68000;
  EXPECT_LT(harder.FindCosine(std::vector{item}, target, 0.8),
            usual.FindCosine(std::vector{item}, target, 0.8));
}

TEST(BudgetTest, ASparedUnitMergesAtPartOfTheDistance) {
  const MergeCurves curves = TwoUnits();
  const Budget budget(&curves, kCost, 1.0);
  const BudgetItem half = {.unit = 0, .num_entries = 1000, .distance_share = 0.5};
  EXPECT_DOUBLE_EQ(Budget::UnitCosine(half, 0.9), 0.95);
  EXPECT_DOUBLE_EQ(budget.Entries(half, 0.9), budget.Entries({0, 1000}, 0.95));
  const BudgetItem none = {.unit = 0, .num_entries = 1000, .distance_share = 0.0};
  EXPECT_EQ(budget.Entries(none, 0.8), 1000.0);
  EXPECT_FALSE(budget.Merges(none, 0.8));
}

}  // namespace
}  // namespace condense
