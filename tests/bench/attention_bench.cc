// Attention: bytes of blocks and entries read per second for decode steps, FLOP/s for prompt
// chunks, per instruction set and format.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/backend.h"
#include "kernels/base/check.h"
#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/thread_pool.h"
#include "tests/support/kv_lists.h"

namespace condense {
namespace {

struct Shape {
  const char* name;
  int sequences;
  int entries;
  int tokens;  // rows of each sequence
  int head_dim = 64;
  int heads = 9;
  int kv_heads = 3;
};
constexpr Shape kShapes[] = {
    {"decode_1x7000", 1, 7000, 1},
    {"decode_8x2000", 8, 2000, 1},
    {"decode_1x7000_g4", 1, 7000, 1, 64, 12, 3},
    {"decode_1x3500_g4_d128", 1, 3500, 1, 128, 12, 3},
    {"decode_1x500", 1, 500, 1},
    {"prompt_512_of_512", 1, 512, 512},
    {"prompt_512_of_7000", 1, 7000, 512},
};

struct Kind {
  const char* name;
  KvBlockKind block;
  int mean_pairs = 0;  // of D / 2, that are not zero
};
constexpr KvBlockFlags kMerged = kKvBias | kKvPosition | kKvCount | kKvCentred;
constexpr Kind kSixteenBits = {"", {KvFormat::kK16V16, 0}};
constexpr Kind kNarrow[] = {
    {"/k8v8", {KvFormat::kK8V8, 0}},
    {"/k6v4", {KvFormat::kK6V4, 0}},
    {"/k4v4", {KvFormat::kK4V4, 0}},
    {"/k4v3", {KvFormat::kK4V3, 0}},
    {"/k4v4_run", {KvFormat::kK4V4, kKvRun | kKvCentred}, 8},
    {"/k4v3_run", {KvFormat::kK4V3, kKvRun | kKvCentred}, 8},
    {"/k4v4_merged", {KvFormat::kK4V4, kMerged}, 8},
    {"/k4v3_merged", {KvFormat::kK4V3, kMerged}, 8},
    {"/k4v4_merged_all_pairs", {KvFormat::kK4V4, kMerged}, 1000},
};

Buffer Upload(Backend* backend, const std::byte* data, int64_t size_bytes) {
  absl::StatusOr<Buffer> buffer = backend->Allocate(size_bytes);
  CHECK(buffer.ok());
  backend->CopyToDevice(buffer->data(), data, size_bytes);
  return *std::move(buffer);
}

void RunAttention(benchmark::State& state, const std::string& isa, int num_threads,
                  const Shape& shape, bool evidence, const Kind& kind) {
  BackendOptions options;
  options.num_threads = num_threads;
  options.cpu_isa = isa;
  auto backend = MakeBackend(options);
  CHECK(backend.ok());
  // Several arenas in turn, as the layers of a model are: the caches do not keep the keys from one
  // call to the next.
  const bool decode = shape.tokens == 1;
  const std::vector<KvSequenceSpec> specs(
      shape.sequences, {BlockCounts(shape.entries, 32), shape.tokens, {kind.block}});
  const KvLists lists({shape.head_dim, 32}, shape.kv_heads, specs, 1);
  constexpr int64_t kArenaBytes = 92 << 20;
  const int64_t num_layers =
      decode ? std::max<int64_t>(1, kArenaBytes / static_cast<int64_t>(lists.image().size())) : 1;
  // One allocation, as in the cache, so that large pages serve it.
  const int64_t arena_bytes = static_cast<int64_t>(lists.image().size());
  const Buffer arenas = *(*backend)->Allocate(num_layers * arena_bytes);
  for (int64_t i = 0; i < num_layers; ++i) {
    (*backend)->CopyToDevice(arenas.data() + i * arena_bytes, lists.image().data(), arena_bytes);
  }
  const std::vector<float> q(int64_t{lists.num_rows()} * shape.heads * shape.head_dim, 0.01f);
  const Buffer q_device = Upload(backend->get(), reinterpret_cast<const std::byte*>(q.data()),
                                 static_cast<int64_t>(q.size()) * 4);
  const Buffer out = *(*backend)->Allocate(static_cast<int64_t>(q.size()) * 4);
  const Buffer evidence_device = *(*backend)->Allocate(lists.evidence_size() * 4);
  AttentionArgs args;
  args.q = q_device.as<float>();
  args.shape = lists.shape();
  args.num_heads = shape.heads;
  args.num_kv_heads = shape.kv_heads;
  args.num_sequences = lists.num_sequences();
  args.sequences = lists.sequences();
  args.scale = 0.125f;
  args.out = out.as<float>();
  // As long as a table of 8,192 positions, which lies in large pages.
  const std::vector<float> ones(int64_t{8192} * shape.head_dim, 0.7f);
  const Buffer table = Upload(backend->get(), reinterpret_cast<const std::byte*>(ones.data()),
                              static_cast<int64_t>(ones.size()) * 4);
  std::vector<float> mean(int64_t{shape.kv_heads} * shape.head_dim);
  const int step = std::max(1, shape.head_dim / 2 / std::max(1, kind.mean_pairs));
  for (int64_t i = 0; i < static_cast<int64_t>(mean.size()); i += step) mean[i] = 0.5f;
  const Buffer mean_device = Upload(backend->get(), reinterpret_cast<const std::byte*>(mean.data()),
                                    static_cast<int64_t>(mean.size()) * 4);
  args.key_mean = mean_device.as<float>();
  args.positions = {table.as<float>(), table.as<float>() + ones.size() / 2, KvLists::kNumPositions,
                    RopePairing::kHalfSplit};
  if (evidence) {
    args.evidence = evidence_device.as<float>();
    args.evidence_offset = lists.evidence_offset().data();
  }
  int64_t layer = 0;
  for (auto _ : state) {
    args.arena = arenas.data() + layer * arena_bytes;
    layer = (layer + 1) % num_layers;
    (*backend)->Attention(args);
  }
  const double calls = static_cast<double>(state.iterations());
  const double entries = 1.0 * shape.sequences * shape.entries * shape.kv_heads;
  const double bytes =
      entries * KvBlockBytes(kind.block.format, lists.shape(), kind.block.flags) / 32.0;
  const double seen = shape.entries - (shape.tokens - 1) / 2.0;  // entries of the average row
  const double flops = 4.0 * shape.sequences * shape.tokens * seen * shape.heads * shape.head_dim;
  state.counters["GB/s"] = benchmark::Counter(bytes * calls * 1e-9, benchmark::Counter::kIsRate);
  state.counters["entries/s"] = benchmark::Counter(entries * calls, benchmark::Counter::kIsRate);
  state.counters["GFLOP/s"] = benchmark::Counter(flops * calls * 1e-9, benchmark::Counter::kIsRate);
}

// What the machine gives: every thread reads its share of an array as large as the arenas above.
void RunMemoryBandwidth(benchmark::State& state, int num_threads) {
  cpu::ThreadPool pool(num_threads > 0 ? num_threads
                                       : static_cast<int>(std::thread::hardware_concurrency()));
  constexpr int64_t kTaskWords = 1 << 16;
  constexpr int kTasks = 184;  // 92 MiB
  std::vector<uint64_t> words(kTaskWords * kTasks, 1);
  std::vector<uint64_t> sums(kTasks);
  for (auto _ : state) {
    pool.Run(kTasks, [&](int task, int /*worker*/) {
      uint64_t sum = 0;
      for (int64_t i = 0; i < kTaskWords; ++i) sum ^= words[task * kTaskWords + i];
      sums[task] = sum;
    });
    benchmark::DoNotOptimize(sums.data());
  }
  state.counters["GB/s"] = benchmark::Counter(
      8e-9 * static_cast<double>(words.size()) * static_cast<double>(state.iterations()),
      benchmark::Counter::kIsRate);
}

void RegisterShape(cpu::CpuIsa isa, int num_threads, const Shape& shape, bool evidence,
                   const Kind& kind) {
  const std::string name = std::string("attention/") + cpu::CpuIsaName(isa) + "/" +
                           (num_threads == 1 ? "one_thread/" : "all_threads/") + shape.name +
                           kind.name + (evidence ? "/evidence" : "");
  auto* bench = benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
    RunAttention(state, cpu::CpuIsaName(isa), num_threads, shape, evidence, kind);
  });
  bench->Unit(benchmark::kMicrosecond);
  // One thread is judged by its CPU time, which other programs on the machine disturb less.
  if (num_threads != 1) bench->UseRealTime();
}

void Register() {
  for (const int num_threads : {1, 0}) {
    auto* memory = benchmark::RegisterBenchmark(
        num_threads == 1 ? "memory/one_thread" : "memory/all_threads",
        [=](benchmark::State& state) { RunMemoryBandwidth(state, num_threads); });
    memory->Unit(benchmark::kMillisecond);
    if (num_threads != 1) memory->UseRealTime();
    for (const cpu::CpuIsa isa : cpu::AvailableCpuIsas()) {
      for (const Shape& shape : kShapes) {
        RegisterShape(isa, num_threads, shape, false, kSixteenBits);
        RegisterShape(isa, num_threads, shape, true, kSixteenBits);
        if (shape.tokens > 1) continue;
        for (const Kind& kind : kNarrow) RegisterShape(isa, num_threads, shape, false, kind);
      }
    }
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
