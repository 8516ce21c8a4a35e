#include "kernels/cpu/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/matmul_kernels.h"
#include "kernels/cpu/quantize_activations.h"

namespace condense::cpu {
namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16,
                                     WeightFormat::kPacked4, WeightFormat::kPacked8};

bool IsPacked(WeightFormat format) { return WeightTileCols(format) == kWeightBlock; }

// A random matrix in any format, owning its stream.
class Matrix {
 public:
  Matrix(WeightFormat format, int rows, int cols, std::mt19937* random) {
    const int64_t size = WeightBytes(format, rows, cols);
    data_.reset(static_cast<std::byte*>(std::aligned_alloc(64, (size + 63) / 64 * 64)));
    std::memset(data_.get(), 0, size);
    view_ = {data_.get(), format, rows, cols};
    for (int row = 0; row < rows; ++row) {
      IsPacked(format) ? FillPackedRow(row, random) : FillFloatRow(row, random);
    }
  }
  const WeightView& view() const { return view_; }
  std::vector<float> Row(int row) const {
    std::vector<float> values(view_.cols);
    UnpackRow(view_, row, values.data());
    return values;
  }

 private:
  struct Freer {
    void operator()(std::byte* data) const { std::free(data); }
  };

  void FillFloatRow(int row, std::mt19937* random) {
    std::normal_distribution<float> normal;
    std::vector<float> values(view_.cols);
    for (float& value : values) value = normal(*random);
    PackRow(data_.get(), view_.format, view_.cols, row, values.data());
  }
  void FillPackedRow(int row, std::mt19937* random) {
    std::uniform_real_distribution<float> uniform(0.5f, 1.5f);
    for (int block = 0; block < view_.cols / kWeightBlock; ++block) {
      WeightBlock4 four;
      WeightBlock8 eight;
      for (int i = 0; i < kWeightBlock; ++i) {
        four.codes[i] = (*random)() % 16;
        eight.codes[i] = static_cast<int8_t>((*random)());
      }
      four.scale = eight.scale = ToHalf(0.02f * uniform(*random));
      four.min = ToHalf(-0.15f * uniform(*random));
      if (view_.format == WeightFormat::kPacked4) {
        PackBlock4(data_.get(), view_.cols, row, block, four);
      } else {
        PackBlock8(data_.get(), view_.cols, row, block, eight);
      }
    }
  }

  std::unique_ptr<std::byte, Freer> data_;
  WeightView view_;
};

std::vector<float> RandomInput(int rows, int cols, std::mt19937* random) {
  std::normal_distribution<float> normal;
  std::vector<float> x(static_cast<size_t>(rows) * cols);
  for (float& value : x) value = normal(*random);
  return x;
}

// What a packed product sees instead of x.
std::vector<double> QuantizedRow(const float* x, int cols) {
  std::vector<double> values(cols);
  for (int block = 0; block < cols; block += kWeightBlock) {
    float largest = 0.0f;
    for (int i = 0; i < kWeightBlock; ++i) largest = std::max(largest, std::fabs(x[block + i]));
    for (int i = 0; i < kWeightBlock; ++i) {
      const double code = std::nearbyint(x[block + i] * (2032.0f / largest));
      values[block + i] = code * (largest / 2032.0f);
    }
  }
  return values;
}

struct Expected {
  double value = 0.0;
  double magnitude = 0.0;  // sum of the terms' magnitudes: what rounding errors are relative to
};

// [T, N]
std::vector<Expected> Reference(const Matrix& matrix, const std::vector<float>& x, int rows) {
  const int cols = matrix.view().cols;
  const int outputs = matrix.view().rows;
  std::vector<Expected> expected(static_cast<size_t>(rows) * outputs);
  std::vector<std::vector<double>> inputs;
  for (int t = 0; t < rows; ++t) {
    const float* row = &x[static_cast<size_t>(t) * cols];
    inputs.push_back(IsPacked(matrix.view().format) ? QuantizedRow(row, cols)
                                                    : std::vector<double>(row, row + cols));
  }
  for (int n = 0; n < outputs; ++n) {
    const std::vector<float> weights = matrix.Row(n);
    for (int t = 0; t < rows; ++t) {
      Expected& to = expected[static_cast<size_t>(t) * outputs + n];
      for (int k = 0; k < cols; ++k) {
        const double term = inputs[t][k] * weights[k];
        to.value += term;
        to.magnitude += std::fabs(term);
      }
    }
  }
  return expected;
}

std::vector<float> Multiply(const Matrix& matrix, const float* x, int rows, CpuIsa isa,
                            int threads) {
  ThreadPool pool(threads);
  MatmulScratch scratch;
  std::vector<float> y(static_cast<size_t>(rows) * matrix.view().rows, -77.0f);
  MatmulArgs args;
  args.x = x;
  args.rows = rows;
  args.num_outputs = 1;
  args.outputs[0] = {matrix.view(), nullptr, y.data(), false};
  Matmul(args, isa, &pool, &scratch);
  return y;
}

class MatmulTest : public ::testing::TestWithParam<CpuIsa> {};

TEST_P(MatmulTest, EveryFormatAndShapeAgreesWithDoublePrecision) {
  struct Shape {
    int rows, outputs, cols;
  };
  const Shape shapes[] = {{1, 576, 576}, {3, 192, 576}, {8, 40, 1536}, {2, 1, 32},     {5, 17, 64},
                          {33, 15, 128}, {1, 31, 640},  {67, 33, 96},  {130, 16, 2048}};
  std::mt19937 random(1);
  for (const WeightFormat format : kFormats) {
    for (const Shape& shape : shapes) {
      const Matrix matrix(format, shape.outputs, shape.cols, &random);
      const std::vector<float> x = RandomInput(shape.rows, shape.cols, &random);
      const std::vector<float> y = Multiply(matrix, x.data(), shape.rows, GetParam(), 2);
      const std::vector<Expected> expected = Reference(matrix, x, shape.rows);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i].value, 2e-6 * expected[i].magnitude)
            << WeightFormatName(format) << " T " << shape.rows << " N " << shape.outputs << " K "
            << shape.cols << " element " << i;
      }
    }
  }
}

TEST_P(MatmulTest, FloatFormatsTakeAnyNumberOfColumns) {
  std::mt19937 random(2);
  for (const WeightFormat format : {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBf16}) {
    for (int cols : {1, 2, 3, 7, 8, 9, 15, 33, 100}) {
      const Matrix matrix(format, 19, cols, &random);
      const std::vector<float> x = RandomInput(4, cols, &random);
      const std::vector<float> y = Multiply(matrix, x.data(), 4, GetParam(), 1);
      const std::vector<Expected> expected = Reference(matrix, x, 4);
      for (size_t i = 0; i < y.size(); ++i) {
        ASSERT_NEAR(y[i], expected[i].value, 2e-6 * expected[i].magnitude + 1e-30)
            << WeightFormatName(format) << " K " << cols;
      }
    }
  }
}

// Every extreme of a weight with every extreme of an activation, in every kernel of the batch
// sizes.
TEST_P(MatmulTest, ExtremeCodesDoNotOverflow) {
  constexpr int kCols = 32;
  // 2032 and -2032 have no low part; 2024 = 126 * 16 + 8 and -2024 are cut as far as it goes.
  const int inputs[] = {2032, -2032, 2024, -2024, 2023, -2023};
  const int codes4[] = {15, 0};
  const int codes8[] = {-128, 127, -127};
  alignas(64) std::byte stream4[320] = {};
  alignas(64) std::byte stream8[544] = {};
  const Half one = ToHalf(1.0f);
  for (int row = 0; row < 2; ++row) {
    WeightBlock4 block = {{}, one, ToHalf(0.0f)};
    std::memset(block.codes, codes4[row], sizeof(block.codes));
    PackBlock4(stream4, kCols, row, 0, block);
  }
  for (int row = 0; row < 3; ++row) {
    WeightBlock8 block = {{}, one};
    std::memset(block.codes, codes8[row], sizeof(block.codes));
    PackBlock8(stream8, kCols, row, 0, block);
  }
  ThreadPool pool(1);
  MatmulScratch scratch;
  for (const int rows : {6, 12, 30}) {
    std::vector<float> x;
    // The first column sets the scale to 1; the others are all the same.
    for (int row = 0; row < rows; ++row) {
      x.push_back(inputs[row % 6] > 0 ? 2032.0f : -2032.0f);
      x.insert(x.end(), kCols - 1, static_cast<float>(inputs[row % 6]));
    }
    std::vector<float> y4(rows * 2), y8(rows * 3);
    MatmulArgs args;
    args.x = x.data();
    args.rows = rows;
    args.num_outputs = 2;
    args.outputs[0] = {{stream4, WeightFormat::kPacked4, 2, kCols}, nullptr, y4.data(), false};
    args.outputs[1] = {{stream8, WeightFormat::kPacked8, 3, kCols}, nullptr, y8.data(), false};
    Matmul(args, GetParam(), &pool, &scratch);
    for (int row = 0; row < rows; ++row) {
      const float sum = x[row * kCols] + 31.0f * inputs[row % 6];
      for (int i = 0; i < 2; ++i) EXPECT_EQ(y4[row * 2 + i], codes4[i] * sum);
      for (int i = 0; i < 3; ++i) EXPECT_EQ(y8[row * 3 + i], codes8[i] * sum);
    }
  }
}

TEST_P(MatmulTest, ARowIsTheSameBitForBitWhateverTheBatchPositionAndThreads) {
  constexpr int kRows = 33, kOutputs = 57, kCols = 192;
  std::mt19937 random(3);
  for (const WeightFormat format : kFormats) {
    const Matrix matrix(format, kOutputs, kCols, &random);
    const std::vector<float> x = RandomInput(kRows, kCols, &random);
    const std::vector<float> whole = Multiply(matrix, x.data(), kRows, GetParam(), 1);
    for (int rows = 1; rows <= kRows; ++rows) {
      for (int threads = 1; threads <= 4; ++threads) {
        const int first = (rows * 5 + threads) % (kRows - rows + 1);
        const std::vector<float> part =
            Multiply(matrix, &x[first * kCols], rows, GetParam(), threads);
        ASSERT_EQ(std::memcmp(part.data(), &whole[first * kOutputs], part.size() * sizeof(float)),
                  0)
            << WeightFormatName(format) << " T " << rows << " threads " << threads;
      }
    }
  }
}

TEST_P(MatmulTest, ARowOfALongPromptEqualsTheSameRowAlone) {
  constexpr int kRows = 300, kOutputs = 32, kCols = 576;
  std::mt19937 random(4);
  for (const WeightFormat format : kFormats) {
    const Matrix matrix(format, kOutputs, kCols, &random);
    const std::vector<float> x = RandomInput(kRows, kCols, &random);
    const std::vector<float> whole = Multiply(matrix, x.data(), kRows, GetParam(), 2);
    for (int row = 0; row < kRows; row += 23) {
      const std::vector<float> alone = Multiply(matrix, &x[row * kCols], 1, GetParam(), 1);
      ASSERT_EQ(std::memcmp(alone.data(), &whole[row * kOutputs], kOutputs * sizeof(float)), 0)
          << WeightFormatName(format) << " row " << row;
    }
  }
}

TEST_P(MatmulTest, ThreeOutputsOfDifferentFormatsShareOneInput) {
  constexpr int kRows = 6, kCols = 96;
  std::mt19937 random(5);
  const Matrix q(WeightFormat::kPacked4, 50, kCols, &random);
  const Matrix k(WeightFormat::kPacked8, 16, kCols, &random);
  const Matrix v(WeightFormat::kBf16, 7, kCols, &random);
  const std::vector<float> x = RandomInput(kRows, kCols, &random);
  ThreadPool pool(3);
  MatmulScratch scratch;
  MatmulArgs args;
  args.x = x.data();
  args.rows = kRows;
  args.num_outputs = 3;
  std::vector<std::vector<float>> y;
  for (const Matrix* matrix : {&q, &k, &v}) y.emplace_back(kRows * matrix->view().rows);
  args.outputs[0] = {q.view(), nullptr, y[0].data(), false};
  args.outputs[1] = {k.view(), nullptr, y[1].data(), false};
  args.outputs[2] = {v.view(), nullptr, y[2].data(), false};
  Matmul(args, GetParam(), &pool, &scratch);
  EXPECT_EQ(y[0], Multiply(q, x.data(), kRows, GetParam(), 1));
  EXPECT_EQ(y[1], Multiply(k, x.data(), kRows, GetParam(), 1));
  EXPECT_EQ(y[2], Multiply(v, x.data(), kRows, GetParam(), 1));
}

TEST_P(MatmulTest, BiasIsAddedAndAccumulateKeepsWhatWasThere) {
  constexpr int kRows = 9, kOutputs = 21, kCols = 64;
  std::mt19937 random(6);
  for (const WeightFormat format : kFormats) {
    const Matrix matrix(format, kOutputs, kCols, &random);
    const std::vector<float> x = RandomInput(kRows, kCols, &random);
    const std::vector<float> bias = RandomInput(1, kOutputs, &random);
    const std::vector<float> before = RandomInput(kRows, kOutputs, &random);
    const std::vector<float> plain = Multiply(matrix, x.data(), kRows, GetParam(), 1);
    ThreadPool pool(2);
    MatmulScratch scratch;
    for (const bool accumulate : {false, true}) {
      std::vector<float> y = before;
      MatmulArgs args;
      args.x = x.data();
      args.rows = kRows;
      args.num_outputs = 1;
      args.outputs[0] = {matrix.view(), bias.data(), y.data(), accumulate};
      Matmul(args, GetParam(), &pool, &scratch);
      for (int i = 0; i < kRows * kOutputs; ++i) {
        const float with_bias = plain[i] + bias[i % kOutputs];
        EXPECT_EQ(y[i], accumulate ? with_bias + before[i] : with_bias);
      }
    }
  }
}

TEST_P(MatmulTest, NothingIsWrittenBehindTheLastOutput) {
  std::mt19937 random(7);
  for (const WeightFormat format : kFormats) {
    for (int outputs = 1; outputs <= 33; ++outputs) {
      const Matrix matrix(format, outputs, 32, &random);
      const std::vector<float> x = RandomInput(2, 32, &random);
      std::vector<float> y(2 * outputs + 16, 5.0f);
      ThreadPool pool(1);
      MatmulScratch scratch;
      MatmulArgs args;
      args.x = x.data();
      args.rows = 2;
      args.num_outputs = 1;
      args.outputs[0] = {matrix.view(), nullptr, y.data(), false};
      Matmul(args, GetParam(), &pool, &scratch);
      for (int i = 2 * outputs; i < 2 * outputs + 16; ++i) ASSERT_EQ(y[i], 5.0f);
    }
  }
}

TEST_P(MatmulTest, NonFiniteInputSpoilsItsOwnRowOnly) {
  constexpr int kRows = 3, kOutputs = 20, kCols = 64;
  std::mt19937 random(8);
  for (const WeightFormat format : kFormats) {
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      const Matrix matrix(format, kOutputs, kCols, &random);
      std::vector<float> x = RandomInput(kRows, kCols, &random);
      const std::vector<float> clean = Multiply(matrix, x.data(), kRows, GetParam(), 1);
      x[kCols + 40] = bad;
      const std::vector<float> y = Multiply(matrix, x.data(), kRows, GetParam(), 1);
      for (int n = 0; n < kOutputs; ++n) {
        EXPECT_EQ(y[n], clean[n]);
        EXPECT_FALSE(std::isfinite(y[kOutputs + n])) << WeightFormatName(format);
        EXPECT_EQ(y[2 * kOutputs + n], clean[2 * kOutputs + n]);
      }
    }
  }
}

TEST_P(MatmulTest, NoRowsIsNothingToDo) {
  std::mt19937 random(9);
  const Matrix matrix(WeightFormat::kPacked4, 16, 32, &random);
  EXPECT_TRUE(Multiply(matrix, nullptr, 0, GetParam(), 2).empty());
}

INSTANTIATE_TEST_SUITE_P(Isas, MatmulTest, ::testing::ValuesIn(AvailableCpuIsas()),
                         [](const auto& info) { return CpuIsaName(info.param); });

TEST(MatmulKernelsTest, TileSizesAreThoseOfTheLayout) {
  EXPECT_EQ(kTileBytes<WeightFormat::kF32>, WeightTileBytes(WeightFormat::kF32));
  EXPECT_EQ(kTileBytes<WeightFormat::kF16>, WeightTileBytes(WeightFormat::kF16));
  EXPECT_EQ(kTileBytes<WeightFormat::kBf16>, WeightTileBytes(WeightFormat::kBf16));
  EXPECT_EQ(kTileBytes<WeightFormat::kPacked4>, WeightTileBytes(WeightFormat::kPacked4));
  EXPECT_EQ(kTileBytes<WeightFormat::kPacked8>, WeightTileBytes(WeightFormat::kPacked8));
}

// Sums of the first row group for one tile of quantized rows.
std::vector<float> GroupSums(const MatmulKernels& kernels, const Matrix& matrix,
                             const QuantizedActivations& x) {
  alignas(64) float sums[kActivationTile * kWeightRowGroup];
  GroupArgs args;
  args.stream = matrix.view().data;
  args.cols = matrix.view().cols;
  args.num_tokens = x.rows;
  args.quantized = x.Tile(0);
  args.sums = sums;
  kernels.by_format[static_cast<int>(matrix.view().format)](args);
  return std::vector<float>(sums, sums + x.rows * kWeightRowGroup);
}

TEST(MatmulKernelsTest, AmxGivesTheResultsOfAvx512BitForBit) {
  if (!CpuHasAmx()) GTEST_SKIP() << "this machine has no AMX";
  std::mt19937 random(11);
  for (const WeightFormat format : {WeightFormat::kPacked4, WeightFormat::kPacked8}) {
    for (const int cols : {32, 64, 96, 128, 160, 576, 768, 800, 1536}) {
      const Matrix matrix(format, kWeightRowGroup, cols, &random);
      for (int rows = 1; rows <= kActivationTile; ++rows) {
        const std::vector<float> x = RandomInput(rows, cols, &random);
        MatmulScratch scratch;
        const QuantizedActivations quantized = PlaceQuantizedActivations(
            scratch.Reserve(QuantizedActivationsBytes(rows, cols)), rows, cols);
        for (int row = 0; row < rows; ++row) {
          QuantizeRow(&x[row * cols], row, CpuIsa::kAvx512Vnni, quantized);
        }
        ASSERT_EQ(GroupSums(kAmxMatmulKernels, matrix, quantized),
                  GroupSums(kAvx512VnniMatmulKernels, matrix, quantized))
            << WeightFormatName(format) << " T " << rows << " K " << cols;
      }
    }
  }
}

TEST(MatmulScratchTest, GrowsOnceAndKeepsItsMemory) {
  MatmulScratch scratch;
  std::byte* const large = scratch.Reserve(100000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(large) % 64, 0u);
  EXPECT_EQ(scratch.Reserve(5), large);
  EXPECT_EQ(scratch.Reserve(100000), large);
}

TEST(EmbedTest, RowsAreLookedUpAndScaled) {
  constexpr int kVocab = 50, kCols = 96;
  std::mt19937 random(10);
  for (const WeightFormat format : kFormats) {
    const Matrix table(format, kVocab, kCols, &random);
    for (int num_tokens : {1, 7, 200}) {
      std::vector<TokenId> tokens(num_tokens);
      for (TokenId& token : tokens) token = static_cast<TokenId>(random() % kVocab);
      std::vector<float> out(num_tokens * kCols);
      ThreadPool pool(2);
      Embed({table.view(), tokens.data(), num_tokens, 0.5f, out.data()}, &pool);
      for (int t = 0; t < num_tokens; ++t) {
        const std::vector<float> row = table.Row(tokens[t]);
        for (int col = 0; col < kCols; ++col) ASSERT_EQ(out[t * kCols + col], row[col] * 0.5f);
      }
    }
  }
}

}  // namespace
}  // namespace condense::cpu
