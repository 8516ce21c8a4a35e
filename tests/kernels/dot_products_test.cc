#include "kernels/dot_products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "kernels/cpu/cpu_features.h"
#include "kernels/cpu/vector_kernels.h"
#include "tests/kernels/backend_fixture.h"

namespace condense {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

// [m, stride], made by one instruction set; scratch and the elements that are not written hold NaN.
std::vector<float> Products(cpu::CpuIsa isa, const std::vector<float>& rows, int32_t head_dim) {
  const auto m = static_cast<int32_t>(rows.size()) / head_dim;
  const int32_t stride = DotProductStride(m);
  std::vector<float> scratch(head_dim * stride, kNan), out(m * stride, kNan);
  cpu::GetVectorKernels(isa).dot_products({.rows = rows.data(),
                                           .num_rows = m,
                                           .head_dim = head_dim,
                                           .scratch = scratch.data(),
                                           .out = out.data()});
  return out;
}

class DotProductsTest : public testing::TestWithParam<cpu::CpuIsa> {};

TEST_P(DotProductsTest, AreSumsOfProductsRightOfTheDiagonal) {
  for (const int32_t head_dim : {8, 24, 64, 128}) {
    for (const int32_t m : {1, 2, 5, 31, 32, 33, 71, 128}) {
      const std::vector<float> rows = RandomFloats(m * head_dim, m);
      const std::vector<float> out = Products(GetParam(), rows, head_dim);
      for (int32_t i = 0; i < m; ++i) {
        for (int32_t j = i; j < m; ++j) {
          double sum = 0.0, size = 0.0;
          for (int32_t d = 0; d < head_dim; ++d) {
            const double product = double{rows[i * head_dim + d]} * rows[j * head_dim + d];
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(out[i * DotProductStride(m) + j], sum, std::ldexp(head_dim * size, -24))
              << i << ", " << j << " of " << m << " rows of " << head_dim;
        }
      }
    }
  }
}

TEST_P(DotProductsTest, DependOnTheTwoRowsAlone) {
  constexpr int32_t kDim = 64, kRows = 67, kStride = DotProductStride(kRows);
  const std::vector<float> rows = RandomFloats(kRows * kDim, 1);
  const std::vector<float> all = Products(GetParam(), rows, kDim);
  for (int32_t i = 0; i < kRows; i += 3) {
    for (int32_t j = i + 1; j < kRows; j += 5) {
      // The later one first: products commute.
      std::vector<float> two(rows.begin() + j * kDim, rows.begin() + (j + 1) * kDim);
      two.insert(two.end(), rows.begin() + i * kDim, rows.begin() + (i + 1) * kDim);
      const float alone = Products(GetParam(), two, kDim)[1];
      ASSERT_EQ(alone, all[i * kStride + j]) << i << ", " << j;
    }
  }
}

TEST_P(DotProductsTest, ARowThatIsNotFiniteSpoilsNoOther) {
  constexpr int32_t kDim = 16, kRows = 37, kStride = DotProductStride(kRows);
  std::vector<float> rows = RandomFloats(kRows * kDim, 2);
  rows[20 * kDim + 3] = kNan;
  const std::vector<float> out = Products(GetParam(), rows, kDim);
  for (int32_t i = 0; i < kRows; ++i) {
    for (int32_t j = i; j < kRows; ++j) {
      EXPECT_EQ(std::isnan(out[i * kStride + j]), i == 20 || j == 20) << i << ", " << j;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, DotProductsTest,
                         testing::ValuesIn(cpu::AvailableCpuIsas()),
                         [](const auto& info) { return cpu::CpuIsaName(info.param); });

TEST(DotProductsOfTheHostTest, AreThoseOfTheBestInstructionSet) {
  constexpr int32_t kDim = 64, kRows = 40, kStride = DotProductStride(kRows);
  const std::vector<float> rows = RandomFloats(kRows * kDim, 3);
  const std::vector<float> expected = Products(cpu::DetectCpuIsa(), rows, kDim);
  std::vector<float> scratch(kDim * kStride), out(kRows * kStride, kNan);
  DotProducts({.rows = rows.data(),
               .num_rows = kRows,
               .head_dim = kDim,
               .scratch = scratch.data(),
               .out = out.data()});
  for (int32_t i = 0; i < kRows; ++i) {
    for (int32_t j = i; j < kRows; ++j) EXPECT_EQ(out[i * kStride + j], expected[i * kStride + j]);
  }
  DotProducts({.head_dim = kDim});  // of nothing
}

}  // namespace
}  // namespace condense
