#include "kernels/cpu/cpu_features.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace condense::cpu {
namespace {

using ::testing::Optional;

TEST(CpuFeaturesTest, NamesAndIsasCorrespond) {
  for (const CpuIsa isa : {CpuIsa::kScalar, CpuIsa::kAvx2, CpuIsa::kAvx512Vnni}) {
    EXPECT_THAT(ParseCpuIsa(CpuIsaName(isa)), Optional(isa));
  }
  EXPECT_STREQ(CpuIsaName(CpuIsa::kScalar), "scalar");
  EXPECT_STREQ(CpuIsaName(CpuIsa::kAvx2), "avx2");
  EXPECT_STREQ(CpuIsaName(CpuIsa::kAvx512Vnni), "avx512vnni");
}

TEST(CpuFeaturesTest, UnknownNamesParseToNothing) {
  for (const char* name : {"", "auto", "AVX2", "avx", "avx2 ", "avx512"}) {
    EXPECT_EQ(ParseCpuIsa(name), std::nullopt) << name;
  }
}

TEST(CpuFeaturesTest, AvailableOnesAscendFromScalarToTheDetectedOne) {
  const std::vector<CpuIsa> isas = AvailableCpuIsas();
  ASSERT_FALSE(isas.empty());
  EXPECT_EQ(isas.front(), CpuIsa::kScalar);
  EXPECT_EQ(isas.back(), DetectCpuIsa());
  EXPECT_TRUE(std::is_sorted(isas.begin(), isas.end()));
  for (const CpuIsa isa : isas) EXPECT_TRUE(CpuHas(isa)) << CpuIsaName(isa);
}

}  // namespace
}  // namespace condense::cpu
