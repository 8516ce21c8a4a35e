#include "cache/compression.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cache/policies/registry.h"

namespace condense {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string ErrorOf(const absl::StatusOr<Compression>& compression) {
  EXPECT_EQ(compression.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(compression.status().message());
}

TEST(CompressionTest, PresetsAreWhatTheirNamesPromise) {
  const Compression off = *MakeCompression("off");
  EXPECT_FALSE(off.active());
  EXPECT_EQ(off.policy, "none");
  EXPECT_EQ(off.ratio, 1.0);

  const Compression lossless = *MakeCompression("lossless");
  EXPECT_THAT(lossless.formats, ElementsAre(KvFormat::kK8V8));
  EXPECT_EQ(lossless.policy, "none");
  EXPECT_EQ(lossless.ratio, 1.9);
  EXPECT_FALSE(lossless.centred);

  const Compression light = *MakeCompression("light");
  EXPECT_THAT(light.formats, ElementsAre(KvFormat::kK6V4));
  EXPECT_EQ(light.policy, "none");
  EXPECT_EQ(light.ratio, 2.8);

  const Compression balanced = *MakeCompression("balanced");
  EXPECT_THAT(balanced.formats, ElementsAre(KvFormat::kK4V4));
  EXPECT_EQ(balanced.policy, "balanced");
  EXPECT_EQ(balanced.ratio, 4.35);
  EXPECT_EQ(balanced.cosine, 0.93f);
  EXPECT_TRUE(balanced.centred);

  const Compression aggressive = *MakeCompression("aggressive");
  EXPECT_THAT(aggressive.formats, ElementsAre(KvFormat::kK4V3));
  EXPECT_EQ(aggressive.policy, "balanced");
  EXPECT_EQ(aggressive.ratio, 8.0);
}

TEST(CompressionTest, EachPresetAllowsMoreErrorThanTheOneBefore) {
  EXPECT_THAT(PresetNames(), ElementsAre("off", "lossless", "light", "balanced", "aggressive"));
  Compression before;
  for (const std::string& name : PresetNames()) {
    const Compression preset = *MakeCompression(name);
    EXPECT_EQ(preset.preset, name);
    EXPECT_TRUE(MakePolicy(preset.policy).ok()) << preset.policy;
    if (name == "off") continue;
    if (before.active()) {
      EXPECT_GT(preset.ratio, before.ratio);
      EXPECT_GT(preset.max_output_error, before.max_output_error);
      EXPECT_GE(preset.max_log_mass_error, before.max_log_mass_error);
    }
    before = preset;
  }
}

TEST(CompressionTest, ARatioBringsTheFormatAndTheLimitsThatGoWithIt) {
  const Compression wide = *MakeCompression("aggressive", std::nullopt, 2.0);
  EXPECT_EQ(wide.preset, "custom");
  EXPECT_EQ(wide.policy, "balanced");
  EXPECT_EQ(wide.ratio, 2.0);
  EXPECT_THAT(wide.formats, ElementsAre(KvFormat::kK6V4));
  EXPECT_EQ(wide.max_output_error, MakeCompression("light")->max_output_error);

  const Compression narrow = *MakeCompression("lossless", "similarity", kMaxRatio);
  EXPECT_EQ(narrow.policy, "similarity");
  EXPECT_THAT(narrow.formats, ElementsAre(KvFormat::kK4V3));
  EXPECT_EQ(narrow.max_output_error, MakeCompression("aggressive")->max_output_error);
}

TEST(CompressionTest, APolicyThatNeverMergesNeedsTheNarrowerFormat) {
  const Compression none = *MakeCompression("balanced", "none");
  EXPECT_EQ(none.preset, "custom");
  EXPECT_EQ(none.policy, "none");
  EXPECT_EQ(none.ratio, 4.35);
  EXPECT_THAT(none.formats, ElementsAre(KvFormat::kK4V3));
  EXPECT_EQ(none.max_output_error, MakeCompression("balanced")->max_output_error);
}

TEST(CompressionTest, ARatioOfOneCompactsNothing) {
  EXPECT_THAT(MakeCompression("balanced", std::nullopt, 1.0)->formats, IsEmpty());
}

TEST(CompressionTest, EveryRegisteredPolicyAndEveryAllowedRatioIsActive) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    for (const double ratio : {1.0001, 1.9, 2.8, 3.4, 6.0, 6.1, kMaxRatio}) {
      const auto compression = MakeCompression("light", policy.name, ratio);
      ASSERT_TRUE(compression.ok()) << compression.status();
      EXPECT_EQ(compression->formats.size(), 1u);
      EXPECT_GT(compression->max_output_error, 0.0);
    }
  }
}

TEST(CompressionTest, RefusesNamingFieldValueAndWhatIsAllowed) {
  EXPECT_THAT(ErrorOf(MakeCompression("tiny")),
              AllOf(HasSubstr("compression.preset"), HasSubstr("\"tiny\""),
                    HasSubstr("off, lossless, light, balanced, aggressive")));
  EXPECT_THAT(ErrorOf(MakeCompression("")), HasSubstr("compression.preset is \"\""));
  EXPECT_THAT(
      ErrorOf(MakeCompression("balanced", "magic")),
      AllOf(HasSubstr("compression.policy is \"magic\""), HasSubstr("none"), HasSubstr("window")));
  for (const double ratio : {0.0, 0.999, -2.0, 16.001, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(ErrorOf(MakeCompression("balanced", std::nullopt, ratio)),
                AllOf(HasSubstr("compression.ratio is"), HasSubstr("[1, 16]")))
        << ratio;
  }
  EXPECT_THAT(ErrorOf(MakeCompression("off", "none")),
              AllOf(HasSubstr("compression.policy is \"none\""), HasSubstr("\"off\"")));
  EXPECT_THAT(ErrorOf(MakeCompression("off", std::nullopt, 2.0)),
              AllOf(HasSubstr("compression.ratio is 2"), HasSubstr("\"off\"")));
}

}  // namespace
}  // namespace condense
