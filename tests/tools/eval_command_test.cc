// `condense eval` as its users run it.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/run_tool.h"

namespace condense {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

class EvalCommandTest : public ::testing::Test {
 protected:
  EvalCommandTest() {
    folder_ = ::testing::TempDir() + "/eval_command_test_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::create_directories(folder_);
    std::ofstream text(TextPath());
    for (int i = 0; i < 60; ++i) text << "Line " << i << " of a text: the " << i * i << " hills.\n";
  }
  ~EvalCommandTest() override { std::filesystem::remove_all(folder_); }

  std::string TextPath() const { return folder_ + "/text.txt"; }
  std::string Model() const { return CONDENSE_TEST_DATA "/tiny/llama-f32.gguf"; }
  ToolResult Eval(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"eval",      Model(), "--text",     TextPath(),
                                          "--threads", "1",     "--context",  "40",
                                          "--score",   "8",     "--generate", "4"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunTool(arguments);
  }
  std::string Read(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(folder_ + "/" + name).rdbuf();
    return text.str();
  }

  std::string folder_;
};

TEST_F(EvalCommandTest, AnUntouchedCacheDiffersByNothing) {
  const ToolResult result =
      Eval({"--preset", "off", "--json", folder_ + "/e.json", "--html", folder_ + "/e.html"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("full cache"));
  const json out = json::parse(Read("e.json"));
  EXPECT_EQ(out["documents"], 2);
  EXPECT_EQ(out["texts"], json({"text.txt"}));
  ASSERT_EQ(out["cells"].size(), 1u);
  const json& off = out["cells"][0];
  EXPECT_EQ(off["tokens"], 16);
  EXPECT_EQ(off["kld_mean"], 0.0);
  EXPECT_EQ(off["ppl_delta_pct"], 0.0);
  EXPECT_EQ(off["top1"], 1.0);
  EXPECT_EQ(off["bytes_ratio"], 1.0);
  EXPECT_GT(off["ppl"].get<double>(), 1.0);
  EXPECT_THAT(Read("e.html"), HasSubstr("</html>"));
}

TEST_F(EvalCommandTest, JsonOnStdoutIsAllThereIs) {
  const ToolResult result = Eval({"--preset", "off", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(json::parse(result.out)["model"], "llama-f32.gguf");
}

TEST_F(EvalCommandTest, BadValuesAreNamedBeforeTheModelIsLoaded) {
  struct Case {
    std::vector<std::string> arguments;
    const char* said;
  };
  for (const Case& c :
       std::vector<Case>{{{"--policy", "magic"}, "magic"},
                         {{"--preset", "tiny"}, "tiny"},
                         {{"--ratio", "0.5"}, "0.5"},
                         {{"--ratio", "2,x"}, "x"},
                         {{"--score", "0"}, "0"},
                         {{"--context", "8"}, "8"},
                         {{"--documents", "500"}, "text.txt"},
                         {{"--needle", "4"}, "--context is 40"},
                         {{"--json", "/no/such/folder/e.json"}, "/no/such/folder/e.json"},
                         {{"--html", "/no/such/folder/e.html"}, "--html"},
                         {{"--preset", "off", "--step_tokens", "1"}, "--branches is 2"},
                         {{"--preset", "off", "--branches", "1"}, "--branches"}}) {
    const ToolResult result = Eval(c.arguments);
    EXPECT_EQ(result.exit_code, 2) << c.arguments.back();
    EXPECT_THAT(result.err, HasSubstr(c.said));
    EXPECT_EQ(result.out, "");
  }
}

TEST_F(EvalCommandTest, MissingFilesAreNamed) {
  const ToolResult text = RunTool({"eval", Model(), "--text", "/no/such/text"});
  EXPECT_EQ(text.exit_code, 1);
  EXPECT_THAT(text.err, HasSubstr("/no/such/text"));
  const ToolResult model = RunTool({"eval", "/no/such/model", "--text", TextPath()});
  EXPECT_EQ(model.exit_code, 1);
  EXPECT_THAT(model.err, HasSubstr("/no/such/model"));
  EXPECT_EQ(RunTool({"eval", Model()}).exit_code, 2);
}

}  // namespace
}  // namespace condense
