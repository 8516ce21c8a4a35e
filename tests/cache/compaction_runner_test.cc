#include "cache/compaction_runner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>

#include "cache/policies/policies.h"
#include "cache/policies/registry.h"
#include "cache/unit_ops.h"
#include "tests/support/compaction_unit.h"
#include "tests/support/fault_backend.h"
#include "tests/support/reference_backend.h"
#include "tests/support/reference_kv.h"

namespace condense {
namespace {

using testing::AllOf;
using testing::Each;
using testing::Ge;
using testing::HasSubstr;
using testing::Le;

constexpr KvBlockFlags kNarrowMerged = kMergedFlags | kKvCentred;

// Contents of a unit's list.
UnitRange ReadFront(Backend* backend, const CompactionUnit& unit) {
  UnitRange range;
  UnitOps ops(backend, &unit.model(), 1, 1);
  EXPECT_TRUE(ops.Read(unit.front(), true, &range).ok());
  return range;
}

QueryFindings Find(Backend* backend, const CompactionUnit& unit, const QuerySamples& queries) {
  std::vector<KvBlockRef> blocks;
  for (const KvBuildSource& source : unit.front()) blocks.push_back(source.block);
  UnitOps ops(backend, &unit.model(), 1, 1);
  QueryFindings findings;
  EXPECT_TRUE(
      ops.Evaluate(blocks, queries.q.data(), queries.size(), UnitOps::kOutAndMasses, &findings)
          .ok());
  return findings;
}

std::unique_ptr<Backend> MakeCpu() {
  BackendOptions options;
  options.kind = "cpu";
  options.num_threads = 1;
  return *MakeBackend(options);
}

// Both backends: their memory is the host's.
class CompactionRunnerTest : public testing::TestWithParam<std::string> {
 protected:
  Backend* backend() { return backend_.get(); }
  CompactionResult Run(const CompactionUnit& unit, const CompactionJob& job) {
    return CompactionRunner(backend(), unit.model()).Run(job);
  }

 private:
  std::unique_ptr<Backend> backend_ =
      GetParam() == "cpu" ? MakeCpu() : std::make_unique<ReferenceBackend>();
};

TEST_P(CompactionRunnerTest, AChangeOfFormatAloneIsAcceptedWithTinyError) {
  CompactionUnit unit(backend(), {.num_entries = 200});
  const auto policy = MakeNonePolicy();
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK8V8, kKvRun | kKvCentred, 0);
  job.limits = {0.02, 0.02};
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_EQ(result.ticket, 42);
  EXPECT_EQ(result.entries_before, 200);
  EXPECT_EQ(result.entries_after, 200);
  EXPECT_EQ(result.held_out_queries, 8);
  EXPECT_EQ(result.cosine, 0.0f);
  EXPECT_THAT(result.marked, testing::IsEmpty());
  ASSERT_EQ(result.blocks.size(), 7u);
  EXPECT_EQ(result.blocks.back().count, 8);
  EXPECT_EQ(result.blocks.front().offset_64, job.destinations.front().offset_64);
  EXPECT_GT(result.quality.output_error, 0.0);
  EXPECT_LT(result.quality.output_error, 0.01);
  EXPECT_LT(result.quality.log_mass_error, 0.01);
  EXPECT_GT(result.quality.hit_ratio, 0.99);
}

TEST_P(CompactionRunnerTest, DuplicatesMergeWithoutAnyOtherError) {
  CompactionUnit unit(backend(), {.num_entries = 256, .copies = 4, .has_rope = false});
  const auto policy = MakeSimilarityPolicy(GroupKind::kPivot);
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK16V16, kMergedFlags, 0);
  job.params.cosine = 0.9999f;
  job.params.min_tokens = 0;
  job.params.max_members = 4;
  job.protection = {.num_sinks = 0, .window_tokens = 0, .grace_tokens = 0, .end_position = 256};
  // Queries that saw but one of four copies would make it weigh more than the others.
  job.evidence.visible.assign(job.evidence.size(), 256);
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_EQ(result.entries_after, 64);
  EXPECT_EQ(result.cosine, 0.9999f);
  // Biases are rounded to f16, averaged values too.
  EXPECT_LT(result.quality.output_error, 1e-3);
  EXPECT_LT(result.quality.log_mass_error, 1e-3);
  EXPECT_GT(result.quality.hit_ratio, 0.999);
}

TEST_P(CompactionRunnerTest, EveryPolicyRunsThrough) {
  for (const PolicyInfo& info : RegisteredPolicies()) {
    SCOPED_TRACE(std::string(info.name));
    CompactionUnit unit(backend(), {.num_entries = 160});
    const auto policy = info.make();
    CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
    job.params.min_tokens = 0;
    job.protection.window_tokens = 16;
    const CompactionResult result = Run(unit, job);
    ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
    if (info.name == "none") {
      EXPECT_EQ(result.entries_after, 160);
      EXPECT_EQ(result.shortfall, Shortfall::kKeepsAll);
    } else {
      EXPECT_LT(result.entries_after, 160);
    }
    EXPECT_GT(result.quality.hit_ratio, 0.0);
    EXPECT_LE(result.quality.hit_ratio, 1.0);
    unit.Swap(job, result);
    const UnitRange range = ReadFront(backend(), unit);
    ASSERT_EQ(static_cast<int32_t>(range.positions.size()), result.entries_after);
    int32_t tokens = 0;
    for (size_t e = 0; e < range.counts.size(); ++e) {
      tokens += range.counts[e];
      const bool is_protected = job.protection.Covers(range.positions[e]);
      EXPECT_TRUE(!is_protected || range.counts[e] == 1) << e;
      EXPECT_TRUE(e == 0 || range.positions[e - 1] <= range.positions[e]) << e;
    }
    const bool drops = info.name == "window" || info.name == "random";
    EXPECT_EQ(tokens, drops ? result.entries_after : 160);
  }
}

// A range of blocks of a front of 200 entries, judged by the whole front and the whole back.
void ExpectQualityOfTheReference(Backend* backend, int32_t first_block, int32_t num_blocks) {
  SCOPED_TRACE(testing::Message() << num_blocks << " blocks from " << first_block);
  ReferenceBackend reference;
  CompactionUnit unit(backend, {.num_entries = 200});
  const auto policy = MakeBalancedPolicy();
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V4, kNarrowMerged, 5.0);
  job.first_block = first_block;
  job.num_blocks = num_blocks;
  job.params.min_tokens = 0;
  job.params.shared_cosine = 0.85f;
  job.params.target_bytes = 1;
  job.held_out = unit.HeldOut(19, 2);  // more than are asked at once
  const QueryFindings before = Find(&reference, unit, job.held_out);
  const CompactionResult result = CompactionRunner(backend, unit.model()).Run(job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  ASSERT_LT(result.entries_after, result.entries_before);
  unit.Swap(job, result);
  const QueryFindings after = Find(&reference, unit, job.held_out);
  double output = 0.0, log_mass = 0.0;
  for (int32_t row = 0; row < before.num_rows(); ++row) {
    double error = 0.0, norm = 0.0;
    for (int32_t d = 0; d < 64; ++d) {
      error += std::pow(double{after.out_of(row)[d]} - before.out_of(row)[d], 2);
      norm += std::pow(double{before.out_of(row)[d]}, 2);
    }
    output += std::sqrt(error / norm) / before.num_rows();
    log_mass +=
        std::abs(double{after.log_sum_exp[row]} - before.log_sum_exp[row]) / before.num_rows();
  }
  EXPECT_NEAR(result.quality.output_error, output, 1e-5 + 1e-4 * output);
  EXPECT_NEAR(result.quality.log_mass_error, log_mass, 1e-5 + 1e-4 * log_mass);
}

TEST_P(CompactionRunnerTest, QualityIsWhatTheReferenceFinds) {
  ExpectQualityOfTheReference(backend(), 0, 7);
  ExpectQualityOfTheReference(backend(), 0, 2);
  ExpectQualityOfTheReference(backend(), 1, 3);
  ExpectQualityOfTheReference(backend(), 3, 2);
}

TEST_P(CompactionRunnerTest, LimitsOfZeroRefuse) {
  CompactionUnit unit(backend(), {.num_entries = 200});
  const auto policy = MakeNonePolicy();
  for (const SwapLimits limits : {SwapLimits{0.0, 1e9}, SwapLimits{1e9, 0.0}}) {
    CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V4, kKvRun, 0);
    job.limits = limits;
    const CompactionResult result = Run(unit, job);
    EXPECT_EQ(result.outcome, SwapOutcome::kRefused) << result.status;
    EXPECT_TRUE(result.blocks.empty());
    EXPECT_GT(result.quality.output_error, 0.0);
  }
}

TEST_P(CompactionRunnerTest, ARangeInTheMiddleLeavesItsNeighboursAlone) {
  CompactionUnit unit(backend(), {.num_entries = 330});
  const auto policy = MakeSimilarityPolicy(GroupKind::kAverage);
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK6V4, kNarrowMerged, 0);
  job.first_block = 2;
  job.num_blocks = 5;
  job.params.min_tokens = 0;
  job.params.cosine = 0.85f;
  const UnitRange before = ReadFront(backend(), unit);
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_EQ(result.entries_before, 160);
  EXPECT_LT(result.entries_after, 160);
  unit.Swap(job, result);
  const UnitRange after = ReadFront(backend(), unit);
  ASSERT_EQ(static_cast<int32_t>(after.positions.size()), 330 - 160 + result.entries_after);
  EXPECT_TRUE(std::equal(before.keys.begin(), before.keys.begin() + 64 * 64, after.keys.begin()));
  EXPECT_TRUE(
      std::equal(before.keys.end() - 106 * 64, before.keys.end(), after.keys.end() - 106 * 64));
  EXPECT_THAT(std::vector<int32_t>(after.positions.begin() + 64, after.positions.end() - 106),
              Each(AllOf(Ge(64), Le(223))));
}

// Keys and values of each entry as numbers, by position; and as they are stored.
struct Decoded {
  UnitRange range;
  std::vector<float> values;
  std::vector<StoredEntry> stored;
};
Decoded Decode(Backend* backend, const CompactionUnit& unit) {
  Decoded decoded{.range = ReadFront(backend, unit)};
  decoded.values.resize(decoded.range.keys.size());
  KvReadArgs args;
  args.arena = unit.model().arena;
  args.shape = unit.model().shape;
  args.sources = unit.front().data();
  args.num_sources = static_cast<int32_t>(unit.front().size());
  args.key_mean = unit.model().key_mean[1] + 64;
  args.positions = unit.model().positions[1];
  args.values = decoded.values.data();
  EXPECT_TRUE(backend->KvRead(args).ok());
  const std::vector<std::byte> image = unit.Image();
  for (const KvBuildSource& source : unit.front()) {
    for (int32_t slot = 0; slot < source.block.count; ++slot) {
      decoded.stored.push_back(
          ReadStoredEntry(image.data(), source.block, unit.model().shape, slot));
    }
  }
  return decoded;
}

TEST_P(CompactionRunnerTest, SurvivorsOfASecondCompactionAreBitExact) {
  CompactionUnit unit(backend(), {.num_entries = 400});
  const auto policy = MakeBalancedPolicy();
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V3, kNarrowMerged, 5.0);
  job.params.min_tokens = 0;
  job.params.balanced_cosine = 0.8f;
  unit.Swap(job, Run(unit, job));
  const Decoded once = Decode(backend(), unit);
  job = unit.Job(policy.get(), KvFormat::kK4V3, kNarrowMerged, 7.0);
  job.params.min_tokens = 0;
  job.params.balanced_cosine = 0.8f;
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  ASSERT_LT(result.entries_after, result.entries_before);
  unit.Swap(job, result);
  const Decoded twice = Decode(backend(), unit);
  int survivors = 0;
  size_t from = 0;
  for (size_t e = 0; e < twice.range.positions.size(); ++e) {
    while (once.range.positions[from] != twice.range.positions[e]) ++from;
    // Pivots keep their keys whatever joins them.
    EXPECT_EQ(std::memcmp(&once.range.keys[from * 64], &twice.range.keys[e * 64], 256), 0) << e;
    EXPECT_EQ(once.stored[from].key, twice.stored[e].key) << e;
    EXPECT_EQ(once.stored[from].key_scale, twice.stored[e].key_scale) << e;
    if (once.range.counts[from] != twice.range.counts[e]) continue;
    ++survivors;
    EXPECT_TRUE(once.stored[from] == twice.stored[e]) << e;
    EXPECT_EQ(once.range.biases[from], twice.range.biases[e]);
    EXPECT_EQ(std::memcmp(&once.values[from * 64], &twice.values[e * 64], 256), 0) << e;
  }
  EXPECT_GT(survivors, 80);
}

TEST_P(CompactionRunnerTest, NothingButTheUsedDestinationsIsWrittenAndNoPoisonIsRead) {
  CompactionUnit unit(backend(), {.num_entries = 300});
  const auto policy = MakeBalancedPolicy();
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V4, kNarrowMerged, 5.5);
  job.params.min_tokens = 0;
  const std::vector<std::byte> before = unit.Image();
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  ASSERT_NE(result.blocks.back().count, 32);
  std::vector<std::byte> after = unit.Image();
  const int64_t bytes = KvBlockBytes(KvFormat::kK4V4, {64, 32}, kNarrowMerged);
  for (const KvBlockRef& block : result.blocks) {
    const int64_t begin = int64_t{block.offset_64} * 64;
    EXPECT_NE(std::memcmp(&after[begin], &before[begin], bytes), 0);
    std::copy_n(before.begin() + begin, bytes, after.begin() + begin);
  }
  EXPECT_TRUE(before == after);
  EXPECT_TRUE(std::isfinite(result.quality.output_error));
  unit.Swap(job, result);
  const QueryFindings findings = Find(backend(), unit, unit.HeldOut(16, 9));
  EXPECT_TRUE(std::all_of(findings.out.begin(), findings.out.end(),
                          [](float x) { return std::isfinite(x); }));
}

TEST_P(CompactionRunnerTest, NumbersThatAreNotFiniteAreRefused) {
  CompactionUnit unit(backend(), {.num_entries = 200});
  const auto policy = MakeBalancedPolicy();
  CompactionJob job = unit.Job(policy.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
  job.params.min_tokens = 0;
  job.held_out.q[100] = std::numeric_limits<float>::quiet_NaN();
  CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kRefused) << result.status;
  EXPECT_FALSE(std::isnan(result.quality.output_error));

  // A value of the range itself; evidence that is not a number as well.
  job = unit.Job(policy.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
  job.params.min_tokens = 0;
  std::fill(job.evidence.q.begin(), job.evidence.q.end(), std::numeric_limits<float>::quiet_NaN());
  std::byte* first_value = unit.model().arena + KvValuesOffset(KvFormat::kK16V16, {64, 32});
  std::fill_n(first_value, 2, CompactionUnit::kPoison);
  result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kRefused) << result.status;
}

INSTANTIATE_TEST_SUITE_P(Backends, CompactionRunnerTest, testing::Values("reference", "cpu"),
                         [](const auto& info) { return info.param; });

class CompactionJobTest : public testing::Test {
 protected:
  CompactionResult Run(const CompactionUnit& unit, const CompactionJob& job) {
    return CompactionRunner(&backend_, unit.model()).Run(job);
  }
  CompactionUnit MakeUnit(int32_t num_entries) {
    return CompactionUnit(&backend_, {.num_entries = num_entries});
  }

  FaultBackend backend_{MakeCpu()};
  std::unique_ptr<const Policy> balanced_ = MakeBalancedPolicy();
  std::unique_ptr<const Policy> none_ = MakeNonePolicy();
};

TEST_F(CompactionJobTest, FailureOfAnyBackendCallFailsTheJobAndNothingElse) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = unit.Job(balanced_.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
  job.params.min_tokens = 0;
  const CompactionResult good = Run(unit, job);
  ASSERT_EQ(good.outcome, SwapOutcome::kAccepted) << good.status;
  const int64_t calls = backend_.num_worker_ops();
  // Read, two portions of evidence, build, front and back.
  EXPECT_EQ(calls, 6);
  const int64_t source_bytes = 10 * KvBlockBytes(KvFormat::kK16V16, {64, 32});
  const std::vector<std::byte> before = unit.Image();
  for (int64_t call = 0; call < calls; ++call) {
    backend_.FailWorkerOp(backend_.num_worker_ops() + call);
    const CompactionResult result = Run(unit, job);
    EXPECT_EQ(result.outcome, SwapOutcome::kFailed) << call;
    EXPECT_EQ(result.ticket, 42);
    EXPECT_TRUE(result.blocks.empty() && result.marked.empty());
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("injected failure"));
    const std::vector<std::byte> after = unit.Image();
    EXPECT_TRUE(std::equal(before.begin(), before.begin() + source_bytes, after.begin()));
  }
  backend_.FailWorkerOp(-1);
  const CompactionResult again = Run(unit, job);
  EXPECT_EQ(again.outcome, SwapOutcome::kAccepted);
  EXPECT_EQ(again.entries_after, good.entries_after);
  EXPECT_EQ(again.quality.output_error, good.quality.output_error);
  EXPECT_TRUE(unit.Image() == before);
}

TEST_F(CompactionJobTest, ABackThatIsNotSmallerIsUselessAndNotBuilt) {
  CompactionUnit unit = MakeUnit(96);
  const std::vector<std::byte> before = unit.Image();
  for (const KvBlockFlags flags : {KvBlockFlags{0}, kMergedFlags}) {
    const CompactionResult result = Run(unit, unit.Job(none_.get(), KvFormat::kK16V16, flags, 0));
    EXPECT_EQ(result.outcome, SwapOutcome::kUseless) << result.status;
    EXPECT_TRUE(result.status.ok());
    EXPECT_TRUE(result.blocks.empty());
  }
  CompactionJob nothing = unit.Job(none_.get(), KvFormat::kK8V8, 0, 0);
  nothing.num_blocks = 0;
  EXPECT_EQ(Run(unit, nothing).outcome, SwapOutcome::kUseless);
  EXPECT_TRUE(unit.Image() == before);
}

TEST_F(CompactionJobTest, WithoutHeldOutQueriesOnlyTheFormatMayChange) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = unit.Job(balanced_.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
  job.held_out = {};
  job.limits = {0.0, 0.0};
  job.params.min_tokens = 0;
  EXPECT_EQ(Run(unit, job).outcome, SwapOutcome::kRefused);
  job.params.target_bytes = 0;
  const CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_EQ(result.entries_after, 300);
  EXPECT_EQ(result.held_out_queries, 0);
}

TEST_F(CompactionJobTest, WithoutEvidenceAllWeighTheSame) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = unit.Job(balanced_.get(), KvFormat::kK4V4, kNarrowMerged, 6.0);
  job.evidence = {};
  job.params.min_tokens = 0;
  const CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_LT(result.entries_after, 300);
}

TEST_F(CompactionJobTest, BlocksWithoutPositionsTakeNoMerges) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = unit.Job(balanced_.get(), KvFormat::kK4V4, kKvRun | kKvCentred, 6.0);
  job.params.min_tokens = 0;
  const CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kFailed);
  EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
}

TEST_F(CompactionJobTest, ABackOfNothingIsRefused) {
  CompactionUnit unit = MakeUnit(96);
  const auto window = MakeWindowPolicy();
  CompactionJob job = unit.Job(window.get(), KvFormat::kK4V4, kNarrowMerged, 1e9);
  job.params.min_tokens = 0;
  job.protection = {.num_sinks = 0, .window_tokens = 0, .grace_tokens = 0, .end_position = 96};
  const CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kRefused) << result.status;
  EXPECT_EQ(result.entries_after, 0);
  EXPECT_EQ(result.quality.hit_ratio, 0.0);
  // With neighbours there is something to judge.
  job.first_block = 1;
  job.num_blocks = 1;
  const CompactionResult part = Run(unit, job);
  EXPECT_EQ(part.outcome, SwapOutcome::kAccepted) << part.status;
  EXPECT_EQ(part.entries_after, 0);
  EXPECT_TRUE(part.blocks.empty());
  EXPECT_LT(part.quality.hit_ratio, 1.0);
}

// Plans whatever the test wants.
class GivenPolicy : public Policy {
 public:
  explicit GivenPolicy(std::function<void(MergePlan*)> change) : change_(std::move(change)) {}
  std::string_view name() const override { return "given"; }

 private:
  MergePlan Merge(const Task& task) const override {
    MergePlan plan = MergeBuilder(task.view->entries, task.masses, GroupKind::kPivot).Build();
    plan.shortfall = Shortfall::kKeepsAll;
    change_(&plan);
    return plan;
  }
  const std::function<void(MergePlan*)> change_;
};

TEST_F(CompactionJobTest, ABrokenPlanIsSurvived) {
  CompactionUnit unit = MakeUnit(96);
  const std::vector<std::byte> before = unit.Image();
  const std::function<void(MergePlan*)> breaks[] = {
      [](MergePlan* plan) { plan->members[3].entry = 4000; },
      [](MergePlan* plan) { plan->members[3].value_weight = 7; },
      [](MergePlan* plan) { plan->groups[3].position = -1; },
      [](MergePlan* plan) { plan->groups.pop_back(); },
      [](MergePlan* plan) { plan->groups[3].num_members = 1 << 30; },
  };
  for (const auto& change : breaks) {
    const GivenPolicy policy(change);
    CompactionJob job = unit.Job(&policy, KvFormat::kK8V8, kMergedFlags, 0);
    job.params.min_tokens = 0;
    const CompactionResult result = Run(unit, job);
    EXPECT_EQ(result.outcome, SwapOutcome::kFailed);
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(result.status.message()), HasSubstr("merge plan"));
  }
  EXPECT_TRUE(unit.Image() == before);
}

TEST_F(CompactionJobTest, ABrokenJobIsSurvived) {
  CompactionUnit unit = MakeUnit(96);
  const std::pair<const char*, std::function<void(CompactionJob*)>> breaks[] = {
      {"layer 2 of 2", [](CompactionJob* job) { job->layer = 2; }},
      {"head -1 of 2", [](CompactionJob* job) { job->kv_head = -1; }},
      {"blocks [1, 1 + 3) of 3", [](CompactionJob* job) { job->first_block = 1; }},
      {"blocks [-1", [](CompactionJob* job) { job->first_block = -1; }},
      {"2147483647", [](CompactionJob* job) { job->first_block = job->num_blocks = INT32_MAX; }},
      {"no policy", [](CompactionJob* job) { job->policy = nullptr; }},
      {"evidence queries", [](CompactionJob* job) { job->evidence.visible.pop_back(); }},
      {"held-out queries", [](CompactionJob* job) { job->held_out.q.push_back(0); }},
      {"3 marks for 96",
       [](CompactionJob* job) {
         job->marked = {1, 0, 0};
       }},
      {"no destinations", [](CompactionJob* job) { job->destinations.clear(); }},
      {"k16v16", [](CompactionJob* job) { job->destinations[1].format = KvFormat::kK16V16; }},
      {"flags", [](CompactionJob* job) { job->destinations[1].flags = 0; }},
      {"k4v4",
       [](CompactionJob* job) {
         job->params.formats[0].format = {4, 4};
       }},
      {"room for 32", [](CompactionJob* job) { job->destinations.resize(1); }},
      {"position", [](CompactionJob* job) { job->front[1].first_position = 0; }},
      {"position", [](CompactionJob* job) { job->front[2].first_position = 1 << 30; }},
      {"cannot be centred",
       [](CompactionJob* job) {
         for (KvBlockRef& block : job->destinations) block.flags = kKvCentred;
       }},
  };
  const CompactionJob good = unit.Job(none_.get(), KvFormat::kK8V8, kMergedFlags, 0);
  for (const auto& [what, change] : breaks) {
    CompactionJob job = good;
    change(&job);
    const CompactionResult result = Run(unit, job);
    EXPECT_EQ(result.outcome, SwapOutcome::kFailed) << what;
    EXPECT_EQ(result.status.code(), absl::StatusCode::kInternal) << what;
    EXPECT_THAT(std::string(result.status.message()), HasSubstr(what));
    EXPECT_EQ(result.ticket, 42);
  }
  CompactionModel model = unit.model();
  model.key_mean.assign(2, nullptr);
  const CompactionResult result =
      CompactionRunner(&backend_, model)
          .Run(unit.Job(none_.get(), KvFormat::kK8V8, kNarrowMerged, 0));
  EXPECT_THAT(std::string(result.status.message()), HasSubstr("no mean keys"));
}

// Marks that the attention policy hands from one job to the next.
class MarksTest : public CompactionJobTest {
 protected:
  CompactionJob SoftJob(CompactionUnit* unit) {
    CompactionJob job = unit->Job(attention_.get(), KvFormat::kK4V4, kNarrowMerged, 0);
    job.params.min_tokens = 0;
    job.params.fill = 0.8;
    return job;
  }
  std::unique_ptr<const Policy> attention_ = MakeAttentionPolicy();
};

TEST_F(MarksTest, AMarkOfOneJobLetsTheNextFold) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = SoftJob(&unit);
  const CompactionResult first = Run(unit, job);
  ASSERT_EQ(first.outcome, SwapOutcome::kAccepted) << first.status;
  EXPECT_EQ(first.entries_after, 300);
  ASSERT_EQ(first.marked.size(), 300u);
  const auto num_marked = std::count(first.marked.begin(), first.marked.end(), 1);
  EXPECT_EQ(num_marked, 24);  // a tenth of what is not protected
  unit.Swap(job, first);

  job = SoftJob(&unit);
  job.marked = first.marked;
  job.evidence.visible.assign(job.evidence.size(), 299);  // none that could lift a mark
  const CompactionResult second = Run(unit, job);
  ASSERT_EQ(second.outcome, SwapOutcome::kAccepted) << second.status;
  EXPECT_EQ(second.entries_after, 300 - num_marked);
  ASSERT_EQ(second.marked.size(), static_cast<size_t>(second.entries_after));
  EXPECT_GT(std::count(second.marked.begin(), second.marked.end(), 1), 0);
}

TEST_F(MarksTest, ARecentQueryThatAttendsLiftsTheMark) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = SoftJob(&unit);
  job.marked.assign(300, 0);
  job.marked[100] = job.marked[150] = 1;
  const UnitRange range = ReadFront(&backend_, unit);
  // The newest query looks at entry 100, an old one at 150.
  const size_t row = 3 * 64;
  for (size_t i = 0; i < row; ++i) {
    job.evidence.q[job.evidence.q.size() - row + i] = range.keys[100 * 64 + i % 64];
    job.evidence.q[15 * row + i] = range.keys[150 * 64 + i % 64];
  }
  // Else the other recent queries might look at 150.
  job.evidence.visible.assign(32, 299);
  job.evidence.visible.back() = 300;
  const CompactionResult result = Run(unit, job);
  ASSERT_EQ(result.outcome, SwapOutcome::kAccepted) << result.status;
  EXPECT_EQ(result.entries_after, 299);
  unit.Swap(job, result);
  const UnitRange after = ReadFront(&backend_, unit);
  EXPECT_EQ(std::count(after.positions.begin(), after.positions.end(), 100), 1);
  EXPECT_EQ(std::count(after.positions.begin(), after.positions.end(), 150), 0);
}

TEST_F(MarksTest, MarksOutliveAJobThatSavesNothing) {
  CompactionUnit unit = MakeUnit(300);
  CompactionJob job = SoftJob(&unit);
  unit.Swap(job, Run(unit, job));
  job = SoftJob(&unit);
  const CompactionResult result = Run(unit, job);
  EXPECT_EQ(result.outcome, SwapOutcome::kUseless) << result.status;
  EXPECT_EQ(result.marked.size(), 300u);
}

}  // namespace
}  // namespace condense
