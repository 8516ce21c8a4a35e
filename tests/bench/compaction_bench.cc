// One compaction job from its blocks to its verdict, as the server asks for it: microseconds per
// entry of the range and phase, by number of entries and by what is done to them.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <limits>
#include <memory>
#include <numeric>
#include <string>

#include "cache/compaction_runner.h"
#include "cache/policies/registry.h"
#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "tests/support/compaction_unit.h"

namespace condense {
namespace {

struct Recipe {
  std::string name;
  std::string policy;
  KvFormat format;
  KvBlockFlags flags;
  double ratio;
  float shared_cosine;  // as a budget would have it
};

struct Extent {
  int32_t num_entries;
  int32_t num_range;  // the last ones
  bool again = false;
};

// The last entries of the front alone, none of them in the window of newest tokens.
void Narrow(int32_t num_range, const CompactionUnit& unit, const Recipe& recipe,
            CompactionJob* job) {
  const KvBlockShape& shape = unit.model().shape;
  const auto num_front = static_cast<int32_t>(job->front.size());
  job->num_blocks = num_range / shape.block_tokens;
  job->first_block = num_front - job->num_blocks;
  job->destinations.resize(job->num_blocks);
  job->params.target_bytes = 4.0 * shape.head_dim * num_range / recipe.ratio;
  job->protection.end_position += job->protection.window_tokens;
}

// Counters are microseconds per entry of the range: of each phase the least over all iterations,
// because others use the machine too.
void RunJobs(benchmark::State& state, const Recipe& recipe, const Extent& extent) {
  BackendOptions options;
  options.num_threads = 1;
  const std::unique_ptr<Backend> backend = *MakeBackend(options);
  CompactionUnit unit(backend.get(), {.num_entries = extent.num_entries});
  const auto policy = *MakePolicy(recipe.policy);
  CompactionRunner runner(backend.get(), unit.model());
  CompactionJob job = unit.Job(policy.get(), recipe.format, recipe.flags, recipe.ratio);
  job.params.shared_cosine = recipe.shared_cosine;
  if (extent.again) {
    unit.Swap(job, runner.Run(job));
    job = unit.Job(policy.get(), recipe.format, recipe.flags, 2 * recipe.ratio);
    job.params.shared_cosine = recipe.shared_cosine;
  }
  job.evidence = unit.Evidence(24, 1);
  if (extent.num_range < extent.num_entries) Narrow(extent.num_range, unit, recipe, &job);
  constexpr double CompactionResult::*kPhases[] = {
      &CompactionResult::read_seconds, &CompactionResult::evidence_seconds,
      &CompactionResult::plan_seconds, &CompactionResult::build_seconds,
      &CompactionResult::validate_seconds};
  constexpr const char* kNames[] = {"read", "evidence", "plan", "build", "validate"};
  double least[std::size(kPhases)];
  std::fill(std::begin(least), std::end(least), std::numeric_limits<double>::max());
  CompactionResult result;
  for (auto _ : state) {
    result = runner.Run(job);
    CHECK(result.outcome == SwapOutcome::kAccepted);
    for (size_t i = 0; i < std::size(kPhases); ++i) {
      least[i] = std::min(least[i], result.*kPhases[i]);
    }
  }
  const double per_entry = 1e6 / result.entries_before;
  for (size_t i = 0; i < std::size(kPhases); ++i) {
    state.counters[kNames[i]] = least[i] * per_entry;
  }
  state.counters["all"] = std::accumulate(std::begin(least), std::end(least), 0.0) * per_entry;
  state.counters["left"] = result.entries_after;
}

void Register(const std::string& name, const Recipe& recipe, const Extent& extent) {
  benchmark::RegisterBenchmark(name.c_str(), RunJobs, recipe, extent)
      ->Unit(benchmark::kMicrosecond);
}

void RegisterAll() {
  constexpr KvBlockFlags kMerged = kMergedFlags | kKvCentred;
  const Recipe recipes[] = {
      {"lossless", "none", KvFormat::kK8V8, kKvRun, 0, 0},
      {"light", "none", KvFormat::kK6V4, kKvRun, 0, 0},
      {"balanced", "balanced", KvFormat::kK4V4, kMerged, 4.35, 0.9f},
      {"aggressive", "balanced", KvFormat::kK4V3, kMerged, 8.0, 0.87f},
  };
  for (const Recipe& recipe : recipes) {
    for (const int32_t n : {1000, 6000, 30000}) {
      Register(recipe.name + "/" + std::to_string(n), recipe, {n, n});
    }
  }
  Register("balanced_again/6000", recipes[2], {6000, 6000, true});
  Register("balanced/64_of_2048", recipes[2], {2048, 64});
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  condense::RegisterAll();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
