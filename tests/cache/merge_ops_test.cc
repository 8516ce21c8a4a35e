// What merges do to attention, through the ops that the server uses: a plan of the merge builder,
// carried out by kv-build, read by attention.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/build_recipe.h"
#include "cache/merge_builder.h"
#include "cache/unit_ops.h"
#include "tests/support/compaction_unit.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int32_t kHeadDim = 64;
// Two f16 biases of at most ln 16 are each off by half a unit in the last place: 2^-10.
constexpr double kBiasError = 1e-3;
// Averaged values are rounded to f16 as well.
constexpr double kOutputError = 2e-3;

// What one query finds in a list.
struct Found {
  std::vector<float> out;
  float log_sum_exp = 0.0f;
};

double RelativeError(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(double{actual[i]} - expected[i], 2);
    norm += std::pow(double{expected[i]}, 2);
  }
  return std::sqrt(error / norm);
}

// Folds (from, into) that a bias of at most ln 16 can carry.
std::vector<std::pair<int, int>> IntoTheHeaviest(const std::vector<float>& masses,
                                                 const std::vector<std::vector<int>>& groups) {
  std::vector<std::pair<int, int>> folds;
  for (const std::vector<int>& group : groups) {
    const int into = *std::max_element(group.begin(), group.end(),
                                       [&](int a, int b) { return masses[a] < masses[b]; });
    for (const int from : group) {
      if (from != into) folds.push_back({from, into});
    }
  }
  return folds;
}

class MergeOpsTest : public testing::TestWithParam<std::string> {
 protected:
  CompactionUnit MakeUnit(int32_t copies, bool has_rope) {
    return CompactionUnit(
        backend_.get(),
        {.num_entries = 128, .group = 1, .copies = copies, .has_rope = has_rope, .seed = 5});
  }
  static std::vector<KvBlockRef> Front(const CompactionUnit& unit) {
    std::vector<KvBlockRef> blocks;
    for (const KvBuildSource& source : unit.front()) blocks.push_back(source.block);
    return blocks;
  }
  static std::vector<float> Query(uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    std::vector<float> q(kHeadDim);
    for (float& x : q) x = normal(random);
    return q;
  }

  // The attention op, for one row that sees the whole list.
  Found Attend(const CompactionUnit& unit, const std::vector<KvBlockRef>& blocks,
               const std::vector<float>& q) {
    const KvList list{blocks.data(), static_cast<int32_t>(blocks.size()), CountEntries(blocks)};
    const KvSequenceArgs sequence{.first_row = 0, .num_tokens = 1, .lists = &list};
    const Buffer query = backend_->Allocate(kHeadDim * 4).value();
    const Buffer out = backend_->Allocate(kHeadDim * 4).value();
    const Buffer log_sum_exp = backend_->Allocate(4).value();
    backend_->CopyToDevice(query.data(), reinterpret_cast<const std::byte*>(q.data()),
                           kHeadDim * 4);
    AttentionArgs args{.q = query.as<float>(),
                       .arena = unit.model().arena,
                       .shape = unit.model().shape,
                       .num_heads = 1,
                       .num_kv_heads = 1,
                       .num_sequences = 1,
                       .sequences = &sequence,
                       .scale = unit.model().attention_scale,
                       .positions = unit.model().positions[1]};
    args.out = out.as<float>();
    args.log_sum_exp = log_sum_exp.as<float>();
    backend_->Attention(args);
    Found found{.out = std::vector<float>(kHeadDim)};
    backend_->CopyToHost(reinterpret_cast<std::byte*>(found.out.data()), out.data(), kHeadDim * 4);
    backend_->CopyToHost(reinterpret_cast<std::byte*>(&found.log_sum_exp), log_sum_exp.data(), 4);
    EXPECT_TRUE(backend_->Synchronize().ok());
    return found;
  }
  // The masses of one query, as kv-evaluate gives them to plans.
  std::vector<float> Masses(const CompactionUnit& unit, const std::vector<KvBlockRef>& blocks,
                            const std::vector<float>& q) {
    QueryFindings findings;
    UnitOps ops(backend_.get(), &unit.model(), 1, 1);
    EXPECT_TRUE(ops.Evaluate(blocks, q.data(), 1, UnitOps::kOutAndMasses, &findings).ok());
    return {findings.mass.begin(), findings.mass.end()};
  }

  // The blocks that kv-build makes of `sources` by these folds (from, into).
  std::vector<KvBlockRef> Merge(CompactionUnit* unit, const std::vector<KvBuildSource>& sources,
                                const std::vector<float>& masses, GroupKind kind,
                                const std::vector<std::pair<int, int>>& folds) {
    UnitOps ops(backend_.get(), &unit->model(), 1, 1);
    UnitRange range;
    EXPECT_TRUE(ops.Read(sources, false, &range).ok());
    const UnitEntries entries{.positions = range.positions,
                              .biases = range.biases,
                              .counts = range.counts,
                              .protection = {.num_sinks = 0, .end_position = 1 << 20}};
    MergeBuilder merges(entries, masses, kind);
    for (const auto& [from, into] : folds) EXPECT_TRUE(merges.TryFold(from, into)) << from;
    const MergePlan plan = merges.Build();
    EXPECT_TRUE(ValidatePlan(plan, entries, entries.size()).ok());
    const auto blocks =
        unit->TakeBlocks(KvFormat::kK16V16, kMergedFlags, static_cast<int32_t>(sources.size()));
    const BuildRecipe recipe = MakeBuildRecipe(plan, blocks, 32).value();
    EXPECT_TRUE(ops.Build(sources, recipe).ok());
    return recipe.blocks;
  }
  int64_t Counts(const CompactionUnit& unit, const std::vector<KvBlockRef>& blocks) {
    std::vector<KvBuildSource> sources;
    for (const KvBlockRef& block : blocks) sources.push_back({block, 0});
    UnitRange range;
    UnitOps ops(backend_.get(), &unit.model(), 1, 1);
    EXPECT_TRUE(ops.Read(sources, false, &range).ok());
    return std::accumulate(range.counts.begin(), range.counts.end(), int64_t{0});
  }

 private:
  std::unique_ptr<Backend> backend_ = GetParam() == "cpu"
                                          ? MakeBackend({.kind = "cpu", .num_threads = 1}).value()
                                          : std::make_unique<ReferenceBackend>();
};

// With the masses of one query, folds change neither the sum of that query's weights nor its
// output, whoever is folded into whom.
TEST_P(MergeOpsTest, FoldsConserveTheMassOfTheQueryThatWeighed) {
  CompactionUnit unit = MakeUnit(1, true);
  const std::vector<float> q = Query(1);
  const Found before = Attend(unit, Front(unit), q);
  const std::vector<float> masses = Masses(unit, Front(unit), q);
  const auto blocks = Merge(
      &unit, unit.front(), masses, GroupKind::kPivot,
      IntoTheHeaviest(masses, {{3, 9, 17}, {18, 19}, {39, 40, 70, 71}, {33, 99}, {126, 127}}));
  EXPECT_EQ(CountEntries(blocks), 120);
  EXPECT_EQ(Counts(unit, blocks), 128);
  const Found after = Attend(unit, blocks, q);
  EXPECT_NEAR(after.log_sum_exp, before.log_sum_exp, kBiasError);
  EXPECT_LE(RelativeError(after.out, before.out), kOutputError);

  // And what was folded is folded again.
  std::vector<KvBuildSource> sources;
  for (const KvBlockRef& block : blocks) sources.push_back({block, 0});
  const std::vector<float> masses_then = Masses(unit, blocks, q);
  const auto twice = Merge(&unit, sources, masses_then, GroupKind::kPivot,
                           IntoTheHeaviest(masses_then, {{0, 1}, {7, 8}, {30, 60, 61}}));
  EXPECT_EQ(CountEntries(twice), 116);
  EXPECT_EQ(Counts(unit, twice), 128);
  const Found last = Attend(unit, twice, q);
  EXPECT_NEAR(last.log_sum_exp, before.log_sum_exp, 2 * kBiasError);
  EXPECT_LE(RelativeError(last.out, before.out), 2 * kOutputError);
}

// Four copies of each key and value become one with bias ln 4: no query sees a difference. Where
// all biases are the same, their rounding to f16 reaches the sum alone.
TEST_P(MergeOpsTest, DuplicatesMergedWithLnMChangeNoOutput) {
  std::vector<std::pair<int, int>> folds;
  for (int e = 0; e < 128; ++e) {
    if (e % 4 != 0) folds.push_back({e, e - e % 4});
  }
  for (const GroupKind kind : {GroupKind::kPivot, GroupKind::kAverage}) {
    CompactionUnit unit = MakeUnit(4, false);
    const auto blocks = Merge(&unit, unit.front(), std::vector<float>(128, 0.01f), kind, folds);
    ASSERT_EQ(CountEntries(blocks), 32);
    for (uint32_t seed = 0; seed < 5; ++seed) {
      const Found before = Attend(unit, Front(unit), Query(seed));
      const Found after = Attend(unit, blocks, Query(seed));
      EXPECT_LE(RelativeError(after.out, before.out), 2e-6);
      EXPECT_NEAR(after.log_sum_exp, before.log_sum_exp, kBiasError);
    }
  }
}

// Some groups only, of different sizes.
TEST_P(MergeOpsTest, SomeDuplicatesMergedWithLnMChangeNoOutputEither) {
  CompactionUnit unit = MakeUnit(4, false);
  const auto blocks = Merge(&unit, unit.front(), std::vector<float>(128, 0.01f), GroupKind::kPivot,
                            {{1, 0}, {2, 0}, {3, 0}, {8, 9}, {45, 44}, {46, 44}, {127, 126}});
  ASSERT_EQ(CountEntries(blocks), 121);
  for (uint32_t seed = 0; seed < 5; ++seed) {
    const Found before = Attend(unit, Front(unit), Query(seed));
    const Found after = Attend(unit, blocks, Query(seed));
    EXPECT_LE(RelativeError(after.out, before.out), kBiasError);
    EXPECT_NEAR(after.log_sum_exp, before.log_sum_exp, kBiasError);
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, MergeOpsTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace condense
