#include "cache/fold.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "cache/merge_builder.h"

namespace condense {
namespace {

constexpr int32_t kHeadDim = 16;

RopeTable MakeRope(RopePairing pairing) {
  RopeFrequencies frequencies{.pairing = pairing};
  for (int i = 0; i < kHeadDim / 2; ++i) {
    frequencies.radians.push_back(std::pow(10000.0, -2.0 * i / kHeadDim));
  }
  RopeTable table(frequencies);
  table.Extend(2000);
  return table;
}

// A small unit, and exact attention over it or over what a plan makes of it.
struct Unit {
  explicit Unit(int32_t n, int seed = 1) : positions(n), biases(n, 0.0f), counts(n, 1) {
    std::iota(positions.begin(), positions.end(), 100);
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    for (int32_t i = 0; i < n * kHeadDim; ++i) {
      keys.push_back(normal(random));
      values.push_back(normal(random));
    }
    for (int32_t d = 0; d < kHeadDim; ++d) query.push_back(normal(random));
  }
  UnitEntries Entries() const {
    return {.positions = positions,
            .biases = biases,
            .counts = counts,
            .protection = {.end_position = 5000}};
  }
  EntryVectors Vectors() const { return {positions, keys.data(), values.data(), kHeadDim}; }

  Unit After(const MergePlan& plan, const RopeTable& rope) const {
    Unit after(0);
    after.query = query;
    for (const MergeGroup& group : plan.groups) {
      std::vector<float> key(kHeadDim), value(kHeadDim);
      BuildEntry(plan, group, Vectors(), rope, key.data(), value.data());
      after.keys.insert(after.keys.end(), key.begin(), key.end());
      after.values.insert(after.values.end(), value.begin(), value.end());
      after.positions.push_back(group.position);
      after.biases.push_back(group.bias);
      after.counts.push_back(group.count);
    }
    return after;
  }
  // exp(logit) of each entry.
  std::vector<double> Weights() const {
    std::vector<double> weights;
    for (size_t i = 0; i < positions.size(); ++i) {
      double dot = 0;
      for (int32_t d = 0; d < kHeadDim; ++d) dot += query[d] * keys[i * kHeadDim + d];
      weights.push_back(std::exp(dot / std::sqrt(kHeadDim) + biases[i]));
    }
    return weights;
  }
  double Sum() const {
    const std::vector<double> weights = Weights();
    return std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  std::vector<float> Masses() const {
    std::vector<float> masses;
    for (const double weight : Weights()) masses.push_back(static_cast<float>(weight / Sum()));
    return masses;
  }
  std::vector<double> Output() const {
    const std::vector<double> weights = Weights();
    std::vector<double> output(kHeadDim, 0.0);
    for (size_t i = 0; i < positions.size(); ++i) {
      for (int32_t d = 0; d < kHeadDim; ++d) {
        output[d] += weights[i] / Sum() * values[i * kHeadDim + d];
      }
    }
    return output;
  }

  std::vector<int32_t> positions;
  std::vector<float> biases;
  std::vector<int32_t> counts;
  std::vector<float> keys, values, query;
};

void ExpectSameOutput(const Unit& a, const Unit& b, double tolerance) {
  EXPECT_NEAR(a.Sum() / b.Sum(), 1.0, tolerance);
  const std::vector<double> first = a.Output(), second = b.Output();
  for (int32_t d = 0; d < kHeadDim; ++d) EXPECT_NEAR(first[d], second[d], tolerance) << d;
}

MergePlan Fold(const Unit& unit, GroupKind kind, const std::vector<std::pair<int, int>>& folds) {
  const UnitEntries entries = unit.Entries();
  MergeBuilder merges(entries, unit.Masses(), kind);
  for (const auto& [from, into] : folds) EXPECT_TRUE(merges.TryFold(from, into));
  MergePlan plan = merges.Build();
  EXPECT_TRUE(ValidatePlan(plan, entries, entries.size()).ok());
  return plan;
}

TEST(FoldTest, BiasIsTheLogOfTheMassRatio) {
  EXPECT_DOUBLE_EQ(FoldedBias(0.0, 0.2, 0.2 + 0.1), std::log(1.5));
  EXPECT_DOUBLE_EQ(FoldedBias(0.5, 1.0, 4.0), 0.5 + std::log(4.0));
}

TEST(FoldTest, AveragedBiasIsTheLogOfSummedWeights) {
  EXPECT_DOUBLE_EQ(AveragedBias(std::vector<float>{0, 0, 0, 0}), std::log(4.0));
  EXPECT_NEAR(AveragedBias(std::vector<float>{1.0f, 0.5f}), std::log(std::exp(1) + std::exp(.5)),
              1e-12);
  EXPECT_NEAR(AveragedBias(std::vector<float>{800.0f, 800.0f}), 800 + std::log(2.0), 1e-9);
}

// With the masses of one query, folding changes neither that query's softmax sum nor its output,
// whatever the keys are.
TEST(FoldTest, ConservesMassAndOutputOfTheQueryThatWeighed) {
  const RopeTable rope = MakeRope(RopePairing::kAdjacent);
  const Unit unit(6);
  const MergePlan plan = Fold(unit, GroupKind::kPivot, {{0, 3}, {5, 3}, {4, 1}});
  EXPECT_EQ(plan.groups.size(), 3u);
  ExpectSameOutput(unit, unit.After(plan, rope), 1e-6);
}

TEST(FoldTest, ChainOfFoldsConservesMassToo) {
  const RopeTable rope = MakeRope(RopePairing::kAdjacent);
  const Unit unit(5);
  ExpectSameOutput(unit, unit.After(Fold(unit, GroupKind::kPivot, {{0, 1}, {1, 2}, {4, 2}}), rope),
                   1e-6);
}

TEST(FoldTest, FoldingWhatWasFoldedBeforeConservesMass) {
  const RopeTable rope = MakeRope(RopePairing::kAdjacent);
  const Unit unit(6);
  const Unit once = unit.After(Fold(unit, GroupKind::kPivot, {{0, 1}, {5, 4}}), rope);
  const Unit twice = once.After(Fold(once, GroupKind::kPivot, {{0, 3}, {1, 2}}), rope);
  EXPECT_EQ(twice.positions.size(), 2u);
  EXPECT_EQ(std::accumulate(twice.counts.begin(), twice.counts.end(), 0), 6);
  ExpectSameOutput(unit, twice, 1e-6);
}

TEST(FoldTest, PivotKeyAndLoneEntriesComeOutBitForBit) {
  const RopeTable rope = MakeRope(RopePairing::kHalfSplit);
  const Unit unit(4);
  const Unit after = unit.After(Fold(unit, GroupKind::kPivot, {{1, 2}}), rope);
  const auto row = [](const std::vector<float>& all, int i) {
    return std::vector<float>(all.begin() + i * kHeadDim, all.begin() + (i + 1) * kHeadDim);
  };
  EXPECT_EQ(row(after.keys, 1), row(unit.keys, 2));
  EXPECT_EQ(row(after.keys, 0), row(unit.keys, 0));
  EXPECT_EQ(row(after.values, 0), row(unit.values, 0));
  EXPECT_EQ(row(after.values, 2), row(unit.values, 3));
  EXPECT_EQ(after.biases[0], 0.0f);
}

class DuplicateTest : public testing::TestWithParam<GroupKind> {};

TEST_P(DuplicateTest, MergedDuplicatesGetLnMAndChangeNothing) {
  const RopeTable rope = MakeRope(RopePairing::kAdjacent);
  Unit unit(6);
  for (int i : {2, 3, 4}) {  // duplicates of entry 1, at one position
    unit.positions[i] = unit.positions[1];
    for (int d = 0; d < kHeadDim; ++d) {
      unit.keys[i * kHeadDim + d] = unit.keys[kHeadDim + d];
      unit.values[i * kHeadDim + d] = unit.values[kHeadDim + d];
    }
  }
  const MergePlan plan = Fold(unit, GetParam(), {{2, 1}, {3, 1}, {4, 1}});
  EXPECT_NEAR(plan.groups[1].bias, std::log(4.0), 1e-6);
  const Unit after = unit.After(plan, rope);
  ExpectSameOutput(unit, after, 1e-6);
  for (int d = 0; d < kHeadDim; ++d) unit.query[d] = static_cast<float>(d) / 10 - 0.5f;
  Unit other = after;
  other.query = unit.query;
  ExpectSameOutput(unit, other, 1e-6);  // for a query that had no say, too
}

INSTANTIATE_TEST_SUITE_P(Kinds, DuplicateTest,
                         testing::Values(GroupKind::kPivot, GroupKind::kAverage),
                         [](const auto& info) {
                           return info.param == GroupKind::kPivot ? "Pivot" : "Average";
                         });

class AverageTest : public testing::TestWithParam<RopePairing> {};

// One key seen at four positions averages to that key, freshly turned to the mean position.
TEST_P(AverageTest, EqualKeysAverageToFreshRopeAtTheMeanPosition) {
  const RopeTable rope = MakeRope(GetParam());
  Unit unit(4);
  unit.positions = {100, 107, 131, 190};
  const std::vector<float> plain(unit.keys.begin(), unit.keys.begin() + kHeadDim);
  for (int i = 0; i < 4; ++i) {
    std::copy(plain.begin(), plain.end(), unit.keys.begin() + i * kHeadDim);
    rope.Turn(unit.positions[i], unit.keys.data() + i * kHeadDim);
  }
  const MergePlan plan = Fold(unit, GroupKind::kAverage, {{1, 0}, {2, 0}, {3, 0}});
  ASSERT_EQ(plan.groups.size(), 1u);
  EXPECT_EQ(plan.groups[0].position, 132);
  const Unit after = unit.After(plan, rope);
  std::vector<float> fresh = plain;
  rope.Turn(132, fresh.data());
  for (int d = 0; d < kHeadDim; ++d) EXPECT_NEAR(after.keys[d], fresh[d], 1e-5) << d;
}

TEST_P(AverageTest, KeysWeighByExpBiasAndValuesByMass) {
  const RopeTable rope = MakeRope(GetParam());
  Unit unit(2);
  unit.biases = {std::log(3.0f), 0.0f};
  unit.positions = {100, 108};
  const std::vector<float> masses{0.1f, 0.3f};
  const UnitEntries entries = unit.Entries();
  MergeBuilder average(entries, masses, GroupKind::kAverage);
  ASSERT_TRUE(average.TryFold(0, 1));
  const MergePlan plan = average.Build();
  EXPECT_EQ(plan.groups[0].position, 102);
  EXPECT_NEAR(plan.groups[0].bias, std::log(4.0), 1e-6);
  const Unit after = unit.After(plan, rope);
  std::vector<float> first(unit.keys.begin(), unit.keys.begin() + kHeadDim);
  std::vector<float> second(unit.keys.begin() + kHeadDim, unit.keys.end());
  rope.Turn(2, first.data());
  rope.Turn(-6, second.data());
  for (int d = 0; d < kHeadDim; ++d) {
    EXPECT_NEAR(after.keys[d], 0.75 * first[d] + 0.25 * second[d], 1e-6);
    EXPECT_NEAR(after.values[d], 0.25 * unit.values[d] + 0.75 * unit.values[kHeadDim + d], 1e-6);
  }
}

INSTANTIATE_TEST_SUITE_P(Pairings, AverageTest,
                         testing::Values(RopePairing::kAdjacent, RopePairing::kHalfSplit),
                         [](const auto& info) {
                           return info.param == RopePairing::kAdjacent ? "Adjacent" : "HalfSplit";
                         });

}  // namespace
}  // namespace condense
