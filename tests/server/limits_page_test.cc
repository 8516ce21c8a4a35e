// docs/limits.md against the flags and against what a server reports.

#include "tests/server/limits_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "server/byte_size.h"
#include "server/guard_flags.h"
#include "tests/server/server_fixture.h"

namespace condense {
namespace {

struct Row {
  std::string flag, default_value, entry, code, meaning;
};

std::vector<Row> SizesAndCounts() {
  std::vector<Row> rows;
  for (const std::vector<std::string>& cells : LimitsTable("Sizes and counts")) {
    EXPECT_EQ(cells.size(), 5u) << cells[0];
    if (cells.size() != 5) continue;
    EXPECT_TRUE(absl::StartsWith(cells[0], "--")) << cells[0];
    rows.push_back({cells[0].substr(2), cells[1], cells[2], cells[3], cells[4]});
  }
  return rows;
}

// Those of a table of flag, default, range and meaning.
std::set<std::string> FlagsOfTable(const std::string& heading) {
  std::set<std::string> flags;
  for (const std::vector<std::string>& row : LimitsTable(heading)) {
    EXPECT_EQ(row.size(), 4u) << row[0];
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(row[0].substr(2));
    EXPECT_NE(flag, nullptr) << row[0];
    if (row.size() != 4 || flag == nullptr) continue;
    EXPECT_EQ(flag->DefaultValue(), row[1]) << row[0];
    EXPECT_FALSE(row[2].empty()) << row[0];
    EXPECT_FALSE(row[3].empty()) << row[0];
    flags.insert(row[0].substr(2));
  }
  return flags;
}

using LimitsPageTest = ServerTest;

TEST_F(LimitsPageTest, EveryRowIsAFlagWithItsDefault) {
  for (const Row& row : SizesAndCounts()) {
    const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(row.flag);
    ASSERT_NE(flag, nullptr) << row.flag;
    EXPECT_EQ(flag->DefaultValue(), row.default_value) << row.flag;
    EXPECT_FALSE(row.code.empty()) << row.flag;
    EXPECT_FALSE(row.meaning.empty()) << row.flag;
  }
}

TEST_F(LimitsPageTest, EveryFlagOfTheCompactingCacheIsARowWithItsDefault) {
  const std::set<std::string> documented = FlagsOfTable("The compacting cache");
  const std::set<std::string> others = {"preset",
                                        "policy",
                                        "ratio",
                                        "compaction",
                                        "swap_every",
                                        "cluster_window",
                                        "staging_memory",
                                        "mark_at",
                                        "soft_limit",
                                        "hard_limit",
                                        "grace_tokens",
                                        "drop_share",
                                        "compaction_step_time",
                                        "compaction_step_share"};
  int flags = 0;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::StartsWith(name, "pool_") && others.count(std::string(name)) == 0) continue;
    ++flags;
    EXPECT_EQ(documented.count(std::string(name)), 1u) << name << " is not in docs/limits.md";
  }
  EXPECT_EQ(flags, static_cast<int>(documented.size()));
}

TEST_F(LimitsPageTest, EveryFlagOfTheGuardrailsIsARowWithItsDefault) {
  std::set<std::string> flags;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    for (const char* prefix : {"guard", "probe_", "canary_"}) {
      if (absl::StartsWith(name, prefix)) flags.insert(std::string(name));
    }
    if (name == "slo") flags.insert(std::string(name));
  }
  EXPECT_EQ(flags, FlagsOfTable("The guardrails"));
}

TEST_F(LimitsPageTest, TheFlagsOfTheGuardrailsDefaultToTheirLimits) {
  EngineConfig config;
  ASSERT_TRUE(FillGuard(&config).ok());
  EXPECT_FALSE(config.guard);  // nothing is compacted
  config.compaction.enabled = true;
  ASSERT_TRUE(FillGuard(&config).ok());
  EXPECT_TRUE(config.guard);
  const GuardrailLimits defaults;
  for (int i = 0; i < kNumGuards; ++i) {
    const GuardTraits& traits = TraitsOf(static_cast<Guard>(i));
    EXPECT_EQ((config.guard_limits.*traits.limit).warning, (defaults.*traits.limit).warning);
    EXPECT_EQ((config.guard_limits.*traits.limit).limit, (defaults.*traits.limit).limit);
  }
  EXPECT_TRUE(Validate(config.guard_limits).ok());
}

TEST_F(LimitsPageTest, EveryFlagThatLimitsIsARow) {
  std::set<std::string> documented;
  for (const Row& row : SizesAndCounts()) documented.insert(row.flag);
  int limits = 0;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (!absl::StartsWith(name, "max_") || !absl::EndsWith(flag->Filename(), "server/flags.cc")) {
      continue;
    }
    EXPECT_EQ(documented.count(std::string(name)), 1u) << name;
    ++limits;
  }
  EXPECT_GT(limits, 11);
}

TEST_F(LimitsPageTest, TheEntriesAreThoseThatAServerReports) {
  Start();
  grpc::ClientContext context;
  v1::GetServerInfoResponse response;
  ASSERT_TRUE(info_->GetServerInfo(&context, {}, &response).ok());
  std::map<std::string, int64_t> reported(response.limits().begin(), response.limits().end());
  for (const Row& row : SizesAndCounts()) {
    if (row.entry.empty()) continue;
    ASSERT_EQ(reported.count(row.entry), 1u) << row.entry << " is in the page only";
    if (row.entry == row.flag) {
      ByteSize size;
      std::string error;
      EXPECT_TRUE(AbslParseFlag(row.default_value, &size, &error)) << row.flag << error;
      EXPECT_EQ(reported[row.entry], size.bytes) << row.flag;
    }
    reported.erase(row.entry);
  }
  for (const auto& [name, value] : reported) ADD_FAILURE() << name << " is not in the page";
}

TEST_F(LimitsPageTest, TheCodesAreThoseOfRefusals) {
  std::map<std::string, std::string> codes;
  for (const Row& row : SizesAndCounts()) codes[row.flag] = row.code;
  ServerOptions options;
  options.limits.max_message_bytes = 100'000;
  options.limits.max_prompt_bytes = 1000;
  Start({}, options);
  const auto check = [&](const char* flag, auto change) {
    v1::GenerateRequest request = ShortRequest(1);
    change(&request);
    const grpc::Status status = Stream(request).status;
    const std::string code = status.error_code() == grpc::INVALID_ARGUMENT ? "INVALID_ARGUMENT"
                             : status.error_code() == grpc::RESOURCE_EXHAUSTED
                                 ? "RESOURCE_EXHAUSTED"
                                 : "another";
    EXPECT_EQ(code, codes[flag]) << flag << ": " << status.error_message();
  };
  const auto repeat = [](int times, auto call) {
    for (int i = 0; i < times; ++i) call(i);
  };
  check("max_message_bytes", [](auto* r) { r->set_text(std::string(200'000, 'a')); });
  check("max_prompt_bytes", [](auto* r) { r->set_text(std::string(1001, 'a')); });
  check("max_chat_messages", [&](auto* r) {
    repeat(1025, [&](int) { r->mutable_chat()->add_messages()->set_role("user"); });
  });
  check("max_stop_strings",
        [&](auto* r) { repeat(17, [&](int) { r->mutable_stopping()->add_stop("a"); }); });
  check("max_stop_string_bytes",
        [](auto* r) { r->mutable_stopping()->add_stop(std::string(257, 'a')); });
  check("max_stop_ids",
        [&](auto* r) { repeat(65, [&](int) { r->mutable_stopping()->add_stop_token_ids(1); }); });
  check("max_logit_bias", [&](auto* r) {
    repeat(1025, [&](int i) { (*r->mutable_sampling()->mutable_logit_bias())[i] = 1; });
  });
  check("max_logprobs", [](auto* r) { r->mutable_output()->set_logprobs(21); });
  check("max_request_id_bytes", [](auto* r) { r->set_request_id(std::string(129, 'a')); });
  check("max_tenant_bytes", [](auto* r) { r->set_tenant(std::string(65, 'a')); });
  check("max_context",
        [&](auto* r) { repeat(600, [&](int) { r->mutable_token_ids()->add_ids(1); }); });
}

}  // namespace
}  // namespace condense
