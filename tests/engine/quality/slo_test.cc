#include "engine/quality/slo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "tests/engine/quality/guardrail_driver.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

struct Row {
  std::string text;
  std::vector<SloTerm> terms;
};

TEST(SloTest, WhatIsUnderstood) {
  const Row rows[] = {
      {"", {}},
      {"  ", {}},
      {"drift<=1%", {{Guard::kDrift, 0.01, {}}}},
      {"drift<=0.015", {{Guard::kDrift, 0.015, {}}}},
      {"drift<=1% over 30m", {{Guard::kDrift, 0.01, absl::Minutes(30)}}},
      {"  drift  <=  1%   over   1h30m  ", {{Guard::kDrift, 0.01, absl::Minutes(90)}}},
      {"hit_ratio>=0.9 over 5m", {{Guard::kHitRatio, 0.9, absl::Minutes(5)}}},
      {"hit_ratio_tail>=60%", {{Guard::kHitRatioTail, 0.6, {}}}},
      {"merge_latency<=1.5ms", {{Guard::kMergeLatency, 0.0015, {}}}},
      {"memory_fluctuation<=250%", {{Guard::kMemoryFluctuation, 2.5, {}}}},
      {"memory<=1", {{Guard::kMemory, 1.0, {}}}},
      {"first_token<=10%", {{Guard::kFirstToken, 0.1, {}}}},
      {"ttft_p99<=500ms, inter_token_p99<=80ms,drift<=1% over 30m,  canary>=0.95",
       {{Guard::kTtft, 0.5, {}},
        {Guard::kInterToken, 0.08, {}},
        {Guard::kDrift, 0.01, absl::Minutes(30)},
        {Guard::kCanary, 0.95, {}}}},
  };
  for (const Row& row : rows) {
    const absl::StatusOr<std::vector<SloTerm>> terms = ParseSlo(row.text);
    ASSERT_TRUE(terms.ok()) << row.text << ": " << terms.status();
    ASSERT_EQ(terms->size(), row.terms.size()) << row.text;
    for (size_t i = 0; i < terms->size(); ++i) {
      EXPECT_EQ((*terms)[i].guard, row.terms[i].guard) << row.text;
      EXPECT_DOUBLE_EQ((*terms)[i].limit, row.terms[i].limit) << row.text;
      EXPECT_EQ((*terms)[i].window, row.terms[i].window) << row.text;
    }
  }
}

struct Refusal {
  std::string text;
  std::string message;
};

TEST(SloTest, WhatIsRefusedWithTermValueAndWhatIsAllowed) {
  const std::string number = "must be a number or a percentage like 1%, above 0 and at most 1e+06";
  const std::string time = "must be a time like 500ms or 1.5s, above 0 and at most 1000000s";
  const std::string window = "must be a time like 5m, at least 1s and at most a year";
  const Refusal refusals[] = {
      {"speed<=1", "slo term \"speed<=1\": its name is \"speed\", must be one of hit_ratio, "},
      {"<=1", "its name is \"\", must be one of"},
      {"ttft<=1s", "its name is \"ttft\", must be one of"},
      {"Drift<=1%", "its name is \"Drift\", must be one of"},
      {"drift", "slo term \"drift\": it has no sign, must be NAME<=LIMIT"},
      {"drift<=1%,", "slo term \"\": it has no sign"},
      {",", "slo term \"\": it has no sign"},
      {"drift>=1%", "slo term \"drift>=1%\": its sign is \">=\", must be \"<=\""},
      {"hit_ratio<=0.9", "its sign is \"<=\", must be \">=\""},
      {"drift<1%", "its sign is \"<\", must be \"<=\""},
      {"drift=1%", "its sign is \"=\", must be \"<=\""},
      {"drift<==1%", "its sign is \"<==\", must be \"<=\""},
      {"drift<=", "behind its sign stands \"\", must be LIMIT or LIMIT over TIME"},
      {"drift<=1% over", "behind its sign stands \"1% over\", must be"},
      {"drift<=1% in 5m", "behind its sign stands \"1% in 5m\", must be"},
      {"drift<=1% over 5m 3s", "behind its sign stands"},
      {"ttft_p99<=500 ms", "behind its sign stands \"500 ms\", must be"},
      {"drift<=much", "slo term \"drift<=much\": its limit is \"much\", " + number},
      {"drift<=%", "its limit is \"%\", " + number},
      {"drift<=0", "its limit is \"0\", " + number},
      {"drift<=-1%", "its limit is \"-1%\", " + number},
      {"drift<=nan", "its limit is \"nan\", " + number},
      {"drift<=inf", "its limit is \"inf\", " + number},
      {"drift<=1e7", "its limit is \"1e7\", " + number},
      {"drift<=10ms", "its limit is \"10ms\", " + number},
      {"memory<=101%",
       "its limit is \"101%\", must be a number or a percentage like 1%, above 0 "
       "and at most 1"},
      {"canary>=1",
       "its limit is \"1\", must be a number or a percentage like 1%, above 0 and "
       "below 1"},
      {"hit_ratio>=0", "its limit is \"0\", must be"},
      {"ttft_p99<=500", "slo term \"ttft_p99<=500\": its limit is \"500\", " + time},
      {"ttft_p99<=0s", "its limit is \"0s\", " + time},
      {"ttft_p99<=-1s", "its limit is \"-1s\", " + time},
      {"ttft_p99<=inf", "its limit is \"inf\", " + time},
      {"merge_latency<=300h", "its limit is \"300h\", " + time},
      {"drift<=1% over 10ms", "its window is \"10ms\", " + window},
      {"drift<=1% over inf", "its window is \"inf\", " + window},
      {"drift<=1% over 9000h", "its window is \"9000h\", " + window},
      {"drift<=1% over 5", "its window is \"5\", " + window},
      {"drift<=1%, canary>=0.9, drift<=2%",
       "slo term \"drift<=2%\": drift has a term already, must be the only one of its name"},
  };
  for (const Refusal& refusal : refusals) {
    const absl::Status status = ParseSlo(refusal.text).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << refusal.text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(refusal.message));
  }
}

struct Bound {
  std::string text;
  Guard guard;
  double warning, limit;
};

TEST(SloTest, AWarningMovesWithItsLimit) {
  const Bound rows[] = {{"drift<=1%", Guard::kDrift, 0.005, 0.01},
                        {"merge_latency<=4ms", Guard::kMergeLatency, 0.002, 0.004},
                        {"memory_fluctuation<=30%", Guard::kMemoryFluctuation, 0.15, 0.3},
                        {"first_token<=30%", Guard::kFirstToken, 0.14, 0.3},
                        {"memory<=80%", Guard::kMemory, 0.72, 0.8},
                        {"hit_ratio>=0.9", Guard::kHitRatio, 0.95, 0.9},
                        {"hit_ratio_tail>=0.5", Guard::kHitRatioTail, 0.75, 0.5},
                        {"canary>=0.95", Guard::kCanary, 0.975, 0.95},
                        {"ttft_p99<=500ms", Guard::kTtft, 0.4, 0.5},
                        {"inter_token_p99<=80ms", Guard::kInterToken, 0.064, 0.08}};
  ASSERT_EQ(std::size(rows), AllGuards().size());
  for (const Bound& row : rows) {
    GuardrailLimits limits;
    BindSlo(ParseSlo(row.text)->front(), &limits);
    const GuardLimit& limit = limits.*TraitsOf(row.guard).limit;
    EXPECT_DOUBLE_EQ(limit.warning, row.warning) << row.text;
    EXPECT_DOUBLE_EQ(limit.limit, row.limit) << row.text;
    EXPECT_TRUE(limit.bound);
    const GuardrailLimits defaults;
    EXPECT_EQ(limit.window, (defaults.*TraitsOf(row.guard).limit).window);
    EXPECT_EQ(limit.min_samples, (defaults.*TraitsOf(row.guard).limit).min_samples);
    EXPECT_TRUE(Validate(limits).ok()) << Validate(limits).message();
  }
}

// The extremes of what is understood too.
TEST(SloTest, WhatIsUnderstoodIsValid) {
  for (const char* text :
       {"drift<=1e6", "drift<=1e-300", "hit_ratio>=0.999999", "memory<=1e-9", "canary>=0.000001",
        "ttft_p99<=1ns", "ttft_p99<=1000000s", "drift<=1% over 1s", "memory<=1 over 8760h"}) {
    const absl::StatusOr<std::vector<SloTerm>> terms = ParseSlo(text);
    ASSERT_TRUE(terms.ok()) << terms.status();
    GuardrailLimits limits;
    BindSlo(terms->front(), &limits);
    EXPECT_TRUE(Validate(limits).ok()) << text << Validate(limits).message();
  }
}

TEST(SloTest, AWindowIsTheTermsAndNoOthers) {
  GuardrailLimits limits;
  BindSlo(ParseSlo("drift<=1% over 30m")->front(), &limits);
  EXPECT_EQ(limits.drift.window, absl::Minutes(30));
  EXPECT_EQ(limits.hit_ratio.window, GuardrailLimits().hit_ratio.window);
  EXPECT_EQ(limits.hit_ratio.limit, GuardrailLimits().hit_ratio.limit);
}

}  // namespace
}  // namespace condense
