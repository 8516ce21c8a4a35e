// `condense inspect`, `tokenize`, `detokenize`, `score` and `speed` on model files, against numbers
// from independent implementations.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include "tests/tools/run_tool.h"

namespace condense {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

constexpr char kData[] = CONDENSE_TEST_DATA;
// Below this margin the order of two tokens is within the arithmetic's error.
constexpr double kSafeMargin = 0.3;

std::string TinyModel(const std::string& name) {
  return std::string(kData) + "/tiny/" + name + ".gguf";
}

json TinyGolden(const std::string& name) {
  return ReadJsonFile(std::string(kData) + "/tiny/" + name + ".json");
}

void ExpectGreedyAgrees(const json& golden, const json& actual) {
  const size_t steps = std::min(golden["greedy"].size(), actual.size());
  ASSERT_GT(steps, 0u);
  for (size_t i = 0; i < steps; ++i) {
    if (golden["greedy_margin"][i].get<double>() < kSafeMargin) return;
    EXPECT_EQ(actual[i], golden["greedy"][i]) << "step " << i;
  }
}

json Score(const std::string& model, const json& ids) {
  const ToolResult result = RunTool({"score", model, "--threads", "2"}, ids.dump());
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.exit_code == 0 ? json::parse(result.out) : json();
}

struct TinyCase {
  const char* name;
  double mean_nll_tolerance;
};

class TinyScoreTest : public ::testing::TestWithParam<TinyCase> {};
INSTANTIATE_TEST_SUITE_P(
    Models, TinyScoreTest,
    ::testing::Values(TinyCase{"llama-f32", 1e-3}, TinyCase{"llama-f16", 1e-3},
                      TinyCase{"llama-bf16", 1e-3}, TinyCase{"llama-q8_0", 0.05},
                      TinyCase{"llama-q4_0", 0.05}, TinyCase{"llama-q4_1", 0.05},
                      TinyCase{"llama-q5_0", 0.05}, TinyCase{"llama-q5_1", 0.05},
                      TinyCase{"llama-q4_k", 0.06}, TinyCase{"llama-q5_k", 0.06},
                      TinyCase{"llama-q6_k", 0.06}, TinyCase{"llama-rope-llama3", 1e-3},
                      TinyCase{"llama-rope-linear", 1e-3}, TinyCase{"qwen2", 1e-3},
                      TinyCase{"qwen3", 1e-3}, TinyCase{"gemma3", 1e-3},
                      TinyCase{"gemma3-pattern", 1e-3}),
    [](const auto& info) {
      std::string name = info.param.name;
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

TEST_P(TinyScoreTest, AgreesWithTheGoldenNumbers) {
  const json golden = TinyGolden(GetParam().name);
  const json score = Score(TinyModel(GetParam().name), golden["ids"]);
  ASSERT_EQ(score["nll"].size(), golden["nll"].size());
  EXPECT_NEAR(score["mean_nll"].get<double>(), golden["mean_nll"].get<double>(),
              GetParam().mean_nll_tolerance);
  EXPECT_EQ(score["greedy"].size(), 32u);
  ExpectGreedyAgrees(golden, score["greedy"]);
}

TEST(ScoreTest, PrintsNullForTheMeanOfNothing) {
  const json score = Score(TinyModel("llama-f32"), json({5}));
  EXPECT_TRUE(score["nll"].empty());
  EXPECT_TRUE(score["mean_nll"].is_null());
}

TEST(ScoreTest, RefusesBadIds) {
  EXPECT_EQ(RunTool({"score", TinyModel("llama-f32")}, "[]").exit_code, 2);
  EXPECT_EQ(RunTool({"score", TinyModel("llama-f32")}, "[1, 288]").exit_code, 2);
  EXPECT_EQ(RunTool({"score", TinyModel("llama-f32")}, "one two").exit_code, 2);
}

struct DemoCase {
  const char* name;    // for scripts/fetch_model
  const char* golden;  // its name among the golden numbers
  const char* file;
  int64_t parameters;
  // Bytes of a 16-bit cache for one token, and for one sequence of 1024 tokens.
  int64_t kv_bytes_per_token;
  int64_t kv_bytes;
};

class DemoModelTest : public ::testing::TestWithParam<DemoCase> {
 protected:
  void SetUp() override {
    model_ = std::string(CONDENSE_MODELS "/") + GetParam().file;
    if (!std::filesystem::exists(model_)) {
      GTEST_SKIP() << model_ << " is not there; scripts/fetch_model " << GetParam().name
                   << " brings it";
    }
  }

  std::string model_;
};
INSTANTIATE_TEST_SUITE_P(
    Models, DemoModelTest,
    ::testing::Values(DemoCase{"smollm2", "smollm2-135m", "SmolLM2-135M-Instruct.Q4_1.gguf",
                               134515008, 30 * 3 * 64 * 2 * 2, 1024 * 30 * 3 * 64 * 2 * 2},
                      // 3 of 18 layers see everything; 15 see the last 512 tokens, for which the
                      // cache keeps one block of 32 more.
                      DemoCase{"gemma3", "gemma3-270m", "gemma-3-270m-q4_k_m.gguf", 268098176,
                               18 * 256 * 2 * 2, (3 * 1024 + 15 * (512 + 32)) * 256 * 2 * 2}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DemoModelTest, ScoresAgreeWithTheGoldenNumbers) {
  const json goldens = ReadJsonFile(std::string(kData) + "/" + GetParam().golden + ".json");
  ASSERT_FALSE(goldens.empty());
  for (const auto& [name, golden] : goldens.items()) {
    SCOPED_TRACE(name);
    const json score = Score(model_, golden["ids"]);
    ASSERT_EQ(score["nll"].size(), golden["nll"].size());
    const double expected = golden["mean_nll"];
    const double tolerance = golden["ids"].size() >= 256 ? 0.005 : 0.01;
    EXPECT_NEAR(score["mean_nll"].get<double>(), expected, tolerance * expected);
    ExpectGreedyAgrees(golden, score["greedy"]);
  }
}

TEST_P(DemoModelTest, TokenIdsEqualTheGoldenOnes) {
  const json cases = ReadJsonFile(std::string(kData) + "/tokenizer.json")[GetParam().golden];
  ASSERT_FALSE(cases.empty());
  for (const auto& [name, golden] : cases.items()) {
    SCOPED_TRACE(name);
    const std::string text = golden["text"];
    EXPECT_EQ(json::parse(RunTool({"tokenize", model_}, text).out), golden["ids"]);
    EXPECT_EQ(json::parse(RunTool({"tokenize", model_, "--special", "--add_bos"}, text).out),
              golden["ids_special"]);
  }
}

TEST_P(DemoModelTest, InspectKnowsItsSize) {
  const ToolResult result = RunTool({"inspect", model_, "--json", "--context", "1024"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const json model = json::parse(result.out);
  EXPECT_EQ(model["parameters"], GetParam().parameters);
  EXPECT_EQ(model["memory"]["kv_bytes_per_token_16bit"], GetParam().kv_bytes_per_token);
  EXPECT_EQ(model["memory"]["kv_bytes"], GetParam().kv_bytes);
}

TEST(TokenizeTest, AgreesWithTheGoldenIds) {
  for (const char* name : {"llama-f32", "qwen2", "gemma3"}) {
    const json cases = TinyGolden(name)["tokenize"];
    ASSERT_FALSE(cases.empty());
    for (const json& golden : cases) {
      SCOPED_TRACE(golden["text"].dump());
      const std::string text = golden["text"];
      EXPECT_EQ(json::parse(RunTool({"tokenize", TinyModel(name)}, text).out), golden["ids"]);
      EXPECT_EQ(
          json::parse(RunTool({"tokenize", TinyModel(name), "--special", "--add_bos"}, text).out),
          golden["ids_special"]);
    }
  }
}

TEST(TokenizeTest, DetokenizeGivesTheBytesBack) {
  const std::string text = "caf\xc3\xa9\t \xf0\x9f\x98\x80 \xff\n";
  const ToolResult ids = RunTool({"tokenize", TinyModel("llama-f32")}, text);
  EXPECT_EQ(RunTool({"detokenize", TinyModel("llama-f32")}, ids.out).out, text);
}

TEST(TokenizeTest, DetokenizeRefusesIdsOutOfTheVocabulary) {
  const ToolResult result = RunTool({"detokenize", TinyModel("llama-f32")}, "[288]");
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_THAT(result.err, HasSubstr("0 to 287"));
}

TEST(InspectTest, ListsMetadataTensorsAndMemory) {
  const ToolResult result =
      RunTool({"inspect", TinyModel("llama-f32"), "--context", "33", "--sequences", "2"});
  EXPECT_EQ(result.exit_code, 0) << result.err;
  EXPECT_THAT(result.out, HasSubstr("llama.attention.head_count"));
  EXPECT_THAT(result.out, HasSubstr("token_embd.weight"));
  EXPECT_THAT(result.out, HasSubstr("[288, 64]"));
  EXPECT_THAT(result.out, HasSubstr("2 sequences of 33 tokens"));
}

TEST(InspectTest, CountsWholeBlocksAndSlidingWindows) {
  // 2 layers of 2 heads of 32: 512 bytes a token; 33 tokens take two blocks of 32.
  const json llama = json::parse(
      RunTool({"inspect", TinyModel("llama-f32"), "--json", "--context", "33", "--sequences", "3"})
          .out);
  EXPECT_EQ(llama["memory"]["kv_bytes_per_token_16bit"], 512);
  EXPECT_EQ(llama["memory"]["kv_bytes"], 3 * 64 * 512);
  // 7 layers of one head, of which one sees everything and six the last 8 tokens (two blocks).
  const json gemma =
      json::parse(RunTool({"inspect", TinyModel("gemma3"), "--json", "--context", "320"}).out);
  const int head_dim = gemma["config"]["head_dim"];
  EXPECT_EQ(gemma["memory"]["kv_bytes"], (10 + 6 * 2) * 32 * head_dim * 4);
}

TEST(InspectTest, ShortensArraysInJson) {
  const json model = json::parse(RunTool({"inspect", TinyModel("llama-f32"), "--json"}).out);
  const json& tokens = model["metadata"]["tokenizer.ggml.tokens"];
  EXPECT_EQ(tokens["size"], 288);
  EXPECT_EQ(tokens["first"].size(), 6u);
}

TEST(InspectTest, SaysWhatIsWrongWithAFile) {
  const ToolResult missing = RunTool({"inspect", "/no/such/file.gguf"});
  EXPECT_EQ(missing.exit_code, 1);
  EXPECT_THAT(missing.err, HasSubstr("/no/such/file.gguf"));
  EXPECT_EQ(missing.out, "");
  const ToolResult malformed = RunTool({"inspect", std::string(kData) + "/tokenizer.json"});
  EXPECT_EQ(malformed.exit_code, 1);
  EXPECT_THAT(malformed.err, HasSubstr("tokenizer.json"));
}

TEST(SpeedTest, PrintsOneJsonLinePerCell) {
  const ToolResult result =
      RunTool({"speed", TinyModel("llama-f32"), "--threads", "1", "--repeat", "2", "--generate",
               "4", "--cell", "prefill 16", "--cell", "decode 3x8"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  std::istringstream lines(result.out);
  std::string line;
  std::getline(lines, line);
  const json prefill = json::parse(line);
  EXPECT_EQ(prefill["cell"], "prefill 16");
  EXPECT_GT(prefill["prefill_tps"].get<double>(), 0.0);
  EXPECT_FALSE(prefill.contains("decode_tps"));
  std::getline(lines, line);
  EXPECT_GT(json::parse(line)["decode_tps"].get<double>(), 0.0);
  EXPECT_FALSE(std::getline(lines, line));
}

TEST(SpeedTest, ACellWhoseSequencesNeverDecodeTogetherIsNoFigure) {
  const ToolResult result = RunTool({"speed", TinyModel("llama-f32"), "--threads", "1", "--repeat",
                                     "1", "--generate", "2", "--cell", "decode 20x100"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("--settle is 0 and --generate 2: give more"));
}

TEST(SpeedTest, RefusesUnknownCells) {
  for (const char* cell : {"prefill", "prefill x", "decode 8", "decode 0x8", "decode 8x"}) {
    EXPECT_EQ(RunTool({"speed", TinyModel("llama-f32"), "--cell", cell}).exit_code, 2) << cell;
  }
}

TEST(UsageTest, HelpHasAnExampleForEveryCommand) {
  const ToolResult help = RunTool({"--help"});
  EXPECT_EQ(help.exit_code, 0);
  EXPECT_THAT(help.out, HasSubstr("Exit codes"));
  for (const char* command : {"generate", "chat", "status", "bench", "inspect", "tokenize",
                              "detokenize", "score", "speed", "eval"}) {
    EXPECT_THAT(help.out, HasSubstr(command));
    const ToolResult result = RunTool({command, "--help"});
    EXPECT_EQ(result.exit_code, 0) << command;
    EXPECT_THAT(result.out, HasSubstr("Example")) << command;
  }
}

TEST(UsageTest, BadUsageExitsTwo) {
  EXPECT_EQ(RunTool({}).exit_code, 2);
  EXPECT_EQ(RunTool({"what"}).exit_code, 2);
  EXPECT_EQ(RunTool({"inspect"}).exit_code, 2);
  EXPECT_EQ(RunTool({"inspect", "a", "--unknown"}).exit_code, 2);
  EXPECT_EQ(RunTool({"generate", "--temperature", "warm", "hi"}).exit_code, 2);
  EXPECT_EQ(RunTool({"bench", "--concurrency", "0"}).exit_code, 2);
  EXPECT_EQ(RunTool({"score", TinyModel("llama-f32"), "--cpu_isa", "abacus"}, "[1]").exit_code, 2);
}

TEST(UsageTest, VersionIsPrinted) {
  const ToolResult result = RunTool({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_THAT(result.out, HasSubstr("condense "));
}

}  // namespace
}  // namespace condense
