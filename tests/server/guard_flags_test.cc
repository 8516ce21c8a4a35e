#include "server/guard_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/flags/reflection.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

// Flags are back at their defaults afterwards.
class GuardFlagsTest : public ::testing::Test {
 protected:
  void Set(const std::string& flag, const std::string& value) {
    std::string error;
    ASSERT_TRUE(absl::FindCommandLineFlag(flag)->ParseFrom(value, &error)) << error;
  }
  absl::Status Fill() {
    config_.compaction.enabled = true;
    return FillGuard(&config_);
  }

  const absl::FlagSaver saver_;
  EngineConfig config_;
};

TEST_F(GuardFlagsTest, AnSloBindsLimitsBesideWhatFlagsSet) {
  Set("guard", "true");
  Set("guard_hit_ratio_limit", "0.8");
  Set("slo", "drift<=1% over 30m, ttft_p99<=500ms");
  ASSERT_TRUE(Fill().ok()) << Fill().message();
  EXPECT_EQ(config_.guard_limits.hit_ratio.limit, 0.8);
  EXPECT_EQ(config_.guard_limits.drift.limit, 0.01);
  EXPECT_EQ(config_.guard_limits.drift.warning, 0.005);
  EXPECT_EQ(config_.guard_limits.drift.window, absl::Minutes(30));
  EXPECT_TRUE(config_.guard_limits.ttft.bound);
  EXPECT_FALSE(config_.guard_limits.inter_token.bound);
  EXPECT_TRUE(Validate(config_.guard_limits).ok());
}

TEST_F(GuardFlagsTest, WhatContradictsIsRefusedNamingBoth) {
  struct Row {
    std::vector<std::pair<std::string, std::string>> flags;
    std::string message;
  };
  const Row rows[] = {
      {{{"guard", "true"}, {"slo", "drift<=1%"}, {"guard_drift_limit", "0.03"}},
       "--guard_drift_limit is 0.03 and --slo binds drift; one of them must be left out"},
      {{{"guard", "true"}, {"slo", "canary>=0.8"}, {"guard_canary_warning", "0.97"}},
       "--guard_canary_warning is 0.97 and --slo binds canary"},
      {{{"guard", "true"}, {"slo", "merge_latency<=1ms"}, {"guard_merge_latency_limit", "3ms"}},
       "--guard_merge_latency_limit is 3ms and --slo binds merge_latency"},
      {{{"guard", "false"}, {"slo", "drift<=1%"}},
       "--slo is \"drift<=1%\", but nothing is guarded"},
      {{{"guard", "true"}, {"slo", "drift>=1%"}}, "slo term \"drift>=1%\": its sign is \">=\""},
  };
  for (const Row& row : rows) {
    const absl::FlagSaver saver;
    for (const auto& [flag, value] : row.flags) Set(flag, value);
    const absl::Status status = Fill();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.message));
  }
}

}  // namespace
}  // namespace condense
