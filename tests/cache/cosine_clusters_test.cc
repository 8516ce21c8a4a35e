#include "cache/cosine_clusters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kWindow = 128;

MergeBuilder Start(const UnitEntries& entries, const UnitFixture& unit,
                   GroupKind kind = GroupKind::kPivot) {
  return MergeBuilder(entries, ObservedMasses(unit.evidence), kind);
}

// The same greedy walk, written plainly: one loop over entries, no windows kept, no tiles.
MergePlan NaiveClusters(const UnitFixture& unit, float cosine, int32_t window,
                        int32_t max_members) {
  const UnitEntries entries = unit.View().entries;
  const UnitKeys keys(unit.keys, unit.head_dim);
  const std::vector<float> masses = ObservedMasses(unit.evidence);
  MergeBuilder merges(entries, masses, GroupKind::kPivot);
  std::vector<int32_t> order;
  for (int32_t i = 0; i < entries.size(); ++i) order.push_back(i);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return masses[a] > masses[b]; });
  std::vector<bool> taken(order.size(), false);
  for (size_t p = 0; p < order.size(); ++p) {
    const int32_t pivot = order[p];
    if (taken[pivot]) continue;
    std::vector<std::pair<float, int32_t>> alike;
    for (size_t k = p + 1; k < order.size(); ++k) {
      const int32_t other = order[k];
      const bool near = entries.positions[pivot] / window == entries.positions[other] / window;
      if (!near || taken[other]) continue;
      const float similarity = keys.Cosine(pivot, other);
      if (similarity >= cosine) alike.push_back({-similarity, other});
    }
    std::sort(alike.begin(), alike.end());
    int32_t members = 1;
    for (const auto& [minus, other] : alike) {
      if (members == max_members) break;
      if (!merges.TryFold(other, pivot)) continue;
      taken[other] = true;
      ++members;
    }
  }
  return merges.Build();
}

std::vector<std::vector<int32_t>> Groups(const MergePlan& plan) {
  std::vector<std::vector<int32_t>> groups;
  for (const MergeGroup& group : plan.groups) {
    groups.emplace_back();
    for (const MergeMember& member : plan.members_of(group)) groups.back().push_back(member.entry);
  }
  return groups;
}

TEST(CosineClustersTest, AgreesWithThePlainWalk) {
  for (const int32_t num_entries : {70, 300, 777}) {
    const UnitFixture unit = MakeUnit(num_entries, 64, num_entries);
    const UnitEntries entries = unit.View().entries;
    const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), kWindow, 8);
    for (const float cosine : {0.97f, 0.91f, 0.85f, 0.5f}) {
      EXPECT_EQ(Groups(clusters.Cluster(cosine).Build()),
                Groups(NaiveClusters(unit, cosine, kWindow, 8)))
          << num_entries << " entries, cosine " << cosine;
    }
  }
}

TEST(CosineClustersTest, ClustersStayInTheirWindow) {
  UnitFixture unit = MakeUnit(400, 64, 3);
  std::fill(unit.keys.begin(), unit.keys.end(), 1.0f);
  const UnitEntries entries = unit.View().entries;
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), 32, 8);
  int32_t most = 0;
  for (const std::vector<int32_t>& group : Groups(clusters.Cluster(0.9f).Build())) {
    most = std::max(most, static_cast<int32_t>(group.size()));
    for (const int32_t entry : group) EXPECT_EQ(entry / 32, group[0] / 32);
  }
  EXPECT_EQ(most, 8);
}

TEST(CosineClustersTest, PivotIsTheHeaviestMember) {
  const UnitFixture unit = MakeUnit(300, 64, 4);
  const UnitEntries entries = unit.View().entries;
  const std::vector<float> masses = ObservedMasses(unit.evidence);
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), kWindow, 8);
  for (const std::vector<int32_t>& group : Groups(clusters.Cluster(0.85f).Build())) {
    for (const int32_t entry : group) EXPECT_LE(masses[entry], masses[group[0]]);
  }
}

TEST(CosineClustersTest, FewerRoomTakesTheMostSimilar) {
  UnitFixture unit = MakeUnit(4, 8, 1);
  unit.protection = {.num_sinks = 0, .end_position = 1000};
  unit.evidence.mean = {0.4f, 0.1f, 0.2f, 0.3f};
  unit.keys = {1, 0,    0, 0, 0, 0, 0, 0,  //
               1, 0.1f, 0, 0, 0, 0, 0, 0,  //
               1, 0.3f, 0, 0, 0, 0, 0, 0,  //
               1, 0.2f, 0, 0, 0, 0, 0, 0};
  const UnitEntries entries = unit.View().entries;
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 8), kWindow, 2);
  EXPECT_EQ(Groups(clusters.Cluster(0.9f).Build()),
            (std::vector<std::vector<int32_t>>{{0, 1}, {3, 2}}));
}

TEST(CosineClustersTest, SearchFindsTheHighestThresholdThatReachesTheTarget) {
  const UnitFixture unit = MakeUnit(1500, 64, 5);
  const UnitEntries entries = unit.View().entries;
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), kWindow, 8);
  for (const int32_t target : {1400, 1200, 900}) {
    const auto [merges, cosine] = clusters.ReachTarget(target, 0.85f, 0.97f);
    EXPECT_LE(merges.num_left(), target);
    EXPECT_GT(merges.num_left(), target - 40) << "overshot";
    EXPECT_EQ(merges.num_left(), clusters.Cluster(cosine).num_left());
    EXPECT_GT(clusters.Cluster(cosine + 0.002f).num_left(), target);
  }
}

TEST(CosineClustersTest, SearchStaysInsideItsBounds) {
  const UnitFixture unit = MakeUnit(1500, 64, 5);
  const UnitEntries entries = unit.View().entries;
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), kWindow, 8);
  EXPECT_EQ(clusters.ReachTarget(10, 0.88f, 0.97f).cosine, 0.88f);
  EXPECT_GT(clusters.ReachTarget(10, 0.88f, 0.97f).merges.num_left(), 10);
  EXPECT_EQ(clusters.ReachTarget(1500, 0.88f, 0.97f).cosine, 0.97f);
}

TEST(CosineClustersTest, AllProtectedMeansNothingToDo) {
  UnitFixture unit = MakeUnit(40, 64, 6);
  const UnitEntries entries = unit.View().entries;
  const CosineClusters clusters(Start(entries, unit), UnitKeys(unit.keys, 64), kWindow, 8);
  EXPECT_EQ(clusters.Cluster(0.1f).num_left(), 40);
}

}  // namespace
}  // namespace condense
