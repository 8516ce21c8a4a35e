// One compaction job from its blocks to its verdict: microseconds per entry of the range and phase,
// by number of entries and by what is done to them.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
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
};

// Counters are microseconds per entry of the range.
void RunJobs(benchmark::State& state, const Recipe& recipe, int32_t num_entries, bool again) {
  BackendOptions options;
  options.num_threads = 1;
  const std::unique_ptr<Backend> backend = *MakeBackend(options);
  CompactionUnit unit(backend.get(), {.num_entries = num_entries});
  const auto policy = *MakePolicy(recipe.policy);
  CompactionRunner runner(backend.get(), unit.model());
  CompactionJob job = unit.Job(policy.get(), recipe.format, recipe.flags, recipe.ratio);
  if (again) {
    unit.Swap(job, runner.Run(job));
    job = unit.Job(policy.get(), recipe.format, recipe.flags, 2 * recipe.ratio);
  }
  job.evidence = unit.Evidence(24, 1);
  double read = 0, evidence = 0, plan = 0, build = 0, validate = 0;
  CompactionResult result;
  for (auto _ : state) {
    result = runner.Run(job);
    CHECK(result.outcome == SwapOutcome::kAccepted);
    read += result.read_seconds;
    evidence += result.evidence_seconds;
    plan += result.plan_seconds;
    build += result.build_seconds;
    validate += result.validate_seconds;
  }
  const double per_entry = 1e6 / (static_cast<double>(state.iterations()) * result.entries_before);
  state.counters["read"] = read * per_entry;
  state.counters["evidence"] = evidence * per_entry;
  state.counters["plan"] = plan * per_entry;
  state.counters["build"] = build * per_entry;
  state.counters["validate"] = validate * per_entry;
  state.counters["all"] = (read + evidence + plan + build + validate) * per_entry;
  state.counters["left"] = result.entries_after;
}

void Register() {
  constexpr KvBlockFlags kMerged = kMergedFlags | kKvCentred;
  const Recipe recipes[] = {
      {"lossless", "none", KvFormat::kK8V8, kKvRun, 0},
      {"light", "none", KvFormat::kK6V4, kKvRun, 0},
      {"balanced", "balanced", KvFormat::kK4V4, kMerged, 4.35},
      {"aggressive", "balanced", KvFormat::kK4V3, kMerged, 8.0},
  };
  for (const Recipe& recipe : recipes) {
    for (const int32_t num_entries : {1000, 6000, 30000}) {
      const std::string name = recipe.name + "/" + std::to_string(num_entries);
      benchmark::RegisterBenchmark(name.c_str(), RunJobs, recipe, num_entries, false)
          ->Unit(benchmark::kMillisecond);
    }
  }
  benchmark::RegisterBenchmark("balanced_again/6000", RunJobs, recipes[2], 6000, true)
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  condense::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
