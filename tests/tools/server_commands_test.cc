// `condense generate`, `chat`, `status`, `bench` and `compression` against a server that says what
// it is told to.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/fake_server.h"
#include "tests/tools/run_tool.h"

namespace condense {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kLongEnoughToStreamMs = 1500;

class ServerCommandsTest : public ::testing::Test {
 protected:
  ToolResult Run(std::vector<std::string> arguments, const std::string& input = "",
                 int interrupt_after_ms = 0) {
    arguments.insert(arguments.end(), {"--server", server_.address()});
    return RunTool(arguments, input, interrupt_after_ms);
  }
  v1::GenerateRequest LastRequest() const { return server_.requests().back(); }
  // The server notices a moment after the client has gone.
  bool CancelIsSeen() const {
    for (int i = 0; i < 100 && server_.cancelled() == 0; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    return server_.cancelled() > 0;
  }

  FakeServer server_;
};

using GenerateTest = ServerCommandsTest;
using ChatTest = ServerCommandsTest;
using StatusTest = ServerCommandsTest;
using BenchTest = ServerCommandsTest;
using CompressionTest = ServerCommandsTest;

TEST_F(GenerateTest, PrintsTheTextAndOneNewline) {
  const ToolResult result = Run({"generate", "hi"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "Hello world\n");
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(LastRequest().text(), "hi");
}

TEST_F(GenerateTest, ReadsThePromptFromStandardInputLessOneNewline) {
  EXPECT_EQ(Run({"generate"}, "two\nlines\n").exit_code, 0);
  EXPECT_EQ(LastRequest().text(), "two\nlines");
}

TEST_F(GenerateTest, LeavesUnsetWhatIsNotGiven) {
  Run({"generate", "hi"});
  v1::GenerateRequest bare;
  bare.set_text("hi");
  bare.mutable_sampling();
  bare.mutable_stopping();
  EXPECT_EQ(LastRequest().SerializeAsString(), bare.SerializeAsString());
}

TEST_F(GenerateTest, SendsEveryFlag) {
  Run({"generate",
       "--temperature",
       "0.5",
       "--top_k",
       "40",
       "--top_p",
       "0.9",
       "--min_p",
       "0.05",
       "--repetition_penalty",
       "1.1",
       "--presence_penalty",
       "-0.5",
       "--frequency_penalty",
       "0.25",
       "--logit_bias",
       "5=-100",
       "--logit_bias",
       "6=2.5",
       "--seed",
       "18446744073709551615",
       "--max_tokens",
       "3",
       "--min_tokens",
       "2",
       "--stop",
       "END",
       "--stop",
       "\n\n",
       "--stop_token_id",
       "2",
       "--ignore_eos",
       "--logprobs",
       "4",
       "--priority",
       "-3",
       "--tenant",
       "t",
       "--request_id",
       "r",
       "--model",
       "m",
       "--preset",
       "light",
       "--policy",
       "similarity",
       "--ratio",
       "3.5",
       "--parse_special",
       "the prompt"});
  const v1::GenerateRequest request = LastRequest();
  EXPECT_EQ(request.text(), "the prompt");
  EXPECT_FLOAT_EQ(request.sampling().temperature(), 0.5f);
  EXPECT_EQ(request.sampling().top_k(), 40);
  EXPECT_FLOAT_EQ(request.sampling().top_p(), 0.9f);
  EXPECT_FLOAT_EQ(request.sampling().min_p(), 0.05f);
  EXPECT_FLOAT_EQ(request.sampling().repetition_penalty(), 1.1f);
  EXPECT_FLOAT_EQ(request.sampling().presence_penalty(), -0.5f);
  EXPECT_FLOAT_EQ(request.sampling().frequency_penalty(), 0.25f);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(5), -100.0f);
  EXPECT_FLOAT_EQ(request.sampling().logit_bias().at(6), 2.5f);
  EXPECT_EQ(request.sampling().seed(), 18446744073709551615u);
  EXPECT_EQ(request.stopping().max_tokens(), 3);
  EXPECT_EQ(request.stopping().min_tokens(), 2);
  EXPECT_THAT(request.stopping().stop(), ElementsAre("END", "\n\n"));
  EXPECT_THAT(request.stopping().stop_token_ids(), ElementsAre(2));
  EXPECT_TRUE(request.stopping().ignore_eos());
  EXPECT_EQ(request.output().logprobs(), 4);
  EXPECT_EQ(request.priority(), -3);
  EXPECT_EQ(request.tenant(), "t");
  EXPECT_EQ(request.request_id(), "r");
  EXPECT_EQ(request.model(), "m");
  EXPECT_TRUE(request.parse_special());
  EXPECT_EQ(request.compression().preset(), "light");
  EXPECT_EQ(request.compression().policy(), "similarity");
  EXPECT_EQ(request.compression().ratio(), 3.5);
}

TEST_F(GenerateTest, MakesAChatOfSystemAndUserMessages) {
  EXPECT_EQ(Run({"generate", "--chat", "hi", "--system", "be brief"}).out, "2: hi\n");
  EXPECT_EQ(LastRequest().chat().messages(0).role(), "system");
  EXPECT_EQ(LastRequest().chat().messages(0).content(), "be brief");
  EXPECT_EQ(LastRequest().chat().messages(1).role(), "user");
}

TEST_F(GenerateTest, TakesTokenIdsAsTheyAre) {
  EXPECT_EQ(Run({"generate", "--ids", "[1, 2, 3]"}).exit_code, 0);
  EXPECT_THAT(LastRequest().token_ids().ids(), ElementsAre(1, 2, 3));
  EXPECT_EQ(Run({"generate", "--ids", "[1, \"x\"]"}).exit_code, 2);
}

TEST_F(GenerateTest, PrintsOneJsonObjectWithEverything) {
  const ToolResult result = Run({"generate", "hi", "--json", "--logprobs", "1"});
  EXPECT_EQ(result.exit_code, 0);
  const json answer = json::parse(result.out);
  EXPECT_EQ(answer["text"], "Hello world");
  EXPECT_EQ(answer["token_ids"], json({10, 11}));
  EXPECT_EQ(answer["finish_reason"], "stop");
  EXPECT_EQ(answer["seed"], 42);
  EXPECT_EQ(answer["usage"]["completion_tokens"], 2);
  EXPECT_EQ(answer["receipt"]["preset"], "off");
  EXPECT_EQ(answer["logprobs"][0]["logprob"], -0.25);
  EXPECT_EQ(answer["logprobs"][0]["top"][0]["token"], "\xef\xbf\xbd");
}

TEST_F(GenerateTest, PrintsStatisticsOnStandardErrorOnly) {
  const ToolResult result = Run({"generate", "hi", "--stats"});
  EXPECT_EQ(result.out, "Hello world\n");
  EXPECT_THAT(result.err, HasSubstr("tokens/s"));
  EXPECT_THAT(result.err, HasSubstr("ratio 1.00"));
  EXPECT_THAT(result.err, HasSubstr("swaps"));
}

TEST_F(GenerateTest, KeepsTheBytesOfTheTextWhereTheOutputIsNoTerminal) {
  EXPECT_EQ(Run({"generate", "escape"}).out, "a\x1b[31mb\n");
}

TEST_F(GenerateTest, ExitCodesTellRefusalsApart) {
  EXPECT_EQ(Run({"generate", "busy"}).exit_code, 4);
  EXPECT_EQ(Run({"generate", "draining"}).exit_code, 4);
  EXPECT_EQ(Run({"generate", "too long"}).exit_code, 1);
  const ToolResult bad = Run({"generate", "bad"});
  EXPECT_EQ(bad.exit_code, 2);
  EXPECT_THAT(bad.err, HasSubstr("INVALID_ARGUMENT: temperature is -1; limit 0..100"));
  EXPECT_EQ(json::parse(Run({"generate", "bad", "--json"}).out)["error"]["code"],
            "INVALID_ARGUMENT");
}

TEST_F(GenerateTest, TimeoutEndsTheRequest) {
  const ToolResult result = Run({"generate", "forever", "--timeout", "0.5"});
  EXPECT_EQ(result.exit_code, 5);
  EXPECT_EQ(result.out.substr(0, 2), "xx");
  EXPECT_TRUE(CancelIsSeen());
}

TEST_F(GenerateTest, CtrlCCancelsTheRequest) {
  const ToolResult result = Run({"generate", "forever"}, "", kLongEnoughToStreamMs);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_EQ(result.out.substr(0, 2), "xx");
  EXPECT_TRUE(CancelIsSeen());
}

TEST_F(GenerateTest, RefusesContradictingFlags) {
  EXPECT_EQ(Run({"generate", "--chat", "--ids", "[1]"}).exit_code, 2);
  EXPECT_EQ(Run({"generate", "--text", "--system", "s", "hi"}).exit_code, 2);
  EXPECT_EQ(Run({"generate", "--logit_bias", "x", "hi"}).exit_code, 2);
  EXPECT_TRUE(server_.requests().empty());
}

TEST(UnreachableServerTest, ExitsThreeAndSaysWhatToDo) {
  // Port 1 is not a port that anything listens on.
  for (const char* command : {"generate", "chat", "status", "bench", "compression"}) {
    const ToolResult result = RunTool({command, "--server", "127.0.0.1:1"}, "hi");
    EXPECT_EQ(result.exit_code, 3) << command;
    EXPECT_THAT(result.err, HasSubstr("no server answers at 127.0.0.1:1")) << command;
  }
  EXPECT_EQ(RunTool({"status", "--watch", "--server", "127.0.0.1:1"}).exit_code, 3);
}

TEST_F(ChatTest, KeepsTheHistoryAndForgetsItOnReset) {
  const ToolResult result =
      Run({"chat", "--system", "s"}, "one\n\ntwo\n/reset\nthree\n//four\n/quit\nfive\n");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, "2: one\n4: two\nThe conversation starts anew.\n2: three\n4: /four\n");
}

TEST_F(ChatTest, EndsAtTheEndOfInputWithoutANewline) {
  EXPECT_EQ(Run({"chat"}, "one").out, "1: one\n");
}

TEST_F(ChatTest, AFailedRequestLeavesTheConversationAsItWas) {
  const ToolResult result = Run({"chat"}, "one\nbusy\ntwo\n");
  EXPECT_EQ(result.out, "1: one\n3: two\n");
  EXPECT_EQ(result.exit_code, 4);
  EXPECT_THAT(result.err, HasSubstr("the queue is full"));
}

TEST_F(ChatTest, CtrlCCancelsTheAnswerAndNotTheProgram) {
  const ToolResult result = Run({"chat"}, "forever\ntwo\n/stats\n", kLongEnoughToStreamMs);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("xx"));
  EXPECT_THAT(result.out, HasSubstr("\n3: two\n"));
  EXPECT_THAT(result.out, HasSubstr("messages 4"));
  EXPECT_TRUE(CancelIsSeen());
}

TEST_F(ChatTest, ExplainsUnknownCommands) {
  const ToolResult result = Run({"chat"}, "/what\n");
  EXPECT_THAT(result.out, HasSubstr("Unknown command /what"));
  EXPECT_THAT(result.out, HasSubstr("/reset"));
  EXPECT_TRUE(server_.requests().empty());
}

TEST_F(StatusTest, ShowsATable) {
  const ToolResult result = Run({"status"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("serving"));
  EXPECT_THAT(result.out, HasSubstr("fake model"));
  EXPECT_THAT(result.out, HasSubstr("1.0 MiB of 4.0 MiB (25.0%)"));
  EXPECT_THAT(result.out,
              HasSubstr("compacting; new requests: preset light, policy none, ratio 2.80"));
  EXPECT_THAT(result.out, HasSubstr("3.00"));
  EXPECT_THAT(result.out, HasSubstr("2.0 KiB staging, 5.0 KiB slack"));
  EXPECT_THAT(result.out, HasSubstr("1,234 accepted, 7 refused, 0 useless, 0 failed, 0 dropped; "
                                    "6 under way"));
}

TEST_F(StatusTest, ShowsWhyTheModeIsWhatItIsWithoutControlCharacters) {
  EXPECT_THAT(Run({"status"}).out,
              HasSubstr("compacting: hit ratio \xef\xbf\xbd[31m0.97 is fine\n"));
}

TEST_F(StatusTest, PrintsJson) {
  const json status = json::parse(Run({"status", "--json"}).out);
  EXPECT_EQ(status["server"]["version"], "9.9");
  EXPECT_EQ(status["server"]["limits"]["stop"], 16);
  EXPECT_EQ(status["model"]["vocab_size"], 1000);
  EXPECT_EQ(status["load"]["running"], 3);
  EXPECT_EQ(status["load"]["kv_ratio"], 3.0);
  EXPECT_EQ(status["load"]["kv_bytes_staging"], 2048);
  EXPECT_EQ(status["load"]["swaps"]["accepted"], 1234);
  EXPECT_EQ(status["server"]["compression_preset"], "light");
  EXPECT_EQ(status["server"]["compression_mode_reason"], "hit ratio \x1b[31m0.97 is fine");
  const json& readings = status["server"]["guard_readings"];
  ASSERT_EQ(readings.size(), 2u);
  EXPECT_EQ(readings[0], json({{"guard", "drift"},
                               {"samples", 12},
                               {"value", 0.004},
                               {"lower", 0.001},
                               {"upper", 0.007},
                               {"warning", 0.01},
                               {"limit", 0.02},
                               {"min_samples", 8},
                               {"level", "clear"}}));
  EXPECT_EQ(readings[1]["samples"], 0);
  EXPECT_FALSE(readings[1].contains("value"));
}

TEST_F(StatusTest, WatchPrintsOneViewAfterTheOtherWhereTheOutputIsNoTerminal) {
  const ToolResult result = Run({"status", "--watch", "--interval", "0.05", "--count", "3"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(result.out.find_first_of("\x1b\r"), std::string::npos);
  size_t views = 0;
  for (size_t at = 0; (at = result.out.find("server        127", at)) != std::string::npos; ++at) {
    ++views;
  }
  EXPECT_EQ(views, 3u);
  EXPECT_THAT(result.out, HasSubstr("\n\nserver"));
  EXPECT_THAT(result.out, HasSubstr("mode          compacting: hit ratio \\x1b[31m0.97 is fine\n"));
}

TEST_F(StatusTest, WatchPrintsOneJsonObjectPerLine) {
  const ToolResult result =
      Run({"status", "--watch", "--interval", "0.05", "--count", "2", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  ASSERT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2);
  const size_t first_end = result.out.find('\n');
  const json first = json::parse(result.out.substr(0, first_end));
  const json second = json::parse(result.out.substr(first_end + 1));
  EXPECT_EQ(first["load"]["swaps"]["accepted"], 1234);
  EXPECT_EQ(first["server"], second["server"]);
  EXPECT_LT(first["time"], second["time"]);
}

TEST_F(StatusTest, WatchOnATerminalEndsWithCtrlCAndGivesItBackAsItWas) {
  const TerminalResult result =
      RunToolOnTerminal({"status", "--watch", "--interval", "0.05", "--server", server_.address()},
                        50, 30, "drift", "\x03");
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(result.same_settings);
  EXPECT_THAT(result.out, ::testing::StartsWith("\x1b[?1049h\x1b[?25l\x1b[H"));
  // Nothing but the echo of Ctrl-C may stand between the last view and the end.
  EXPECT_THAT(result.out, ::testing::EndsWith("\x1b[?25h\x1b[?1049l"));
  const std::string bar = "\n" + std::string(13, '#');
  EXPECT_THAT(result.out, HasSubstr(bar + std::string(37, '.') + "\x1b[K\r\n"));
  EXPECT_THAT(result.out, Not(HasSubstr("\x1b[31m")));
}

TEST_F(StatusTest, WatchEndsWhenItHasShownEnoughAndRefusesWhatMakesNoSense) {
  EXPECT_EQ(Run({"status", "--watch", "--count", "1"}).exit_code, 0);
  EXPECT_EQ(Run({"status", "--count", "1"}).exit_code, 2);
  EXPECT_EQ(Run({"status", "--interval", "1"}).exit_code, 2);
  EXPECT_EQ(Run({"status", "--watch", "--count", "0"}).exit_code, 2);
  EXPECT_EQ(Run({"status", "--watch", "--interval", "0"}).exit_code, 2);
}

TEST(WatchTest, EndsWhenTheServerIsGone) {
  auto server = std::make_unique<FakeServer>();
  const std::string address = server->address();
  std::thread end([&server] {
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    server.reset();
  });
  const ToolResult result =
      RunTool({"status", "--watch", "--interval", "0.05", "--server", address});
  end.join();
  EXPECT_EQ(result.exit_code, 3);
  EXPECT_THAT(result.err, HasSubstr("UNAVAILABLE"));
}

TEST_F(BenchTest, ClosedLoopSendsAllRequestsWithLengthsInRange) {
  const ToolResult result = Run({"bench", "--concurrency", "4", "--requests", "20",
                                 "--prompt_tokens", "5-9", "--output_tokens", "6", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const json report = json::parse(result.out);
  EXPECT_EQ(report["finished"], 20);
  EXPECT_EQ(report["failed"], 0);
  EXPECT_EQ(report["generated_tokens"], 120);
  EXPECT_EQ(report["inter_token_seconds"]["samples"], 100);
  const auto requests = server_.requests();
  ASSERT_EQ(requests.size(), 20u);
  for (const v1::GenerateRequest& request : requests) {
    EXPECT_GE(request.token_ids().ids_size(), 5);
    EXPECT_LE(request.token_ids().ids_size(), 9);
    EXPECT_EQ(request.stopping().max_tokens(), 6);
    EXPECT_TRUE(request.stopping().ignore_eos());
    for (const int32_t id : request.token_ids().ids()) EXPECT_TRUE(id >= 100 && id < 200);
  }
}

TEST_F(BenchTest, OpenLoopKeepsItsRateAndItsDuration) {
  const ToolResult result = Run({"bench", "--rate", "20", "--arrivals", "fixed", "--duration",
                                 "1.01", "--output_tokens", "1", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  // At 0, 50, ..., 1000 ms; a loaded machine may be late for the last ones.
  const int finished = json::parse(result.out)["finished"];
  EXPECT_GE(finished, 15);
  EXPECT_LE(finished, 21);
}

TEST_F(BenchTest, ShowsATable) {
  const ToolResult result = Run({"bench", "--requests", "3", "--output_tokens", "2"});
  EXPECT_THAT(result.out, HasSubstr("3 requests finished and 0 failed"));
  EXPECT_THAT(result.out, HasSubstr("time to first token"));
  EXPECT_THAT(result.out, HasSubstr("between tokens"));
}

TEST_F(BenchTest, RefusesBadLengthsAndLoops) {
  EXPECT_EQ(Run({"bench", "--prompt_tokens", "9-5"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--rate", "1", "--concurrency", "2"}).exit_code, 2);
  EXPECT_EQ(Run({"bench", "--requests", "1", "--duration", "2"}).exit_code, 2);
}

TEST_F(BenchTest, SendsTheCompressionAndReportsTheCacheOfTheReceipts) {
  const ToolResult result =
      Run({"bench", "--requests", "4", "--output_tokens", "2", "--preset", "aggressive", "--json"});
  EXPECT_EQ(result.exit_code, 0);
  const json report = json::parse(result.out);
  EXPECT_EQ(report["kv_bytes"], 400);
  EXPECT_EQ(report["kv_bytes_16bit"], 1000);
  EXPECT_EQ(report["kv_ratio"], 2.5);
  EXPECT_EQ(report["load"]["preset"], "aggressive");
  EXPECT_EQ(LastRequest().compression().preset(), "aggressive");
  EXPECT_FALSE(LastRequest().compression().has_ratio());
  EXPECT_THAT(Run({"bench", "--requests", "2"}).out, HasSubstr("ratio 2.50"));
  EXPECT_FALSE(LastRequest().has_compression());
}

TEST_F(CompressionTest, OnlyAsksWithoutFlags) {
  const ToolResult result = Run({"compression"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("compacting"));
  EXPECT_THAT(result.out, HasSubstr("k6v4"));
  EXPECT_THAT(result.out, HasSubstr("1.0 MiB held, ratio 3.00"));
  EXPECT_THAT(result.out, HasSubstr("1,234 accepted"));
  EXPECT_TRUE(server_.compression_changes().empty());
}

TEST_F(CompressionTest, SetsWhatIsGivenAndShowsWhatIsInForce) {
  const json state = json::parse(
      Run({"compression", "--preset", "light", "--policy", "none", "--ratio", "2.5", "--json"})
          .out);
  EXPECT_EQ(state["preset"], "light");
  EXPECT_EQ(state["policy"], "none");
  EXPECT_EQ(state["ratio"], 2.5);
  EXPECT_EQ(state["formats"], json({"k6v4"}));
  EXPECT_EQ(state["swaps"]["accepted"], 1234);
  ASSERT_EQ(server_.compression_changes().size(), 1u);
  EXPECT_FALSE(server_.compression_changes()[0].has_paused());
}

TEST_F(CompressionTest, PausesAndResumes) {
  EXPECT_THAT(Run({"compression", "--pause"}).out, HasSubstr("holding: compaction is paused"));
  EXPECT_THAT(Run({"compression", "--resume"}).out, Not(HasSubstr("paused")));
  const auto changes = server_.compression_changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_TRUE(changes[0].paused());
  EXPECT_TRUE(changes[1].has_paused());
  EXPECT_FALSE(changes[1].paused());
  EXPECT_FALSE(changes[0].has_compression());
  EXPECT_EQ(Run({"compression", "--pause", "--resume"}).exit_code, 2);
}

TEST_F(CompressionTest, ForcesAModeAndShowsWhyItIs) {
  const ToolResult result = Run({"compression", "--mode", "uncompressed"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("uncompressed: an operator wants it so\n"));
  EXPECT_THAT(Run({"compression", "--mode=holding", "--pause"}).out,
              HasSubstr("holding: compaction is paused; an operator wants it so\n"));
  const json state = json::parse(Run({"compression", "--json"}).out);
  EXPECT_EQ(state["mode_reason"], "an operator wants it so");
  const auto changes = server_.compression_changes();
  ASSERT_EQ(changes.size(), 2u);
  EXPECT_EQ(changes[0].mode(), "uncompressed");
  EXPECT_FALSE(changes[0].has_paused() || changes[0].has_compression());
  EXPECT_EQ(changes[1].mode(), "holding");
  EXPECT_TRUE(changes[1].paused());
}

TEST_F(CompressionTest, RefusalsReachTheUser) {
  const ToolResult result = Run({"compression", "--ratio", "99"});
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("compression.ratio is 99; must be in [1, 16]"));
  EXPECT_EQ(json::parse(Run({"compression", "--ratio", "99", "--json"}).out)["error"]["code"],
            "INVALID_ARGUMENT");
  EXPECT_EQ(Run({"compression", "--ratio", "four"}).exit_code, 2);
}

}  // namespace
}  // namespace condense
