// Matrix products at the shapes of SmolLM2-135M, per instruction set, beside what the machine can
// read and multiply.
//
// Counters: GB/s of weights and GOP/s (a multiplication and an addition are two operations), and
// for packed formats the larger of their shares of the measured limits. Weights come from a buffer
// larger than the private caches.

#include <benchmark/benchmark.h>
#include <immintrin.h>
#include <sys/mman.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "kernels/base/check.h"
#include "kernels/cpu/matmul.h"

namespace condense::cpu {
namespace {

constexpr int64_t kBufferBytes = int64_t{256} << 20;

int NumThreads() { return std::max(1u, std::thread::hardware_concurrency()); }

ThreadPool& Pool() {
  static ThreadPool pool(NumThreads());
  return pool;
}

// Huge pages where the machine has them; every byte 0x11, which is a small scale and a small code.
std::byte* WeightBuffer() {
  static std::byte* const buffer = [] {
    void* const memory =
        mmap(nullptr, kBufferBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(memory != MAP_FAILED);
    madvise(memory, kBufferBytes, MADV_HUGEPAGE);
    std::memset(memory, 0x11, kBufferBytes);
    return static_cast<std::byte*>(memory);
  }();
  return buffer;
}

double BestSecondsOf(int repeats, const std::function<void()>& body) {
  double best = 1e9;
  for (int i = 0; i < repeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    body();
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::min(best, seconds.count());
  }
  return best;
}

__attribute__((target("avx2"))) void ReadAvx2(const std::byte* from, int64_t size) {
  __m256i sum[4] = {};
  const auto* vectors = reinterpret_cast<const __m256i*>(from);
  for (int64_t i = 0; i < size / 32; i += 4) {
    for (int j = 0; j < 4; ++j) sum[j] = _mm256_or_si256(sum[j], vectors[i + j]);
  }
  for (__m256i& part : sum) benchmark::DoNotOptimize(part);
}

// Bytes per second that all threads together read from the buffer.
double ReadLimit() {
  static const double limit = [] {
    const std::byte* buffer = WeightBuffer();
    constexpr int kSlices = 64;
    const double seconds = BestSecondsOf(7, [buffer] {
      Pool().Run(kSlices, [buffer](int slice, int) {
        ReadAvx2(buffer + slice * (kBufferBytes / kSlices), kBufferBytes / kSlices);
      });
    });
    return kBufferBytes / seconds;
  }();
  return limit;
}

constexpr int kPeakSteps = 100000;
constexpr int kPeakChains = 12;

// vpdpbusd in registers: 64 products each.
__attribute__((target("avx512f,avx512vnni"))) void MultiplyAvx512Vnni() {
  __m512i sums[kPeakChains] = {};
  __m512i w = _mm512_set1_epi8(3);
  for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (__m512i& sum : sums) {
      sum = _mm512_dpbusd_epi32(sum, w, w);
      asm volatile("" : "+v"(sum));
    }
  }
}

// What a 4-bit product without VNNI takes at least: vpmaddubsw and a 16-bit addition for 32
// products.
__attribute__((target("avx2"))) void MultiplyAvx2() {
  __m256i sums[kPeakChains] = {};
  __m256i w = _mm256_set1_epi8(3);
  for (int i = 0; i < kPeakSteps; ++i) {
#pragma GCC unroll 12
    for (__m256i& sum : sums) {
      asm volatile("" : "+x"(w));  // a new operand each time, as far as the compiler knows
      sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, w));
    }
  }
  for (__m256i& sum : sums) benchmark::DoNotOptimize(sum);
}

// Operations per second of all threads together; 0 where no such limit is known.
double MultiplyLimit(CpuIsa isa) {
  static std::map<CpuIsa, double> limits;
  if (isa == CpuIsa::kScalar) return 0.0;
  if (limits.count(isa) == 0) {
    const bool wide = isa == CpuIsa::kAvx512Vnni;
    const double seconds = BestSecondsOf(7, [wide] {
      Pool().Run(NumThreads(), [wide](int, int) { wide ? MultiplyAvx512Vnni() : MultiplyAvx2(); });
    });
    limits[isa] = 2.0 * (wide ? 64 : 32) * kPeakSteps * kPeakChains * NumThreads() / seconds;
  }
  return limits[isa];
}

struct Shape {
  const char* name;
  WeightFormat format;
  int32_t cols;
  std::vector<int32_t> rows;  // one per output
};

int64_t ShapeBytes(const Shape& shape) {
  int64_t bytes = 0;
  for (const int32_t rows : shape.rows) bytes += WeightBytes(shape.format, rows, shape.cols);
  return bytes;
}

void SetCounters(const Shape& shape, CpuIsa isa, int tokens, benchmark::State* state) {
  double products = 0.0;
  for (const int32_t rows : shape.rows) products += static_cast<double>(rows) * shape.cols * tokens;
  const auto runs = static_cast<double>(state->iterations());
  using benchmark::Counter;
  state->counters["GB/s"] = Counter(runs * ShapeBytes(shape) * 1e-9, Counter::kIsRate);
  state->counters["GOP/s"] = Counter(runs * 2.0 * products * 1e-9, Counter::kIsRate);
  if (WeightTileCols(shape.format) != kWeightBlock) return;
  const double read_share = ShapeBytes(shape) / ReadLimit();
  const double multiply_limit = MultiplyLimit(isa);
  // Two products of bytes each, one per part of an activation.
  const double multiply_share = multiply_limit > 0 ? 4.0 * products / multiply_limit : 0.0;
  state->counters["share"] = Counter(runs * std::max(read_share, multiply_share), Counter::kIsRate);
}

void RunMatmul(benchmark::State& state, const Shape& shape, CpuIsa isa, int tokens) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(tokens) * shape.cols);
  for (float& value : x) value = normal(random);
  std::vector<std::vector<float>> y;
  MatmulScratch scratch;
  MatmulArgs args;
  args.x = x.data();
  args.rows = tokens;
  args.num_outputs = static_cast<int32_t>(shape.rows.size());
  for (const int32_t rows : shape.rows) y.emplace_back(static_cast<size_t>(rows) * tokens);
  const int64_t copies = std::max<int64_t>(1, kBufferBytes / ShapeBytes(shape));
  int64_t copy = 0;
  for (auto _ : state) {
    const std::byte* stream = WeightBuffer() + copy * ShapeBytes(shape);
    for (size_t i = 0; i < y.size(); ++i) {
      args.outputs[i] = {{stream, shape.format, shape.rows[i], shape.cols}, nullptr, y[i].data()};
      stream += WeightBytes(shape.format, shape.rows[i], shape.cols);
    }
    Matmul(args, isa, &Pool(), &scratch);
    copy = (copy + 1) % copies;
  }
  SetCounters(shape, isa, tokens, &state);
}

void RunEmptyForkJoin(benchmark::State& state) {
  for (auto _ : state) Pool().Run(NumThreads(), [](int, int) {});
}

void RegisterAll() {
  const std::vector<Shape> shapes = {
      {"qkv", WeightFormat::kPacked4, 576, {576, 192, 192}},
      {"o", WeightFormat::kPacked4, 576, {576}},
      {"gate_up", WeightFormat::kPacked4, 576, {1536, 1536}},
      {"down", WeightFormat::kPacked4, 1536, {576}},
      {"down", WeightFormat::kPacked8, 1536, {576}},
      {"down", WeightFormat::kBf16, 1536, {576}},
      {"down", WeightFormat::kF16, 1536, {576}},
      {"down", WeightFormat::kF32, 1536, {576}},
      {"head", WeightFormat::kPacked8, 576, {49152}},
      {"large", WeightFormat::kPacked4, 2048, {8192, 8192}},
  };
  for (const CpuIsa isa : AvailableCpuIsas()) {
    for (const Shape& shape : shapes) {
      for (const int tokens : {1, 8, 512}) {
        if (tokens == 512 && shape.rows[0] > 2048) continue;
        const std::string name = std::string(CpuIsaName(isa)) + "/" + shape.name + "/" +
                                 WeightFormatName(shape.format) + "/T" + std::to_string(tokens);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          RunMatmul(state, shape, isa, tokens);
        })->UseRealTime();
      }
    }
  }
  benchmark::RegisterBenchmark("fork_join", RunEmptyForkJoin)->UseRealTime();
}

void AddLimits() {
  benchmark::AddCustomContext("threads", std::to_string(NumThreads()));
  benchmark::AddCustomContext("read_limit_GB/s", std::to_string(ReadLimit() * 1e-9));
  for (const CpuIsa isa : AvailableCpuIsas()) {
    benchmark::AddCustomContext(std::string("multiply_limit_GOP/s_") + CpuIsaName(isa),
                                std::to_string(MultiplyLimit(isa) * 1e-9));
  }
}

}  // namespace
}  // namespace condense::cpu

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  condense::cpu::AddLimits();
  condense::cpu::RegisterAll();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
