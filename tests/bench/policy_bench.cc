// Policies: microseconds per entry and cycle for one unit, by policy, number of entries and ratio
// of bytes.

#include <benchmark/benchmark.h>

#include <string>

#include "cache/policies/registry.h"
#include "tests/support/unit_fixture.h"

namespace condense {
namespace {

constexpr int32_t kHeadDim = 64;

void RunPolicy(benchmark::State& state, const PolicyInfo& info, int32_t num_entries, double ratio) {
  const UnitFixture unit = MakeUnit(num_entries, kHeadDim, 1);
  const auto policy = info.make();
  PolicyParams params{.formats = UsualFormats(kHeadDim)};
  params.target_bytes = num_entries * params.formats.front().plain_bytes / ratio;
  size_t num_left = 0;
  for (auto _ : state) {
    const MergePlan plan = policy->Plan(unit.View(), params);
    num_left = plan.groups.size();
    benchmark::DoNotOptimize(num_left);
  }
  state.counters["left"] = static_cast<double>(num_left);
  state.counters["seconds_per_entry"] = benchmark::Counter(
      num_entries, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

void RunObserve(benchmark::State& state, int32_t num_entries) {
  EntryStats stats;
  stats.AppendMany(num_entries);
  const UnitFixture unit = MakeUnit(num_entries, kHeadDim, 1);
  for (auto _ : state) stats.Observe(unit.evidence.mean);
  state.counters["seconds_per_entry"] = benchmark::Counter(
      num_entries, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// What a snapshot and a swap cost the engine thread per unit.
void RunFreeze(benchmark::State& state, int32_t num_entries) {
  EntryStats stats;
  stats.AppendMany(num_entries);
  for (auto _ : state) {
    const UnitEvidence evidence = stats.Freeze(0, num_entries);
    benchmark::DoNotOptimize(evidence.mean.data());
  }
}

void RunCarryOver(benchmark::State& state, int32_t num_entries) {
  const UnitFixture unit = MakeUnit(num_entries, kHeadDim, 1);
  const PolicyParams params;
  const MergePlan plan = (*MakePolicy("similarity"))->Plan(unit.View(), params);
  EntryStats before;
  before.AppendMany(num_entries);
  before.Observe(unit.evidence.mean);
  for (auto _ : state) {
    EntryStats stats = before;
    stats.CarryOver(plan, 0);
    benchmark::DoNotOptimize(stats.size());
  }
}

void RegisterAll() {
  for (const int32_t num_entries : {1024, 8192}) {
    benchmark::RegisterBenchmark(("observe/" + std::to_string(num_entries)).c_str(), RunObserve,
                                 num_entries);
    benchmark::RegisterBenchmark(("freeze/" + std::to_string(num_entries)).c_str(), RunFreeze,
                                 num_entries);
    benchmark::RegisterBenchmark(("carry_over/" + std::to_string(num_entries)).c_str(),
                                 RunCarryOver, num_entries);
    for (const PolicyInfo& info : RegisteredPolicies()) {
      for (const int ratio : {4, 6, 12}) {
        const std::string name = std::string(info.name) + "/" + std::to_string(num_entries) + "/" +
                                 std::to_string(ratio) + "x";
        benchmark::RegisterBenchmark(name.c_str(), RunPolicy, info, num_entries, ratio)
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  condense::RegisterAll();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
