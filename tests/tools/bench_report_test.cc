#include "tools/bench_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace condense {
namespace {

using ::testing::HasSubstr;

absl::Time At(double seconds) { return absl::UnixEpoch() + absl::Seconds(seconds); }

RequestRecord RecordOf(double start, double first, double second, double end) {
  RequestRecord record;
  record.start = At(start);
  record.prompt_tokens = 10;
  record.AddTokens(1, At(first));
  record.AddTokens(1, At(second));
  record.end = At(end);
  return record;
}

TEST(BenchReportTest, TokensOfOneEventShareTheTimeSinceTheLast) {
  RequestRecord record;
  record.AddTokens(1, At(1.0));
  record.AddTokens(4, At(3.0));
  EXPECT_EQ(record.generated_tokens, 5);
  EXPECT_EQ(record.inter_token_seconds.count(), 4u);
  EXPECT_DOUBLE_EQ(record.inter_token_seconds.Median(), 0.5);
  EXPECT_EQ(record.first_token, At(1.0));
}

TEST(BenchReportTest, EventsWithoutTokensDoNotCount) {
  RequestRecord record;
  record.AddTokens(0, At(1.0));
  record.AddTokens(1, At(2.0));
  EXPECT_EQ(record.first_token, At(2.0));
  EXPECT_EQ(record.inter_token_seconds.count(), 0u);
}

TEST(BenchReportTest, JsonHasLatenciesAndRates) {
  BenchReport report;
  report.Add(RecordOf(0, 1, 3, 4));
  report.Add(RecordOf(0, 3, 4, 5));
  const auto json = report.ToJson(absl::Seconds(5));
  EXPECT_EQ(json["finished"], 2);
  EXPECT_DOUBLE_EQ(json["ttft_seconds"]["p50"].get<double>(), 2.0);
  EXPECT_DOUBLE_EQ(json["inter_token_seconds"]["p50"].get<double>(), 1.5);
  EXPECT_DOUBLE_EQ(json["request_seconds"]["max"].get<double>(), 5.0);
  EXPECT_DOUBLE_EQ(json["generated_tokens_per_second"].get<double>(), 0.8);
  EXPECT_DOUBLE_EQ(json["prompt_tokens_per_second"].get<double>(), 4.0);
}

TEST(BenchReportTest, CountsErrorsByCode) {
  BenchReport report;
  RequestRecord refused;
  refused.status = absl::ResourceExhaustedError("full");
  report.Add(refused);
  report.Add(refused);
  RequestRecord late = RecordOf(0, 1, 2, 3);
  late.status = absl::DeadlineExceededError("late");
  report.Add(late);
  EXPECT_EQ(report.failed(), 3);
  EXPECT_EQ(report.generated_tokens(), 2);
  const auto json = report.ToJson(absl::Seconds(3));
  EXPECT_EQ(json["errors"]["RESOURCE_EXHAUSTED"]["count"], 2);
  EXPECT_EQ(json["errors"]["DEADLINE_EXCEEDED"]["count"], 1);
  EXPECT_EQ(json["request_seconds"]["samples"], 0);
  EXPECT_THAT(report.ToTable(absl::Seconds(3)), HasSubstr("RESOURCE_EXHAUSTED      2  full"));
}

}  // namespace
}  // namespace condense
