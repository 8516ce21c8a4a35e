#include "cache/query_evidence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "tests/support/compaction_unit.h"
#include "tests/support/fault_backend.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

std::vector<KvBlockRef> FrontOf(const CompactionUnit& unit) {
  std::vector<KvBlockRef> blocks;
  for (const KvBuildSource& source : unit.front()) blocks.push_back(source.block);
  return blocks;
}

// Every query alone, over exactly what it saw.
EntryStats NaiveStats(const CompactionUnit& unit, const QuerySamples& samples, UnitOps* ops) {
  EntryStats stats;
  stats.AppendMany(CountEntries(unit.front()));
  for (int32_t i = 0; i < samples.size(); ++i) {
    std::vector<KvBlockRef> blocks = FrontOf(unit);
    int32_t left = samples.visible[i];
    for (KvBlockRef& block : blocks) {
      block.count = static_cast<uint16_t>(std::min<int32_t>(left, block.count));
      left -= block.count;
    }
    std::erase_if(blocks, [](const KvBlockRef& block) { return block.count == 0; });
    if (blocks.empty()) continue;
    QueryFindings findings;
    const float* q = samples.q.data() + int64_t{i} * ops->group() * ops->head_dim();
    EXPECT_TRUE(ops->Evaluate(blocks, q, 1, UnitOps::kMasses, &findings).ok());
    std::vector<float> largest(findings.num_entries, 0.0f);
    for (int32_t row = 0; row < findings.num_rows(); ++row) {
      for (int32_t e = 0; e < findings.num_entries; ++e) {
        largest[e] = std::max(largest[e], findings.mass_of(row)[e]);
      }
    }
    stats.Observe(largest);
  }
  return stats;
}

UnitEvidence Naive(const CompactionUnit& unit, const QuerySamples& samples, UnitOps* ops) {
  const EntryStats stats = NaiveStats(unit, samples, ops);
  return stats.Freeze(0, stats.size());
}

UnitEvidence ObservedRange(const CompactionUnit& unit, int32_t first, int32_t num,
                           const QuerySamples& samples, UnitOps* ops) {
  EntryStats stats;
  stats.AppendMany(num);
  EXPECT_TRUE(ObserveQueries(FrontOf(unit), first, samples, ops, &stats).ok());
  return stats.Freeze(0, num);
}

UnitEvidence Observed(const CompactionUnit& unit, const QuerySamples& samples, UnitOps* ops) {
  return ObservedRange(unit, 0, CountEntries(unit.front()), samples, ops);
}

void ExpectSame(const UnitEvidence& actual, const UnitEvidence& expected) {
  EXPECT_EQ(actual.steps, expected.steps);
  EXPECT_EQ(actual.idle_steps, expected.idle_steps);
  for (int32_t e = 0; e < expected.size(); ++e) {
    ASSERT_NEAR(actual.mean[e], expected.mean[e], 1e-5f * expected.mean[e] + 1e-12f) << e;
    // Kept with 8 significant bits.
    ASSERT_NEAR(actual.window_max[e], expected.window_max[e], 0.01f * expected.window_max[e]) << e;
  }
}

TEST(QueryEvidenceTest, IsWhatEachQuerySawAlone) {
  ReferenceBackend backend;
  CompactionUnit unit(&backend, {.num_entries = 150});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  const QuerySamples samples = unit.Evidence(20, 5);
  ExpectSame(Observed(unit, samples, &ops), Naive(unit, samples, &ops));
}

TEST(QueryEvidenceTest, OfARangeIsThatPartOfTheWhole) {
  FaultBackend backend(std::make_unique<ReferenceBackend>());
  const CompactionUnit unit(&backend, {.num_entries = 150});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  const QuerySamples samples = unit.Evidence(20, 5);
  const EntryStats whole = NaiveStats(unit, samples, &ops);
  for (const auto& [first, num] : {std::pair{0, 32}, {64, 50}, {118, 32}, {149, 1}, {150, 0}}) {
    SCOPED_TRACE(first);
    ExpectSame(ObservedRange(unit, first, num, samples, &ops), whole.Freeze(first, num));
  }
  // Queries that were never shown the range are not asked: the last 20 of 40 fill two passes.
  const int64_t before = backend.num_worker_ops();
  ObservedRange(unit, 149, 1, samples, &ops);
  EXPECT_EQ(backend.num_worker_ops() - before, 2);
}

TEST(QueryEvidenceTest, QueriesThatSawNothingOrTooMuchAreTakenForWhatTheyAre) {
  ReferenceBackend backend;
  CompactionUnit unit(&backend, {.num_entries = 70});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  QuerySamples samples = unit.Evidence(3, 5);
  samples.visible = {0, 0, 1, 31, 70, 70};
  const UnitEvidence expected = Naive(unit, samples, &ops);
  samples.visible = {-3, 0, 1, 31, 70, 5000};
  ExpectSame(Observed(unit, samples, &ops), expected);
  EXPECT_EQ(expected.steps[0], 4);
  EXPECT_EQ(expected.steps[69], 2);
}

TEST(QueryEvidenceTest, AQueryThatWouldGiveAllToItsFutureIsAskedAlone) {
  FaultBackend backend(std::make_unique<ReferenceBackend>());
  CompactionUnit unit(&backend, {.num_entries = 96, .has_rope = false});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  QuerySamples samples = unit.Evidence(2, 5);
  samples.visible = {40, 96, 96, 96};
  // The first query points along the key of entry 90, as far as that takes.
  UnitRange range;
  ASSERT_TRUE(ops.Read(unit.front(), true, &range).ok());
  for (int32_t i = 0; i < 3 * 64; ++i) samples.q[i] = 40.0f * range.keys[90 * 64 + i % 64];
  const UnitEvidence expected = Naive(unit, samples, &ops);
  const int64_t before = backend.num_worker_ops();
  ExpectSame(Observed(unit, samples, &ops), expected);
  EXPECT_EQ(backend.num_worker_ops() - before, 2);
}

TEST(QueryEvidenceTest, ReturnsTheBackendsFailure) {
  FaultBackend backend(std::make_unique<ReferenceBackend>());
  CompactionUnit unit(&backend, {.num_entries = 64});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  EntryStats stats;
  stats.AppendMany(64);
  backend.FailWorkerOp(0);
  EXPECT_EQ(ObserveQueries(FrontOf(unit), 0, unit.Evidence(4, 5), &ops, &stats).code(),
            absl::StatusCode::kInternal);
}

TEST(QueryEvidenceTest, CountsQueriesThatSawTheWholeList) {
  QuerySamples samples;
  samples.visible = {3, 7, 8, 8, 9};
  EXPECT_EQ(CountWhole(samples, 8), 3);
}

}  // namespace
}  // namespace condense
