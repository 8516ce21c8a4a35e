#include "tools/compression_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace condense {
namespace {

using ::testing::StartsWith;

TEST(CompressionFlagsTest, NothingGivenIsUncompressed) {
  const CompressionFlags flags;
  EXPECT_FALSE(flags.given());
  EXPECT_FALSE(flags.Make()->active());
  EXPECT_EQ(flags.ToMessage().SerializeAsString(), "");
}

TEST(CompressionFlagsTest, OverridesChangeThePresetOrBalanced) {
  CompressionFlags flags;
  flags.preset = "light";
  EXPECT_EQ(flags.Make()->preset, "light");
  flags.preset.reset();
  flags.ratio = 5.0;
  const Compression made = flags.Make().value();
  EXPECT_EQ(made.ratio, 5.0);
  EXPECT_EQ(made.policy, MakeCompression("balanced")->policy);
  flags.policy = "similarity";
  EXPECT_EQ(flags.Make()->policy, "similarity");
  EXPECT_EQ(flags.ToMessage().policy(), "similarity");
}

TEST(CompressionFlagsTest, RefusalsNameTheFlag) {
  const auto refusal = [](auto change) {
    CompressionFlags flags;
    change(&flags);
    const absl::Status status = flags.Make().status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(status.message());
  };
  using Flags = CompressionFlags;
  EXPECT_THAT(refusal([](Flags* f) { f->preset = ""; }), StartsWith("--preset is \"\""));
  EXPECT_THAT(refusal([](Flags* f) { f->policy = "best"; }), StartsWith("--policy is \"best\""));
  EXPECT_THAT(refusal([](Flags* f) { f->ratio = 1e308; }), StartsWith("--ratio is 1e+308"));
  EXPECT_THAT(refusal([](Flags* f) { f->ratio = std::numeric_limits<double>::quiet_NaN(); }),
              StartsWith("--ratio is nan"));
  EXPECT_THAT(refusal([](Flags* f) { f->preset = "off", f->ratio = 2; }),
              StartsWith("--ratio is 2"));
}

}  // namespace
}  // namespace condense
