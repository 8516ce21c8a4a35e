#include "engine/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

std::string Refusal(const absl::Status& status) {
  if (status.ok()) return "accepted";
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  return std::string(status.message());
}

template <typename Change>
std::string CompactionRefusal(Change change) {
  EngineConfig config;
  config.model_path = "m";
  change(&config.compaction);
  return Refusal(config.Validate());
}

TEST(ConfigTest, DefaultsAreValidAndUncompressed) {
  EngineConfig config;
  config.model_path = "m";
  EXPECT_EQ(Refusal(config.Validate()), "accepted");
  EXPECT_FALSE(config.compression.active());
  EXPECT_EQ(config.compression.preset, "off");
}

TEST(ConfigTest, CompactionRefusalsNameFieldValueAndLimits) {
  using Config = CompactionConfig;
  const auto refusal = [](auto change) { return CompactionRefusal(change); };
  EXPECT_EQ(refusal([](Config* c) { c->swap_every = 0; }), "swap_every is 0; must be in 1..1024");
  EXPECT_EQ(refusal([](Config* c) { c->cluster_window = 1; }),
            "cluster_window is 1; must be in 2..65536");
  EXPECT_THAT(refusal([](Config* c) { c->staging_memory_bytes = -1; }),
              StartsWith("staging_memory is -1; must be in 0.."));
  EXPECT_EQ(refusal([](Config* c) { c->pool_preallocate = 1.5; }),
            "pool_preallocate is 1.5; must be in 0.001..1");
  EXPECT_EQ(refusal([](Config* c) { c->pool_grow_at = kNan; }),
            "pool_grow_at is nan; must be in 0.001..1");
  EXPECT_EQ(refusal([](Config* c) { c->pool_grow_by = 0; }),
            "pool_grow_by is 0; must be in 0.001..1");
  EXPECT_THAT(refusal([](Config* c) { c->pool_cap_bytes = 1; }),
              StartsWith("pool_cap_bytes is 1; must be in 65536.."));
  EXPECT_EQ(refusal([](Config* c) { c->mark_at = -0.1; }), "mark_at is -0.1; must be in 0..1");
  EXPECT_EQ(refusal([](Config* c) { c->step_time = absl::Microseconds(99); }),
            "compaction_step_time is 99us; must be in 100us..1s");
  EXPECT_EQ(refusal([](Config* c) { c->step_time = absl::Milliseconds(1001); }),
            "compaction_step_time is 1.001s; must be in 100us..1s");
  EXPECT_EQ(refusal([](Config* c) { c->step_share = -0.1; }),
            "compaction_step_share is -0.1; must be in 0..1");
  EXPECT_EQ(refusal([](Config* c) { c->step_share = 1.1; }),
            "compaction_step_share is 1.1; must be in 0..1");
  EXPECT_EQ(refusal([](Config* c) { c->soft_limit = 0.3; }),
            "soft_limit is 0.3; must be in 0.4..1");
  EXPECT_EQ(refusal([](Config* c) { c->hard_limit = 0.6; }),
            "hard_limit is 0.6; must be in 0.7..1");
  EXPECT_EQ(refusal([](Config* c) { c->hard_limit = kNan; }),
            "hard_limit is nan; must be in 0.7..1");
  EXPECT_EQ(refusal([](Config* c) { c->grace_tokens = -1; }),
            "grace_tokens is -1; must be in 0..65536");
  EXPECT_EQ(refusal([](Config* c) { c->drop_share = 2; }), "drop_share is 2; must be in 0.001..1");
}

TEST(ConfigTest, StagingIsAtMostHalfOfAGivenMemory) {
  EngineConfig config;
  config.model_path = "m";
  config.kv_memory_bytes = 1000;
  config.compaction.staging_memory_bytes = 500;
  EXPECT_EQ(Refusal(config.Validate()), "accepted");
  config.compaction.staging_memory_bytes = 501;
  EXPECT_EQ(Refusal(config.Validate()), "staging_memory is 501; must be in 0..500");
}

TEST(ConfigTest, PresetsPassAndHandMadeCompressionsAreChecked) {
  for (const std::string& name : PresetNames()) {
    EXPECT_EQ(Refusal(ValidateCompression(MakeCompression(name).value())), "accepted") << name;
  }
  const auto refusal = [](auto change) {
    Compression compression = MakeCompression("balanced").value();
    change(&compression);
    return Refusal(ValidateCompression(compression));
  };
  EXPECT_THAT(refusal([](Compression* c) { c->policy = ""; }), HasSubstr("policy is \"\""));
  EXPECT_EQ(refusal([](Compression* c) { c->ratio = kNan; }), "ratio is nan; must be in 1..16");
  EXPECT_EQ(refusal([](Compression* c) { c->ratio = 16.5; }), "ratio is 16.5; must be in 1..16");
  EXPECT_THAT(refusal([](Compression* c) { c->min_tokens = -1; }), HasSubstr("min_tokens is -1"));
  EXPECT_THAT(refusal([](Compression* c) { c->cluster_window = 0; }),
              HasSubstr("cluster_window is 0"));
  EXPECT_EQ(refusal([](Compression* c) { c->max_members = 256; }),
            "max_members is 256; must be in 2..255");
  EXPECT_EQ(refusal([](Compression* c) { c->cosine = 1.5f; }), "cosine is 1.5; must be in 0..1");
  EXPECT_THAT(refusal([](Compression* c) { c->max_output_error = kNan; }),
              HasSubstr("max_output_error is nan"));
  EXPECT_THAT(refusal([](Compression* c) { c->max_log_mass_error = -1; }),
              HasSubstr("max_log_mass_error is -1"));
}

TEST(ConfigTest, AGuardNeedsCompactionAndValidLimits) {
  EngineConfig config;
  config.model_path = "m";
  config.guard = true;
  EXPECT_THAT(Refusal(config.Validate()), StartsWith("guard is true and compaction is false"));
  config.compaction.enabled = true;
  EXPECT_EQ(Refusal(config.Validate()), "accepted");
  config.guard_limits.evaluation_window = absl::Milliseconds(1);
  EXPECT_THAT(Refusal(config.Validate()), StartsWith("guard_evaluation_window is 1ms, must be"));
  config.guard = false;
  EXPECT_THAT(Refusal(config.Validate()), StartsWith("guard_evaluation_window is 1ms, must be"));
}

template <typename Change>
std::string ProbesRefusal(Change change) {
  EngineConfig config;
  config.model_path = "m";
  change(&config.probes);
  return Refusal(config.Validate());
}

TEST(ConfigTest, ProbeRefusalsNameFieldValueAndLimits) {
  using Probes = ProbeOptions;
  const auto refusal = [](auto change) { return ProbesRefusal(change); };
  EXPECT_EQ(refusal([](Probes* p) { p->share = -0.1; }), "probe_share is -0.1; must be in 0..1");
  EXPECT_EQ(refusal([](Probes* p) { p->share = 1.5; }), "probe_share is 1.5; must be in 0..1");
  EXPECT_EQ(refusal([](Probes* p) { p->share = kNan; }), "probe_share is nan; must be in 0..1");
  EXPECT_EQ(refusal([](Probes* p) { p->step_share = -1; }),
            "probe_step_share is -1; must be in 0..0.5");
  EXPECT_EQ(refusal([](Probes* p) { p->step_share = 0.51; }),
            "probe_step_share is 0.51; must be in 0..0.5");
  EXPECT_EQ(refusal([](Probes* p) { p->step_share = kNan; }),
            "probe_step_share is nan; must be in 0..0.5");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_interval = absl::Milliseconds(99); }),
            "canary_interval is 99ms; must be 0 or in 100ms..24h");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_interval = -absl::Seconds(1); }),
            "canary_interval is -1s; must be 0 or in 100ms..24h");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_interval = absl::Hours(25); }),
            "canary_interval is 25h; must be 0 or in 100ms..24h");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_interval = absl::InfiniteDuration(); }),
            "canary_interval is inf; must be 0 or in 100ms..24h");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_tokens = 255; }),
            "canary_tokens is 255; must be in 256..1048576");
  EXPECT_EQ(refusal([](Probes* p) { p->canary_tokens = (1 << 20) + 1; }),
            "canary_tokens is 1048577; must be in 256..1048576");
}

TEST(ConfigTest, ProbesAreValidAtTheirLimitsAndOff) {
  const auto refusal = [](auto change) { return ProbesRefusal(change); };
  EXPECT_EQ(refusal([](ProbeOptions* p) {
              *p = {.share = 0,
                    .step_share = 0,
                    .canary_interval = absl::ZeroDuration(),
                    .canary_tokens = 256};
            }),
            "accepted");
  EXPECT_EQ(refusal([](ProbeOptions* p) {
              *p = {.share = 1,
                    .step_share = 0.5,
                    .canary_interval = absl::Hours(24),
                    .canary_tokens = 1 << 20};
            }),
            "accepted");
  EXPECT_EQ(refusal([](ProbeOptions* p) { p->canary_interval = absl::Milliseconds(100); }),
            "accepted");
}

}  // namespace
}  // namespace condense
