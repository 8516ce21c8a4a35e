#include "tools/status_view.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "tools/text_width.h"

namespace condense {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::GuardReading* AddReading(ServerStatus* status, const std::string& guard) {
  v1::GuardReading* reading = status->server.add_guard_readings();
  reading->set_guard(guard);
  reading->set_level("clear");
  return reading;
}

ServerStatus Example() {
  ServerStatus status;
  status.server.set_state(v1::GetServerInfoResponse::STATE_DRAINING);
  status.server.set_uptime_seconds(3720);
  status.server.set_compression_mode("holding");
  status.server.set_compression_mode_reason(
      "hit ratio 0.91 (upper bound 0.93, 140 samples) is below its warning level of 0.95");
  status.server.set_compression_preset("light");
  status.server.set_compression_policy("none");
  status.server.set_compression_ratio(2.8);
  status.model.set_name("tiny");
  v1::GetLoadResponse& load = status.load;
  load.set_running(3);
  load.set_queued(2);
  load.set_queued_tokens(4096);
  load.set_preemptions(7);
  load.set_tokens_per_second(123.4);
  load.set_logical_tokens(12345);
  load.set_kv_ratio(3.25);
  load.set_kv_bytes_total(64 << 20);
  load.set_kv_bytes_used(32 << 20);
  load.set_kv_bytes_staging(8 << 20);
  load.set_kv_bytes_slack(4 << 20);
  load.set_compaction_jobs_out(6);
  load.mutable_swaps()->set_accepted(1234);
  return status;
}

std::string View(const ServerStatus& status, int width) {
  return StatusView(status, "127.0.0.1:1", absl::UnixEpoch(), width);
}

TEST(StatusViewTest, ShowsWhatTheServerSays) {
  const std::string view = View(Example(), 120);
  EXPECT_THAT(view, HasSubstr("server        127.0.0.1:1, tiny, 1970-01-01T00:00:00Z\n"));
  EXPECT_THAT(view, HasSubstr("state         draining, up 1 h 02 min\n"));
  EXPECT_THAT(view, HasSubstr("mode          holding: hit ratio 0.91 (upper bound 0.93, 140 "
                              "samples) is below its warning level of 0.95\n"));
  EXPECT_THAT(view, HasSubstr("new requests  preset light, policy none, ratio 2.80\n"));
  EXPECT_THAT(view, HasSubstr("3 running, 2 queued with 4,096 tokens, 7 preemptions\n"));
  EXPECT_THAT(view, HasSubstr("speed         123 tokens/s"));
  EXPECT_THAT(view, HasSubstr("cache ratio   3.25 now, 12,345 tokens\n"));
  EXPECT_THAT(view, HasSubstr("swaps         1,234 accepted"));
  EXPECT_THAT(view, HasSubstr("6 under way\n"));
  EXPECT_THAT(view, HasSubstr("arena         # 32.0 MiB used, + 8.0 MiB staging, = 4.0 MiB slack, "
                              ". 20.0 MiB free\n"));
}

TEST(StatusViewTest, ReadingsAreInTheUnitsOfTheirGuardrails) {
  ServerStatus status = Example();
  v1::GuardReading* drift = AddReading(&status, "drift");
  drift->set_value(0.0042);
  drift->set_samples(1200);
  drift->set_min_samples(8);
  drift->set_lower(0.001);
  drift->set_upper(0.0075);
  drift->set_warning(0.01);
  drift->set_limit(0.02);
  v1::GuardReading* latency = AddReading(&status, "merge_latency");
  latency->set_value(0.0015);
  latency->set_samples(12);
  latency->set_min_samples(100);
  latency->set_lower(0.001);
  latency->set_warning(0.001);
  latency->set_limit(0.002);
  latency->set_level("warning");
  v1::GuardReading* canary = AddReading(&status, "canary");
  canary->set_warning(0.95);
  canary->set_limit(0.9);
  v1::GuardReading* unknown = AddReading(&status, "of another version");
  unknown->set_value(1.5);
  unknown->set_limit(7);
  const std::string view = View(status, 120);
  const auto row = [&view](const std::string& guard) {
    const size_t begin = view.find("\n" + guard + " ") + 1;
    std::vector<std::string> cells =
        absl::StrSplit(view.substr(begin, view.find('\n', begin) - begin), "  ", absl::SkipEmpty());
    for (std::string& cell : cells) cell.erase(0, cell.find_first_not_of(' '));
    return cells;
  };
  using ::testing::ElementsAre;
  EXPECT_THAT(row("guardrail"),
              ElementsAre("guardrail", "level", "value", "bounds", "warning", "limit", "samples"));
  EXPECT_THAT(row("drift"),
              ElementsAre("drift", "clear", "0.42%", "0.1..0.75", "> 1%", "> 2%", "1,200"));
  EXPECT_THAT(row("merge_latency"), ElementsAre("merge_latency", "warning", "1.5 ms", "1..?",
                                                "> 1 ms", "> 2 ms", "12/100"));
  EXPECT_THAT(row("canary"), ElementsAre("canary", "clear", "-", "-", "< 0.95", "< 0.9", "0"));
  EXPECT_THAT(row("of another version"),
              ElementsAre("of another version", "clear", "1.5", "-", "-", "7", "0"));
}

TEST(StatusViewTest, WithoutAGuardItSaysSo) {
  ServerStatus status = Example();
  status.server.clear_compression_mode_reason();
  AddReading(&status, "drift");
  const std::string view = View(status, 80);
  EXPECT_THAT(view, HasSubstr("mode          holding\n"));
  EXPECT_THAT(view, HasSubstr("guardrails    off: the server has no guard, or compacts nothing\n"));
  EXPECT_THAT(view, Not(HasSubstr("drift")));
}

TEST(StatusViewTest, NoLineIsWiderThanTheTerminalAndTheReasonIsWhole) {
  ServerStatus status = Example();
  AddReading(&status, "memory_fluctuation")->set_value(1);
  for (const int width : {1, 7, 14, 15, 27, 28, 40, 80, 200}) {
    const std::string view = View(status, width);
    const std::vector<std::string> lines = absl::StrSplit(view, '\n');
    for (const std::string& line : lines) EXPECT_LE(TextWidth(line), size_t(width)) << line;
    EXPECT_THAT(view, HasSubstr(ArenaBar(status.load, width)));
  }
  // Wrapped under itself.
  EXPECT_THAT(View(status, 60),
              HasSubstr("mode          holding: hit ratio 0.91 (upper bound 0.93, 140\n"
                        "              samples) is below its warning level of 0.95\n"));
}

TEST(StatusViewTest, WhatTheServerSaysCannotSteerTheTerminal) {
  ServerStatus status = Example();
  status.server.set_compression_mode_reason("a\x1b[2J\nb\rc");
  status.server.set_compression_mode("\x1b]0;title\x07");
  status.model.set_name(
      "\xc2\x9b"
      "31m");
  AddReading(&status, "x\n\x1b[H")->set_level("\x7f");
  const std::string view = View(status, 80);
  EXPECT_EQ(view.find_first_of("\x1b\r\x07\x7f"), std::string::npos) << view;
  EXPECT_EQ(view.find("\xc2\x9b"), std::string::npos);
  EXPECT_THAT(view, HasSubstr("a\\x1b[2J\\nb\\rc"));
}

TEST(StatusViewTest, TheBarIsAsLongAsItsParts) {
  EXPECT_EQ(ArenaBar(Example().load, 16), "########++=.....");
  v1::GetLoadResponse load;
  EXPECT_EQ(ArenaBar(load, 4), "....");
  load.set_kv_bytes_total(10);
  load.set_kv_bytes_used(10);
  EXPECT_EQ(ArenaBar(load, 4), "####");
}

TEST(StatusViewTest, NumbersThatMakeNoSenseAreNoReasonToEnd) {
  ServerStatus status = Example();
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max();
  status.load.set_kv_bytes_used(kMost);
  status.load.set_kv_bytes_staging(kMost);
  status.load.set_kv_bytes_slack(-kMost);
  status.load.set_kv_bytes_total(-1);
  status.load.set_tokens_per_second(std::numeric_limits<double>::quiet_NaN());
  v1::GuardReading* reading = AddReading(&status, "hit_ratio");
  reading->set_value(-std::numeric_limits<double>::infinity());
  reading->set_samples(-kMost);
  const std::string view = View(status, 80);
  EXPECT_THAT(view, HasSubstr("-inf"));
  EXPECT_EQ(ArenaBar(status.load, 8), "####++++");
}

}  // namespace
}  // namespace condense
