#include "tools/generation_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::HasSubstr;

TEST(GenerationFlagsTest, LogitBiasesAreIdAndValue) {
  GenerationFlags flags;
  flags.logit_bias = {"7=-1.5", "8=100"};
  v1::GenerateRequest request;
  ASSERT_TRUE(flags.Fill(&request).ok());
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(7), -1.5f);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(8), 100.0f);
  for (const char* bad : {"", "7", "=1", "7=", "x=1", "7=x", "7=1=2"}) {
    flags.logit_bias = {bad};
    const absl::Status status = flags.Fill(&request);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--logit_bias")) << bad;
  }
}

TEST(GenerationFlagsTest, CompressionIsSentOnlyIfItIsGiven) {
  GenerationFlags flags;
  v1::GenerateRequest request;
  ASSERT_TRUE(flags.Fill(&request).ok());
  EXPECT_FALSE(request.has_compression());
  flags.compression.ratio = 6.5;
  ASSERT_TRUE(flags.Fill(&request).ok());
  EXPECT_EQ(request.compression().ratio(), 6.5);
  EXPECT_FALSE(request.compression().has_preset());
  EXPECT_FALSE(request.compression().has_policy());
}

TEST(GenerationFlagsTest, WithoutATimeoutRequestsMayTakeForever) {
  GenerationFlags flags;
  EXPECT_EQ(flags.timeout(), absl::InfiniteDuration());
  flags.timeout_seconds = 0.25;
  EXPECT_EQ(flags.timeout(), absl::Milliseconds(250));
}

}  // namespace
}  // namespace condense
