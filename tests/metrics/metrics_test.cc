#include "metrics/metrics.h"

#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/metrics/documented_metrics.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(MetricsTest, WhatIsDocumentedIsEmittedAndTheReverse) {
  Metrics metrics("tiny");
  metrics.SetModelInfo("llama", "cpu", "avx2");
  metrics.SetKvConfig(32, 1024);
  const MetricRows emitted = ParseExposition(metrics.Serialize());
  const MetricRows documented = ReadMetricsPage(CONDENSE_METRICS_PAGE);
  ASSERT_FALSE(emitted.empty());

  for (auto [name, row] : emitted) {
    const auto found = documented.find(name);
    if (found != documented.end()) row.unit = found->second.unit;
    ASSERT_NE(found, documented.end()) << "missing on the page: " << FormatRow(name, row);
    EXPECT_EQ(FormatRow(name, found->second), FormatRow(name, row));
  }
  for (const auto& [name, row] : documented) {
    EXPECT_TRUE(emitted.contains(name)) << name << " is documented but not emitted";
  }
}

TEST(MetricsTest, DocumentedUnitsAgreeWithTheNames) {
  const MetricRows documented = ReadMetricsPage(CONDENSE_METRICS_PAGE);
  ASSERT_FALSE(documented.empty());
  for (const auto& [name, row] : documented) {
    EXPECT_FALSE(row.unit.empty()) << name;
    for (const std::string unit : {"seconds", "bytes", "tokens"}) {
      if (name.find(unit) != std::string::npos) {
        EXPECT_EQ(row.unit, unit) << name;
      }
    }
    EXPECT_EQ(row.type == "counter", name.ends_with("_total")) << name;
  }
}

TEST(MetricsTest, EverySeriesCarriesTheModel) {
  Metrics metrics("tiny");
  metrics.SetModelInfo("llama", "cpu", "avx2");
  metrics.SetKvConfig(32, 1024);
  const std::string text = metrics.Serialize();
  size_t samples = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    if (line.empty() || line[0] == '#') continue;
    ++samples;
    EXPECT_THAT(line, HasSubstr("model=\"tiny\""));
  }
  EXPECT_GT(samples, 100u);
}

TEST(MetricsTest, SeriesExistAtZeroBeforeAnythingHappens) {
  Metrics metrics("tiny");
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("condense_requests_total{model=\"tiny\",outcome=\"deadline\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr("condense_rejections_total{model=\"tiny\",reason=\"queue_full\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("condense_step_seconds_count{model=\"tiny\",phase=\"sample\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_bytes{model=\"tiny\",state=\"free\"} 0\n"));
}

TEST(MetricsTest, EachHandleReachesItsOwnSeries) {
  Metrics metrics("tiny");
  metrics.requests(RequestOutcome::kStop).Increment();
  metrics.requests(RequestOutcome::kError).Increment(2);
  metrics.rejections(RejectionReason::kInvalid).Increment(3);
  metrics.step_seconds(StepPhase::kPublish).Observe(0.25);
  metrics.kv_bytes_used.Set(4);
  metrics.kv_bytes_free.Set(5);
  metrics.kv_tokens_logical.Set(6);
  metrics.kv_tokens_physical.Set(5.5);
  metrics.kv_held_samples.Increment();
  metrics.kv_held_mib.Increment(1.5);
  metrics.kv_held_mib_squares.Increment(2.25);
  metrics.request_kv_ratio.Observe(4.35);
  metrics.compaction_log_mass_error.Observe(0.125);
  metrics.prompt_tokens.Increment(7);
  metrics.kv_bytes_staging.Set(8);
  metrics.kv_bytes_slack.Set(9);
  metrics.kv_ratio.Set(4.25);
  metrics.compaction_swaps(CompactionOutcome::kAccepted).Increment(10);
  metrics.compaction_swaps(CompactionOutcome::kDropped).Increment(11);
  metrics.compaction_seconds(CompactionPhase::kValidate).Observe(0.5);
  metrics.compaction_jobs_out.Set(12);
  metrics.compaction_no_reserve.Increment(13);
  metrics.preemptions_avoided.Increment(14);
  metrics.kv_pool_capacity_bytes.Set(15);
  metrics.kv_pool_growths.Increment(16);
  metrics.guard_transitions(GuardMode::kProbation, TransitionReason::kDwellOver).Increment(17);
  metrics.guard_reading(GuardMetric::kMemory).Set(0.5);
  metrics.guard_samples(GuardMetric::kHitRatio).Set(18);
  metrics.SetGuardMode(GuardMode::kHolding);
  metrics.SetGuardMode(GuardMode::kUncompressed);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("condense_requests_total{model=\"tiny\",outcome=\"stop\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("condense_requests_total{model=\"tiny\",outcome=\"error\"} 2\n"));
  EXPECT_THAT(text, HasSubstr("condense_rejections_total{model=\"tiny\",reason=\"invalid\"} 3\n"));
  EXPECT_THAT(text,
              HasSubstr("condense_step_seconds_sum{model=\"tiny\",phase=\"publish\"} 0.25\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_bytes{model=\"tiny\",state=\"used\"} 4\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_bytes{model=\"tiny\",state=\"free\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_tokens{model=\"tiny\",state=\"logical\"} 6\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_tokens{model=\"tiny\",state=\"physical\"} 5.5\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_held_samples_total{model=\"tiny\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_held_mib_total{model=\"tiny\"} 1.5\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_held_mib_squares_total{model=\"tiny\"} 2.25\n"));
  EXPECT_THAT(text, HasSubstr("condense_request_kv_ratio_sum{model=\"tiny\"} 4.35\n"));
  EXPECT_THAT(text, HasSubstr("condense_compaction_log_mass_error_sum{model=\"tiny\"} 0.125\n"));
  EXPECT_THAT(text, HasSubstr("condense_prompt_tokens_total{model=\"tiny\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_bytes{model=\"tiny\",state=\"staging\"} 8\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_bytes{model=\"tiny\",state=\"slack\"} 9\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_ratio{model=\"tiny\"} 4.25\n"));
  const std::string swaps = "condense_compaction_swaps_total{model=\"tiny\",outcome=";
  EXPECT_THAT(text, HasSubstr(swaps + "\"accepted\"} 10\n"));
  EXPECT_THAT(text, HasSubstr(swaps + "\"dropped\"} 11\n"));
  EXPECT_THAT(text, HasSubstr(swaps + "\"refused\"} 0\n"));
  EXPECT_THAT(
      text, HasSubstr("condense_compaction_seconds_sum{model=\"tiny\",phase=\"validate\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("condense_compaction_jobs_out{model=\"tiny\"} 12\n"));
  EXPECT_THAT(text, HasSubstr("condense_compaction_no_reserve_total{model=\"tiny\"} 13\n"));
  EXPECT_THAT(text, HasSubstr("condense_preemptions_avoided_total{model=\"tiny\"} 14\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_pool_capacity_bytes{model=\"tiny\"} 15\n"));
  EXPECT_THAT(text, HasSubstr("condense_kv_pool_growths_total{model=\"tiny\"} 16\n"));
  const std::string transitions = "condense_guard_transitions_total{model=\"tiny\",reason=";
  EXPECT_THAT(text, HasSubstr(transitions + "\"dwell_over\",to=\"probation\"} 17\n"));
  EXPECT_THAT(text, HasSubstr(transitions + "\"forced\",to=\"probation\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("condense_guard_reading{model=\"tiny\",guard=\"memory\"} 0.5\n"));
  EXPECT_THAT(text, HasSubstr("condense_guard_samples{model=\"tiny\",guard=\"hit_ratio\"} 18\n"));
  EXPECT_THAT(text, HasSubstr("condense_guard_mode{model=\"tiny\",mode=\"uncompressed\"} 1\n"));
  EXPECT_THAT(text, HasSubstr("condense_guard_mode{model=\"tiny\",mode=\"holding\"} 0\n"));
  EXPECT_EQ(metrics.prompt_tokens.value(), 7);
  EXPECT_EQ(metrics.kv_bytes_used.value(), 4);
}

TEST(MetricsTest, ServiceLevelLimitsAreBucketEdges) {
  Metrics metrics("tiny");
  metrics.ttft_seconds.Observe(0.45);
  metrics.inter_token_seconds.Observe(0.08);
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("condense_ttft_seconds_bucket{model=\"tiny\",le=\"0.25\"} 0\n"));
  EXPECT_THAT(text, HasSubstr("condense_ttft_seconds_bucket{model=\"tiny\",le=\"0.45\"} 1\n"));
  EXPECT_THAT(text,
              HasSubstr("condense_inter_token_seconds_bucket{model=\"tiny\",le=\"0.075\"} 0\n"));
  EXPECT_THAT(text,
              HasSubstr("condense_inter_token_seconds_bucket{model=\"tiny\",le=\"0.08\"} 1\n"));
}

TEST(MetricsTest, GuardrailsOfCompactionAreBucketEdges) {
  Metrics metrics("tiny");
  metrics.compaction_hit_ratio.Observe(0.85);
  metrics.compaction_output_error.Observe(0.05);
  metrics.compaction_log_mass_error.Observe(0.05);
  metrics.step_added_seconds.Observe(0.002);
  const std::string text = metrics.Serialize();
  const auto bucket = [](const std::string& name, const std::string& le, int count) {
    return HasSubstr("condense_" + name + "_bucket{model=\"tiny\",le=\"" + le + "\"} " +
                     std::to_string(count) + "\n");
  };
  EXPECT_THAT(text, bucket("compaction_hit_ratio", "0.8", 0));
  EXPECT_THAT(text, bucket("compaction_hit_ratio", "0.85", 1));
  EXPECT_THAT(text, bucket("compaction_output_error", "0.04", 0));
  EXPECT_THAT(text, bucket("compaction_output_error", "0.05", 1));
  EXPECT_THAT(text, bucket("compaction_log_mass_error", "0.04", 0));
  EXPECT_THAT(text, bucket("compaction_log_mass_error", "0.05", 1));
  EXPECT_THAT(text, bucket("step_added_seconds", "0.001", 0));
  EXPECT_THAT(text, bucket("step_added_seconds", "0.002", 1));
}

TEST(MetricsTest, SecondModelInfoReplacesTheFirst) {
  Metrics metrics("tiny");
  EXPECT_THAT(metrics.Serialize(), Not(HasSubstr("condense_model_info{")));
  metrics.SetModelInfo("llama", "cpu", "avx2");
  metrics.SetModelInfo("llama", "cuda", "gpu");
  const std::string text = metrics.Serialize();
  EXPECT_THAT(text, HasSubstr("backend=\"cuda\""));
  EXPECT_THAT(text, Not(HasSubstr("backend=\"cpu\"")));
}

TEST(MetricsTest, ModelNamesAreEscaped) {
  Metrics metrics("a\"b\\c\nd");
  EXPECT_THAT(metrics.Serialize(), HasSubstr("model=\"a\\\"b\\\\c\\nd\""));
}

TEST(MetricsTest, NoObservationIsLostAmongThreads) {
  constexpr int kThreads = 4;
  constexpr int kTimes = 1000;
  Metrics metrics("tiny");
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&metrics] {
      for (int k = 0; k < kTimes; ++k) {
        metrics.steps.Increment();
        metrics.step_tokens.Observe(3);
      }
    });
  }
  for (int k = 0; k < 20; ++k) EXPECT_FALSE(metrics.Serialize().empty());
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(metrics.steps.value(), kThreads * kTimes);
  EXPECT_THAT(metrics.Serialize(), HasSubstr("condense_step_tokens_count{model=\"tiny\"} 4000\n"));
}

}  // namespace
}  // namespace condense
