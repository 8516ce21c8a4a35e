#include "tools/samples.h"

#include <gtest/gtest.h>

namespace condense {
namespace {

TEST(SamplesTest, PercentilesLieLinearlyBetweenValues) {
  Samples samples;
  for (const double value : {40.0, 10.0, 30.0, 20.0}) samples.Add(value);
  EXPECT_DOUBLE_EQ(samples.Percentile(0.0), 10.0);
  EXPECT_DOUBLE_EQ(samples.Median(), 25.0);
  EXPECT_DOUBLE_EQ(samples.Percentile(0.9), 37.0);
  EXPECT_DOUBLE_EQ(samples.Percentile(1.0), 40.0);
  EXPECT_DOUBLE_EQ(samples.Mean(), 25.0);
}

TEST(SamplesTest, RepeatedValuesCountAsOften) {
  Samples samples, others;
  samples.Add(1.0, 3);
  others.Add(5.0);
  samples.Add(others);
  EXPECT_EQ(samples.count(), 4u);
  EXPECT_DOUBLE_EQ(samples.Mean(), 2.0);
  EXPECT_DOUBLE_EQ(samples.Median(), 1.0);
}

TEST(SamplesTest, AnEmptySetGivesZero) {
  EXPECT_DOUBLE_EQ(Samples().Mean(), 0.0);
  EXPECT_DOUBLE_EQ(Samples().Percentile(0.99), 0.0);
}

}  // namespace
}  // namespace condense
