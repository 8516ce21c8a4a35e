// The ops of the compaction worker on one unit: time per entry that is read or built, and per query
// and entry that is evaluated.

#include <benchmark/benchmark.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu/cpu_features.h"
#include "tests/support/kv_lists.h"

namespace condense {
namespace {

constexpr int kHeadDim = 64;
constexpr int kEntries = 2048;
constexpr int kGroup = 3;
constexpr KvBlockFlags kMerged = kKvBias | kKvPosition | kKvCount | kKvCentred;

// A unit of kEntries entries of one kind, and room for what is built from it.
class Unit {
 public:
  Unit(const std::string& isa, const KvBlockKind& kind)
      : lists_({kHeadDim, 32}, 1, {{BlockCounts(kEntries, 32), 1, {kind}}}, 1),
        angles_(int64_t{8192} * kHeadDim, 0.7f) {
    BackendOptions options;
    options.num_threads = 1;
    options.cpu_isa = isa;
    backend_ = *MakeBackend(options);
    const int64_t used = static_cast<int64_t>(lists_.image().size());
    arena_ = *backend_->Allocate(2 * used + (kEntries << 9));
    backend_->CopyToDevice(arena_.data(), lists_.image().data(), used);
    built_offset_ = used;
    for (int b = 0; b < list().num_blocks; ++b) sources_.push_back({list().blocks[b], 32 * b});
  }

  const KvList& list() const { return lists_.sequence(0).lists[0]; }
  const KvBlockShape& shape() const { return lists_.shape(); }
  Backend* backend() { return backend_.get(); }
  std::byte* arena() { return arena_.data(); }
  int64_t built_offset() const { return built_offset_; }
  const std::vector<KvBuildSource>& sources() const { return sources_; }
  const float* mean() const { return angles_.data(); }
  PositionTable positions() const {
    return {angles_.data(), angles_.data() + angles_.size() / 2, 8192, RopePairing::kHalfSplit};
  }

 private:
  KvLists lists_;
  std::vector<float> angles_;
  std::unique_ptr<Backend> backend_;
  Buffer arena_;
  int64_t built_offset_ = 0;
  std::vector<KvBuildSource> sources_;
};

void Report(benchmark::State& state, int64_t entries) {
  state.counters["time/entry"] =
      benchmark::Counter(static_cast<double>(entries) * static_cast<double>(state.iterations()),
                         benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

void RunRead(benchmark::State& state, const std::string& isa, const KvBlockKind& kind) {
  Unit unit(isa, kind);
  std::vector<float> keys(kEntries * kHeadDim), values(kEntries * kHeadDim), biases(kEntries);
  std::vector<int32_t> positions(kEntries), counts(kEntries);
  KvReadArgs args;
  args.arena = unit.arena();
  args.shape = unit.shape();
  args.sources = unit.sources().data();
  args.num_sources = static_cast<int32_t>(unit.sources().size());
  args.key_mean = unit.mean();
  args.positions = unit.positions();
  args.keys = keys.data();
  args.values = values.data();
  args.positions_out = positions.data();
  args.biases = biases.data();
  args.counts = counts.data();
  for (auto _ : state) CHECK(unit.backend()->KvRead(args).ok());
  Report(state, kEntries);
}

// Every `merged` entries become one.
void RunBuild(benchmark::State& state, const std::string& isa, const KvBlockKind& from,
              const KvBlockKind& to, int merged) {
  Unit unit(isa, from);
  std::vector<KvBuildMember> members;
  std::vector<KvBuildEntry> entries;
  for (int e = 0; e < kEntries; ++e) {
    const bool pivot = e % merged == 0;
    if (pivot) {
      entries.push_back(
          {e, merged, static_cast<float>(e), (to.flags & kKvBias) != 0 ? 0.5f : 0.0f, merged});
    }
    members.push_back({e, pivot ? 1.0f : 0.0f, 1.0f / static_cast<float>(merged)});
  }
  std::vector<KvBlockRef> blocks;
  int64_t offset = unit.built_offset();
  for (int left = static_cast<int>(entries.size()); left > 0; left -= 32) {
    blocks.push_back({static_cast<uint32_t>(offset / 64), to.format, to.flags, 32});
    offset += KvBlockBytes(to.format, unit.shape(), to.flags);
  }
  KvBuildArgs args;
  args.arena = unit.arena();
  args.shape = unit.shape();
  args.sources = unit.sources().data();
  args.num_sources = static_cast<int32_t>(unit.sources().size());
  args.members = members.data();
  args.entries = entries.data();
  args.num_entries = static_cast<int32_t>(entries.size());
  args.blocks = blocks.data();
  args.num_blocks = static_cast<int32_t>(blocks.size());
  args.key_mean = unit.mean();
  args.positions = unit.positions();
  for (auto _ : state) CHECK(unit.backend()->KvBuild(args).ok());
  Report(state, static_cast<int64_t>(entries.size()));
}

void RunEvaluate(benchmark::State& state, const std::string& isa, const KvBlockKind& kind,
                 int queries) {
  Unit unit(isa, kind);
  const std::vector<float> q(queries * kGroup * kHeadDim, 0.01f);
  std::vector<float> out(q.size()), mass(int64_t{queries} * kGroup * kEntries);
  KvEvaluateArgs args;
  args.q = q.data();
  args.arena = unit.arena();
  args.shape = unit.shape();
  args.num_queries = queries;
  args.group = kGroup;
  args.list = unit.list();
  args.scale = 0.125f;
  args.key_mean = unit.mean();
  args.positions = unit.positions();
  args.out = out.data();
  args.mass = mass.data();
  for (auto _ : state) CHECK(unit.backend()->KvEvaluate(args).ok());
  Report(state, int64_t{kEntries} * queries);
}

template <typename Run>
void Add(const std::string& name, Run run) {
  benchmark::RegisterBenchmark(name.c_str(), run)->Unit(benchmark::kMicrosecond);
}

void Register() {
  constexpr KvBlockKind kPlain = {KvFormat::kK16V16, 0};
  constexpr KvBlockKind kNarrow = {KvFormat::kK4V4, kMerged};
  constexpr KvBlockKind kRun = {KvFormat::kK4V4, kKvRun | kKvCentred};
  using State = benchmark::State;
  for (const cpu::CpuIsa which : cpu::AvailableCpuIsas()) {
    const std::string isa = cpu::CpuIsaName(which);
    Add("kv_read/" + isa + "/k16v16", [=](State& state) { RunRead(state, isa, kPlain); });
    Add("kv_read/" + isa + "/k4v4_merged", [=](State& state) { RunRead(state, isa, kNarrow); });
    Add("kv_build/" + isa + "/k16v16_to_k4v4_run",
        [=](State& state) { RunBuild(state, isa, kPlain, kRun, 1); });
    Add("kv_build/" + isa + "/k16v16_to_k4v4_merged",
        [=](State& state) { RunBuild(state, isa, kPlain, kNarrow, 1); });
    Add("kv_build/" + isa + "/k16v16_to_k4v4_merged_by_2",
        [=](State& state) { RunBuild(state, isa, kPlain, kNarrow, 2); });
    Add("kv_build/" + isa + "/k4v4_run_to_k4v4_run",
        [=](State& state) { RunBuild(state, isa, kRun, kRun, 1); });
    Add("kv_evaluate/" + isa + "/k16v16_64_queries",
        [=](State& state) { RunEvaluate(state, isa, kPlain, 64); });
    Add("kv_evaluate/" + isa + "/k4v4_merged_64_queries",
        [=](State& state) { RunEvaluate(state, isa, kNarrow, 64); });
  }
}

}  // namespace
}  // namespace condense

int main(int argc, char** argv) {
  condense::Register();
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
