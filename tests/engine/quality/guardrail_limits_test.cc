#include "engine/quality/guardrail_limits.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <string>

#include "engine/quality/guardrail.h"
#include "tests/engine/quality/guardrail_driver.h"

namespace condense {
namespace {

TEST(GuardrailLimitsTest, DefaultsAreTheDesigns) {
  const GuardrailLimits limits;
  EXPECT_TRUE(Validate(limits).ok()) << Validate(limits).message();
  struct Row {
    Guard guard;
    double warning, limit;
  };
  const Row rows[] = {{Guard::kHitRatio, 0.92, 0.85},
                      {Guard::kHitRatioTail, 0.80, 0.70},
                      {Guard::kMergeLatency, 1e-3, 2e-3},
                      {Guard::kMemoryFluctuation, 0.05, 0.1},
                      {Guard::kDrift, 0.01, 0.02},
                      {Guard::kCanary, 0.95, 0.90},
                      {Guard::kFirstToken, 0.07, 0.15},
                      {Guard::kMemory, 0.9, 1},
                      {Guard::kTtft, 0, 0},
                      {Guard::kInterToken, 0, 0}};
  ASSERT_EQ(std::size(rows), AllGuards().size());
  for (const Row& row : rows) {
    const GuardLimit& limit = limits.*TraitsOf(row.guard).limit;
    EXPECT_EQ(limit.warning, row.warning) << TraitsOf(row.guard).label;
    EXPECT_EQ(limit.limit, row.limit) << TraitsOf(row.guard).label;
    EXPECT_EQ(limit.bound, row.limit > 0) << TraitsOf(row.guard).label;
  }
  EXPECT_EQ(limits.uncompressed_dwell, absl::Seconds(60));
  EXPECT_EQ(limits.first_probation_share, 0.10);
  EXPECT_EQ(limits.second_probation_share, 0.50);
}

TEST(GuardrailLimitsTest, WhatCannotBeIsRefusedByName) {
  struct Row {
    std::function<void(GuardrailLimits*)> spoil;
    std::string message;
  };
  const Row rows[] = {
      {[](auto* l) { l->hit_ratio.limit = 0.96; },
       "hit_ratio_warning is 0.92, must be above the limit 0.96"},
      {[](auto* l) { l->drift.warning = 0.02; },
       "drift_warning is 0.02, must be below the limit 0.02"},
      {[](auto* l) { l->canary.warning = 1.5; }, "canary_warning is 1.5, must be in [0, 1]"},
      {[](auto* l) { l->drift.limit = NAN; }, "drift_limit is nan"},
      {[](auto* l) { l->first_token.limit = INFINITY; }, "first_token_limit is inf"},
      {[](auto* l) { l->memory.min_samples = 0; }, "memory_min_samples is 0, must be in [1, "},
      {[](auto* l) { l->merge_latency.window = absl::ZeroDuration(); },
       "merge_latency_window is 0"},
      {[](auto* l) { l->merge_latency.limit = 0.1; }, "hysteresis is 0.1, must be at most 0.0101"},
      {[](auto* l) { l->hit_ratio.warning = 0.995; }, "for hit_ratio"},
      {[](auto* l) { l->ttft.bound = true; }, "ttft_warning is 0, must be below the limit 0"},
      {[](auto* l) { l->hysteresis = -1; }, "hysteresis is -1"},
      {[](auto* l) { l->confidence = 1; }, "confidence is 1"},
      {[](auto* l) { l->warning_windows = 0; }, "warning_windows is 0"},
      {[](auto* l) { l->limit_windows = 1; }, "limit_windows is 1, must be in [3, 1000]"},
      {[](auto* l) { l->clear_windows = 0; }, "clear_windows is 0"},
      {[](auto* l) { l->probation_windows = -1; }, "probation_windows is -1"},
      {[](auto* l) { l->max_notches = -1; }, "max_notches is -1"},
      {[](auto* l) { l->max_raised = -1; }, "max_raised is -1"},
      {[](auto* l) { l->widen_windows = 0; }, "widen_windows is 0"},
      {[](auto* l) { l->first_probation_share = 0; }, "first_probation_share is 0"},
      {[](auto* l) { l->second_probation_share = 0.05; },
       "second_probation_share is 0.05, must be in [0.1, 1]"},
      {[](auto* l) { l->evaluation_window = absl::ZeroDuration(); }, "evaluation_window is 0"},
      {[](auto* l) { l->forget_after = absl::Seconds(1); },
       "forget_after is 1s, must be at least 10s"},
      {[](auto* l) { l->holding_dwell = absl::ZeroDuration(); }, "holding_dwell is 0"},
      {[](auto* l) { l->uncompressed_dwell = -absl::Seconds(1); }, "uncompressed_dwell is -1s"},
      {[](auto* l) { l->probation_dwell = absl::InfiniteDuration(); }, "probation_dwell is inf"},
      {[](auto* l) { l->flap_window = absl::ZeroDuration(); }, "flap_window is 0"},
      {[](auto* l) { l->restore_after = absl::ZeroDuration(); }, "restore_after is 0"},
      {[](auto* l) { l->max_dwell = absl::Seconds(59); }, "max_dwell is 59s, must be at least 1m"},
  };
  for (const Row& row : rows) {
    GuardrailLimits limits;
    row.spoil(&limits);
    const absl::Status status = Validate(limits);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << row.message;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(row.message));
    EXPECT_EQ(Guardrail::Make(limits, absl::UnixEpoch()).status(), status);
  }
}

}  // namespace
}  // namespace condense
