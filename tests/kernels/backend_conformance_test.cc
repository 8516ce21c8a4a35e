#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "tests/kernels/backend_fixture.h"

namespace condense {
namespace {

// Memory, matrix products, lookups and elementwise ops of every backend. Attention, kv-append and
// sampling have their own files.
class BackendConformanceTest : public BackendFixture {};

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16,
                                     WeightFormat::kPacked4, WeightFormat::kPacked8};

bool IsPacked(WeightFormat format) {
  return format == WeightFormat::kPacked4 || format == WeightFormat::kPacked8;
}

// A stream of random weights with a spread of about 1.
std::vector<std::byte> RandomWeights(WeightFormat format, int rows, int cols, uint32_t seed) {
  std::vector<std::byte> data(WeightBytes(format, rows, cols));
  std::mt19937 random(seed);
  const std::vector<float> values = RandomFloats(int64_t{rows} * cols, seed);
  for (int row = 0; row < rows; ++row) {
    if (!IsPacked(format)) {
      PackRow(data.data(), format, cols, row, values.data() + int64_t{row} * cols);
      continue;
    }
    for (int block = 0; block < cols / kWeightBlock; ++block) {
      const float spread = 0.5f + static_cast<float>(random() % 100) / 100.0f;
      if (format == WeightFormat::kPacked4) {
        WeightBlock4 source = {{}, ToHalf(spread / 5.0f), ToHalf(-1.5f * spread)};
        for (uint8_t& code : source.codes) code = random() % 16;
        PackBlock4(data.data(), cols, row, block, source);
      } else {
        WeightBlock8 source = {{}, ToHalf(spread / 75.0f)};
        for (int8_t& code : source.codes)
          code = static_cast<int8_t>(static_cast<int>(random() % 255) - 127);
        PackBlock8(data.data(), cols, row, block, source);
      }
    }
  }
  return data;
}

// A weight matrix in backend memory.
class DeviceWeights {
 public:
  DeviceWeights(Backend* backend, WeightFormat format, int rows, int cols, uint32_t seed)
      : bytes_(backend, RandomWeights(format, rows, cols, seed)),
        view_{bytes_.get(), format, rows, cols} {}
  const WeightView& view() const { return view_; }

 private:
  DeviceArray<std::byte> bytes_;
  WeightView view_;
};

TEST_P(BackendConformanceTest, FreshMemoryIsZeroAndAligned) {
  for (const int64_t size :
       {int64_t{1}, int64_t{100}, int64_t{4} << 20, (int64_t{5} << 20) + 12345}) {
    absl::StatusOr<Buffer> buffer = backend()->Allocate(size);
    ASSERT_TRUE(buffer.ok()) << buffer.status();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer->data()) % 64, 0u);
    EXPECT_EQ(buffer->size_bytes(), size);
    std::vector<std::byte> bytes(size, std::byte{1});
    backend()->CopyToHost(bytes.data(), buffer->data(), size);
    ASSERT_TRUE(backend()->Synchronize().ok());
    EXPECT_TRUE(
        std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; }));
  }
}

TEST_P(BackendConformanceTest, FreshMemoryIsZeroAfterUsedMemoryWasFreed) {
  for (int round = 0; round < 3; ++round) {
    const DeviceArray<float> array(backend(), 1000);
    EXPECT_EQ(array.Read(), std::vector<float>(1000, 0.0f));
    const std::vector<float> ones(1000, 1.0f);
    backend()->CopyToDevice(reinterpret_cast<std::byte*>(array.get()),
                            reinterpret_cast<const std::byte*>(ones.data()), 4000);
    EXPECT_EQ(array.Read(), ones);
  }
}

TEST_P(BackendConformanceTest, ZeroClearsExactlyTheRange) {
  const DeviceArray<float> array(backend(), std::vector<float>(100, 3.0f));
  backend()->Zero(reinterpret_cast<std::byte*>(array.get() + 10), 20 * sizeof(float));
  std::vector<float> expected(100, 3.0f);
  std::fill_n(expected.begin() + 10, 20, 0.0f);
  EXPECT_EQ(array.Read(), expected);
}

TEST_P(BackendConformanceTest, MoreMemoryThanThereIsIsRefusedWithBothNumbers) {
  const int64_t size = backend()->Info().memory_bytes + 1;
  const absl::StatusOr<Buffer> buffer = backend()->Allocate(size);
  ASSERT_EQ(buffer.status().code(), absl::StatusCode::kResourceExhausted);
  const std::string message(buffer.status().message());
  EXPECT_NE(message.find(std::to_string(size)), std::string::npos) << message;
  EXPECT_NE(message.find(std::to_string(backend()->Info().memory_bytes)), std::string::npos)
      << message;
  EXPECT_TRUE(backend()->Allocate(1000).ok());
}

TEST_P(BackendConformanceTest, EmptyOpsDoNothing) {
  backend()->Add({});
  backend()->Gate({});
  backend()->RmsNorm({});
  backend()->Rope({});
  backend()->KvAppend({.num_kv_heads = 1});
  backend()->Attention({.num_heads = 1, .num_kv_heads = 1});
  backend()->Sample({});
  backend()->CopyToHost(nullptr, nullptr, 0);
  backend()->Zero(nullptr, 0);
  EXPECT_TRUE(backend()->Synchronize().ok());
}

std::vector<float> RunEmbed(Backend* backend, WeightFormat format,
                            const std::vector<TokenId>& tokens) {
  const DeviceWeights table(backend, format, 50, 96, 5);
  const DeviceArray<float> out(backend, static_cast<int64_t>(tokens.size()) * 96);
  backend->Embed(
      {table.view(), tokens.data(), static_cast<int32_t>(tokens.size()), 1.5f, out.get()});
  return out.Read();
}

TEST_P(BackendConformanceTest, EmbedMatchesReference) {
  std::vector<TokenId> tokens = {0, 49, 17, 17, 31};
  for (int i = 0; i < 700; ++i) tokens.push_back(i % 50);
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(WeightFormatName(format));
    EXPECT_TRUE(
        SameBits(RunEmbed(backend(), format, tokens), RunEmbed(reference(), format, tokens)));
  }
}

std::vector<float> RunRmsNorm(Backend* backend, int rows, int cols,
                              const std::vector<int32_t>& row_index) {
  const int out_rows = row_index.empty() ? rows : static_cast<int>(row_index.size());
  const DeviceArray<float> x(backend, RandomFloats(int64_t{rows} * cols, 1));
  const DeviceArray<float> weight(backend, RandomFloats(cols, 2));
  const DeviceArray<float> out(backend, int64_t{out_rows} * cols);
  backend->RmsNorm({x.get(), weight.get(), row_index.empty() ? nullptr : row_index.data(), out_rows,
                    cols, 1e-5f, out.get()});
  return out.Read();
}

TEST_P(BackendConformanceTest, RmsNormMatchesReference) {
  for (const int cols : {1, 7, 16, 64, 100, 576, 4096}) {
    SCOPED_TRACE(testing::Message() << "cols " << cols);
    for (const std::vector<int32_t>& row_index : {std::vector<int32_t>(), {8}, {3, 3, 0}}) {
      EXPECT_LE(NormalizedError(RunRmsNorm(backend(), 9, cols, row_index),
                                RunRmsNorm(reference(), 9, cols, row_index)),
                tolerance::kElementwise);
    }
  }
}

TEST_P(BackendConformanceTest, RmsNormRowsDoNotDependOnTheBatch) {
  const std::vector<float> all = RunRmsNorm(backend(), 200, 576, {});
  for (const int row : {0, 57, 199}) {
    const std::vector<float> one = RunRmsNorm(backend(), 200, 576, {row});
    EXPECT_TRUE(SameBits(one, {all.begin() + row * 576, all.begin() + (row + 1) * 576}));
  }
}

TEST_P(BackendConformanceTest, RmsNormInPlaceEqualsOutOfPlace) {
  const DeviceArray<float> x(backend(), RandomFloats(20 * 100, 1));
  const DeviceArray<float> weight(backend(), RandomFloats(100, 2));
  backend()->RmsNorm({x.get(), weight.get(), nullptr, 20, 100, 1e-5f, x.get()});
  EXPECT_TRUE(SameBits(x.Read(), RunRmsNorm(backend(), 20, 100, {})));
}

struct MatmulCase {
  WeightFormat format = WeightFormat::kF32;
  std::vector<int> outputs;  // N of each
  int cols = 0;
  bool bias = false;
  bool accumulate = false;
};

// Outputs of all matrices, row by row of x.
std::vector<float> RunMatmul(Backend* backend, const MatmulCase& matmul,
                             const std::vector<float>& x) {
  const int rows = static_cast<int>(x.size()) / matmul.cols;
  const DeviceArray<float> x_device(backend, x);
  std::vector<DeviceWeights> weights;
  std::vector<DeviceArray<float>> biases;
  std::vector<DeviceArray<float>> ys;
  MatmulArgs args;
  args.x = x_device.get();
  args.rows = rows;
  for (const int n : matmul.outputs) {
    const uint32_t seed = 10 + args.num_outputs;
    weights.emplace_back(backend, matmul.format, n, matmul.cols, seed);
    biases.emplace_back(backend, RandomFloats(n, seed + 100));
    ys.emplace_back(backend, std::vector<float>(int64_t{rows} * n, matmul.accumulate ? 2.0f : NAN));
    args.outputs[args.num_outputs++] = {weights.back().view(),
                                        matmul.bias ? biases.back().get() : nullptr,
                                        ys.back().get(), matmul.accumulate};
  }
  backend->Matmul(args);
  std::vector<float> all;
  std::vector<std::vector<float>> read;
  for (const DeviceArray<float>& y : ys) read.push_back(y.Read());
  for (int r = 0; r < rows; ++r) {
    for (size_t o = 0; o < read.size(); ++o) {
      const auto begin = read[o].begin() + int64_t{r} * matmul.outputs[o];
      all.insert(all.end(), begin, begin + matmul.outputs[o]);
    }
  }
  return all;
}

TEST_P(BackendConformanceTest, MatmulMatchesReference) {
  for (const WeightFormat format : kFormats) {
    const double bound = IsPacked(format) ? tolerance::kMatmulPacked : tolerance::kMatmulFloat;
    for (const MatmulCase& matmul :
         {MatmulCase{format, {7}, 32}, MatmulCase{format, {16}, 64, true},
          MatmulCase{format, {33}, 576, false, true},
          MatmulCase{format, {192, 64, 64}, 192, true, false},
          MatmulCase{format, {100, 100}, 96, true, true}}) {
      for (const int rows : {1, 2, 5, 8, 37}) {
        SCOPED_TRACE(testing::Message()
                     << WeightFormatName(format) << " K " << matmul.cols << " T " << rows);
        const std::vector<float> x = RandomFloats(int64_t{rows} * matmul.cols, 3);
        EXPECT_LE(
            NormalizedError(RunMatmul(backend(), matmul, x), RunMatmul(reference(), matmul, x)),
            bound);
      }
    }
  }
}

TEST_P(BackendConformanceTest, MatmulRowsDoNotDependOnTheBatch) {
  for (const WeightFormat format : kFormats) {
    SCOPED_TRACE(WeightFormatName(format));
    const MatmulCase matmul = {format, {100, 48}, 160, true};
    const std::vector<float> x = RandomFloats(70 * 160, 3);
    const std::vector<float> all = RunMatmul(backend(), matmul, x);
    for (const auto& [first, count] : {std::pair{0, 1}, {5, 3}, {33, 8}, {50, 20}, {69, 1}}) {
      const std::vector<float> some = RunMatmul(
          backend(), matmul, {x.begin() + first * 160, x.begin() + (first + count) * 160});
      EXPECT_TRUE(SameBits(some, {all.begin() + first * 148, all.begin() + (first + count) * 148}));
    }
  }
}

std::vector<float> RunRope(Backend* backend, int tokens, int heads, int head_dim,
                           RopePairing pairing) {
  const DeviceArray<float> x(backend, RandomFloats(int64_t{tokens} * heads * head_dim, 1));
  std::vector<float> cos_values;
  std::vector<float> sin_values;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = t * std::pow(10000.0, -2.0 * i / head_dim);
      cos_values.push_back(static_cast<float>(std::cos(angle)));
      sin_values.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  const DeviceArray<float> cos(backend, cos_values);
  const DeviceArray<float> sin(backend, sin_values);
  backend->Rope({x.get(), cos.get(), sin.get(), tokens, heads, head_dim, pairing});
  return x.Read();
}

TEST_P(BackendConformanceTest, RopeMatchesReference) {
  for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
    for (const int head_dim : {2, 8, 24, 64, 80, 96, 128, 256}) {
      SCOPED_TRACE(testing::Message()
                   << "D " << head_dim << " pairing " << static_cast<int>(pairing));
      EXPECT_LE(NormalizedError(RunRope(backend(), 40, 9, head_dim, pairing),
                                RunRope(reference(), 40, 9, head_dim, pairing)),
                tolerance::kElementwise);
    }
  }
}

std::vector<float> RunGate(Backend* backend, const std::vector<float>& gate,
                           Activation activation) {
  const DeviceArray<float> gate_device(backend, gate);
  const DeviceArray<float> up(backend, RandomFloats(static_cast<int64_t>(gate.size()), 2));
  backend->Gate({gate_device.get(), up.get(), static_cast<int64_t>(gate.size()), activation});
  return gate_device.Read();
}

TEST_P(BackendConformanceTest, GateMatchesReference) {
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    for (const int size : {1, 15, 1000, 50001}) {
      SCOPED_TRACE(testing::Message()
                   << "size " << size << " activation " << static_cast<int>(activation));
      std::vector<float> gate = RandomFloats(size, 1);
      for (float& x : gate) x *= 4.0f;
      const std::vector<float> actual = RunGate(backend(), gate, activation);
      const std::vector<float> expected = RunGate(reference(), gate, activation);
      EXPECT_LE(NormalizedError(actual, expected), tolerance::kElementwise);
      EXPECT_LE(LargestRelativeError(actual, expected, 1e-4), 4e-6);
    }
  }
}

TEST_P(BackendConformanceTest, GateOfExtremesStaysFiniteAndKeepsNaN) {
  const std::vector<float> gate = {-1e30f, -200.0f, -90.0f, 0.0f, 90.0f, 200.0f, 1e10f, NAN};
  for (const Activation activation : {Activation::kSilu, Activation::kGeluTanh}) {
    const std::vector<float> actual = RunGate(backend(), gate, activation);
    const std::vector<float> expected = RunGate(reference(), gate, activation);
    for (size_t i = 0; i + 1 < gate.size(); ++i) {
      EXPECT_NEAR(actual[i], expected[i], 1e-6 * std::abs(expected[i]) + 1e-6) << gate[i];
    }
    EXPECT_TRUE(std::isnan(actual.back()));
  }
}

TEST_P(BackendConformanceTest, AddMatchesReference) {
  for (const int size : {1, 17, 1000, 50001}) {
    const std::vector<float> a = RandomFloats(size, 1);
    const std::vector<float> b = RandomFloats(size, 2);
    const DeviceArray<float> x(backend(), a);
    const DeviceArray<float> y(backend(), b);
    backend()->Add({x.get(), y.get(), size});
    std::vector<float> expected(size);
    std::transform(a.begin(), a.end(), b.begin(), expected.begin(), std::plus<float>());
    EXPECT_TRUE(SameBits(x.Read(), expected));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, BackendConformanceTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

TEST(MakeBackendTest, NamesWhatItDoesNotKnow) {
  EXPECT_EQ(MakeBackend({.kind = "tpu"}).status().code(), absl::StatusCode::kInvalidArgument);
  const absl::Status isa = MakeBackend({.cpu_isa = "neon"}).status();
  EXPECT_EQ(isa.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(isa.message()).find("neon"), std::string::npos);
  EXPECT_EQ(MakeBackend({.num_threads = -1}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(MakeBackendTest, DescribesTheCpu) {
  const auto backend = MakeBackend({.num_threads = 2, .cpu_isa = "scalar"});
  ASSERT_TRUE(backend.ok()) << backend.status();
  const BackendInfo info = (*backend)->Info();
  EXPECT_EQ(info.name, "cpu");
  EXPECT_EQ(info.device, "2 threads, scalar");
  EXPECT_GT(info.memory_bytes, int64_t{1} << 28);
}

}  // namespace
}  // namespace condense
