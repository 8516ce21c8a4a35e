#include "server/convert_compression.h"

#include <gmock/gmock.h>
#include <google/protobuf/text_format.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "cache/policies/registry.h"

namespace condense {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int32_t kWindow = 96;

absl::StatusOr<std::optional<Compression>> Convert(const std::string& text) {
  v1::Compression message;
  EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(text, &message)) << text;
  return ToCompression(message, kWindow);
}

std::string Refusal(const absl::Status& status) {
  if (status.ok()) return "accepted";
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}
std::string Refusal(const std::string& text) { return Refusal(Convert(text).status()); }

TEST(ConvertCompressionTest, AnEmptyMessageAsksForNothing) {
  const auto none = Convert("");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->has_value());
}

TEST(ConvertCompressionTest, EveryPresetIsWhatTheCacheMakesOfItInTheServersWindow) {
  for (const std::string& name : PresetNames()) {
    const auto converted = Convert("preset: '" + name + "'");
    ASSERT_TRUE(converted.ok() && converted->has_value()) << name << converted.status();
    const Compression expected = MakeCompression(name).value();
    EXPECT_EQ((*converted)->preset, name);
    EXPECT_EQ((*converted)->policy, expected.policy);
    EXPECT_EQ((*converted)->ratio, expected.ratio);
    EXPECT_EQ((*converted)->formats, expected.formats);
    EXPECT_EQ((*converted)->max_output_error, expected.max_output_error);
    EXPECT_EQ((*converted)->cluster_window, kWindow);
  }
}

TEST(ConvertCompressionTest, EveryPolicyIsKnown) {
  for (const PolicyInfo& policy : RegisteredPolicies()) {
    const auto converted = Convert("policy: '" + std::string(policy.name) + "'");
    ASSERT_TRUE(converted.ok() && converted->has_value()) << converted.status();
    EXPECT_EQ((*converted)->policy, policy.name);
  }
}

TEST(ConvertCompressionTest, WithoutAPresetOverridesChangeTheDefaultOne) {
  const auto converted = Convert("ratio: 6.5");
  ASSERT_TRUE(converted.ok() && converted->has_value()) << converted.status();
  EXPECT_EQ((*converted)->ratio, 6.5);
  EXPECT_EQ((*converted)->policy, MakeCompression(kDefaultPreset)->policy);
  const auto edges = {Convert("ratio: 1"), Convert("ratio: 16")};
  for (const auto& edge : edges) EXPECT_TRUE(edge.ok()) << edge.status();
}

TEST(ConvertCompressionTest, RefusalsNameFieldValueAndLimits) {
  const struct {
    const char* message;
    const char* begin;
    const char* part;
  } cases[] = {
      {"preset: ''", "compression.preset is \"\"", "must be one of off, lossless, light"},
      {"preset: 'Balanced'", "compression.preset is \"Balanced\"", "must be one of"},
      {"preset: 'custom'", "compression.preset is \"custom\"", "must be one of"},
      {"preset: 'a\\nb'", "compression.preset has the control character 0x0a", "none is allowed"},
      {"policy: ''", "compression.policy is \"\"", "must be one of none, balanced"},
      {"policy: 'best'", "compression.policy is \"best\"", "must be one of none, balanced"},
      {"ratio: nan", "compression.ratio is nan", "must be in [1, 16]"},
      {"ratio: inf", "compression.ratio is inf", "must be in [1, 16]"},
      {"ratio: -4", "compression.ratio is -4", "must be in [1, 16]"},
      {"ratio: 0", "compression.ratio is 0", "must be in [1, 16]"},
      {"ratio: 0.999", "compression.ratio is 0.999", "must be in [1, 16]"},
      {"ratio: 1e308", "compression.ratio is 1e+308", "must be in [1, 16]"},
      {"preset: 'off' ratio: 4", "compression.ratio is 4", "compression.preset is \"off\""},
      {"preset: 'off' policy: 'none'", "compression.policy is \"none\"",
       "compression.preset is \"off\""},
      {"preset: 'light' policy: 'x' ratio: 2", "compression.policy is \"x\"", "must be one of"},
  };
  for (const auto& bad : cases) {
    const std::string refusal = Refusal(bad.message);
    EXPECT_THAT(refusal, StartsWith(bad.begin)) << bad.message;
    EXPECT_THAT(refusal, HasSubstr(bad.part)) << bad.message;
  }
}

TEST(ConvertCompressionTest, LongNamesAreNotQuoted) {
  v1::Compression message;
  message.set_preset(std::string(1'000'000, 'x'));
  EXPECT_EQ(Refusal(ToCompression(message, kWindow).status()),
            "compression.preset has 1000000 bytes; at most 64");
  message.Clear();
  message.set_policy(std::string(65, 'x'));
  EXPECT_EQ(Refusal(ToCompression(message, kWindow).status()),
            "compression.policy has 65 bytes; at most 64");
}

TEST(ConvertCompressionTest, FlagsNameThemselves) {
  const auto balanced = CompressionOfFlags("balanced", "", 0, kWindow);
  ASSERT_TRUE(balanced.ok()) << balanced.status();
  EXPECT_EQ(balanced->preset, "balanced");
  EXPECT_EQ(balanced->cluster_window, kWindow);
  const auto changed = CompressionOfFlags("light", "similarity", 5, kWindow);
  ASSERT_TRUE(changed.ok()) << changed.status();
  EXPECT_EQ(changed->policy, "similarity");
  EXPECT_EQ(changed->ratio, 5);
  EXPECT_FALSE(CompressionOfFlags("off", "", 0, kWindow)->active());

  const auto refusal = [](const char* preset, const char* policy, double ratio) {
    return Refusal(CompressionOfFlags(preset, policy, ratio, kWindow).status());
  };
  EXPECT_THAT(refusal("none", "", 0), StartsWith("--preset is \"none\""));
  EXPECT_THAT(refusal("light", "x", 0), StartsWith("--policy is \"x\""));
  EXPECT_THAT(refusal("light", "", 17), StartsWith("--ratio is 17; must be in [1, 16]"));
  EXPECT_THAT(refusal("light", "", -0.5), StartsWith("--ratio is -0.5"));
  EXPECT_THAT(refusal("light", "", std::numeric_limits<double>::quiet_NaN()),
              StartsWith("--ratio is nan"));
  EXPECT_THAT(refusal("off", "", 4), HasSubstr("--preset is \"off\""));
}

TEST(ConvertCompressionTest, ModesAreThoseThatMayLastAndAuto) {
  EXPECT_EQ(*ToForcedMode("holding"), GuardrailMode::kHolding);
  EXPECT_EQ(*ToForcedMode("compacting"), GuardrailMode::kCompacting);
  EXPECT_EQ(*ToForcedMode("uncompressed"), GuardrailMode::kUncompressed);
  ASSERT_TRUE(ToForcedMode("auto").ok());
  EXPECT_FALSE(ToForcedMode("auto")->has_value());
  for (const char* mode : {"", "probation", "Holding", "off"}) {
    EXPECT_EQ(Refusal(ToForcedMode(mode).status()),
              "mode is \"" + std::string(mode) +
                  "\"; must be one of auto, compacting, holding, uncompressed");
  }
  EXPECT_THAT(Refusal(ToForcedMode(std::string(65, 'a')).status()), StartsWith("mode has 65"));
}

TEST(ConvertCompressionTest, AReadingIsToldWithItsBoundsWhereTheyAreKnown) {
  GuardReports reports;
  reports[static_cast<size_t>(Guard::kHitRatio)] = {
      Reading{.value = 0.9, .samples = 40, .upper = 0.95}, GuardLevel::kWarning};
  reports[static_cast<size_t>(Guard::kMemoryFluctuation)] = {
      Reading{.value = 0.5, .samples = 3, .lower = 0.4}, GuardLevel::kBroken};
  google::protobuf::RepeatedPtrField<v1::GuardReading> messages;
  FillGuardReadings(reports, GuardrailLimits(), &messages);
  ASSERT_EQ(messages.size(), kNumGuards);
  const v1::GuardReading& hits = messages[static_cast<int>(Guard::kHitRatio)];
  EXPECT_EQ(hits.guard(), "hit_ratio");
  EXPECT_EQ(hits.value(), 0.9);
  EXPECT_EQ(hits.samples(), 40);
  EXPECT_FALSE(hits.has_lower());
  EXPECT_EQ(hits.upper(), 0.95);
  EXPECT_EQ(hits.warning(), 0.92);
  EXPECT_EQ(hits.limit(), 0.85);
  EXPECT_EQ(hits.min_samples(), 32);
  EXPECT_EQ(hits.level(), "warning");
  const v1::GuardReading& fluctuation = messages[static_cast<int>(Guard::kMemoryFluctuation)];
  EXPECT_EQ(fluctuation.lower(), 0.4);
  EXPECT_FALSE(fluctuation.has_upper());
  EXPECT_EQ(fluctuation.level(), "broken");
  EXPECT_FALSE(messages[static_cast<int>(Guard::kDrift)].has_value());
}

TEST(ConvertCompressionTest, AStateTellsTheDefaultAndTheWholeCache) {
  Compression compression;
  compression.preset = "light";
  compression.policy = "none";
  compression.ratio = 2.75;
  compression.formats = {KvFormat::kK6V4, KvFormat::kK4V3};
  EngineLoad load;
  load.compaction_mode = "holding";
  load.compaction_reason = "hit ratio";
  load.kv_bytes_used = 1000;
  load.kv_bytes_16bit = 2500;
  load.staging_bytes = 30;
  load.slack_bytes = 40;
  load.jobs_out = 5;
  load.swaps = {.accepted = 1, .refused = 2, .useless = 3, .failed = 4, .dropped = 5};
  v1::CompressionState state;
  FillCompressionState(compression, true, load, &state);
  EXPECT_EQ(state.preset(), "light");
  EXPECT_EQ(state.policy(), "none");
  EXPECT_EQ(state.ratio(), 2.75);
  EXPECT_THAT(state.formats(), ElementsAre("k6v4", "k4v3"));
  EXPECT_TRUE(state.paused());
  EXPECT_EQ(state.mode(), "holding");
  EXPECT_EQ(state.mode_reason(), "hit ratio");
  EXPECT_EQ(state.bytes_held(), 1000);
  EXPECT_EQ(state.bytes_16bit(), 2500);
  EXPECT_EQ(state.ratio_held(), 2.5);
  EXPECT_EQ(state.staging_bytes(), 30);
  EXPECT_EQ(state.slack_bytes(), 40);
  EXPECT_EQ(state.jobs_out(), 5);
  EXPECT_EQ(state.swaps().accepted(), 1u);
  EXPECT_EQ(state.swaps().refused(), 2u);
  EXPECT_EQ(state.swaps().useless(), 3u);
  EXPECT_EQ(state.swaps().failed(), 4u);
  EXPECT_EQ(state.swaps().dropped(), 5u);
  FillCompressionState(compression, false, EngineLoad(), &state);
  EXPECT_EQ(state.ratio_held(), 1.0);  // nothing is held
}

}  // namespace
}  // namespace condense
