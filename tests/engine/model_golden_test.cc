// The forward pass against numbers from an independent implementation: every tiny model, and the
// demo models.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "tests/support/engine_harness.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

using nlohmann::json;

json ReadJson(const std::string& path) {
  std::ifstream in(path);
  EXPECT_TRUE(in.good()) << path;
  return json::parse(in);
}

std::unique_ptr<Engine> MakeEngine(const std::string& path, std::unique_ptr<Backend> backend) {
  EngineConfig config;
  config.model_path = path;
  config.kv_memory_bytes = 256 << 20;
  auto engine = Engine::Make(config, nullptr, std::move(backend));
  EXPECT_TRUE(engine.ok()) << engine.status();
  return engine.ok() ? std::move(*engine) : nullptr;
}

double MeanNll(const std::vector<float>& logprobs) {
  double sum = 0;
  for (const float logprob : logprobs) sum -= logprob;
  return sum / static_cast<double>(logprobs.size());
}

struct TinyCase {
  const char* name;
  double nll_tolerance;  // of the mean, on the cpu: 8-bit activations where weights are packed
};

class TinyGoldenTest : public ::testing::TestWithParam<TinyCase> {};
INSTANTIATE_TEST_SUITE_P(
    Models, TinyGoldenTest,
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

void CheckGolden(Engine* engine, const json& golden, double nll_tolerance) {
  Request request = GreedyRequest("golden", golden["ids"].get<std::vector<TokenId>>(),
                                  static_cast<int32_t>(golden["greedy"].size()));
  request.score = true;
  const Answer answer = RunRequest(engine, request);
  ASSERT_EQ(answer.last.prompt_logprobs.size(), golden["nll"].size());
  EXPECT_NEAR(MeanNll(answer.last.prompt_logprobs), golden["mean_nll"].get<double>(),
              nll_tolerance);
  for (size_t i = 0; i < answer.ids.size(); ++i) {
    if (golden["greedy_margin"][i].get<double>() < 0.3 &&
        answer.ids[i] != golden["greedy"][i].get<TokenId>())
      return;
    EXPECT_EQ(answer.ids[i], golden["greedy"][i].get<TokenId>()) << "step " << i;
  }
  EXPECT_EQ(answer.ids.size(), golden["greedy"].size());
}

TEST_P(TinyGoldenTest, CpuAgrees) {
  const std::string base = std::string(CONDENSE_TEST_DATA "/tiny/") + GetParam().name;
  const auto engine = MakeEngine(base + ".gguf", nullptr);
  ASSERT_NE(engine, nullptr);
  CheckGolden(engine.get(), ReadJson(base + ".json"), GetParam().nll_tolerance);
}

TEST_P(TinyGoldenTest, ReferenceAgrees) {
  const std::string base = std::string(CONDENSE_TEST_DATA "/tiny/") + GetParam().name;
  const auto engine = MakeEngine(base + ".gguf", std::make_unique<ReferenceBackend>());
  ASSERT_NE(engine, nullptr);
  // No activation is quantized here, but keys and values are 16-bit and a few weight types are
  // requantized at load.
  const std::string name = GetParam().name;
  const bool requantized =
      name.find("q5_") != std::string::npos || name.find("q6_") != std::string::npos;
  CheckGolden(engine.get(), ReadJson(base + ".json"), requantized ? 0.02 : 1.5e-3);
}

struct DemoCase {
  const char* name;
  const char* file;
  const char* golden;
};

class DemoGoldenTest : public ::testing::TestWithParam<DemoCase> {};
INSTANTIATE_TEST_SUITE_P(
    Models, DemoGoldenTest,
    ::testing::Values(DemoCase{"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m.json"},
                      DemoCase{"gemma3", "gemma-3-270m-q4_k_m.gguf", "gemma3-270m.json"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DemoGoldenTest, MeanNllAndGreedyTokensAgree) {
  const std::string path = std::string(CONDENSE_MODELS "/") + GetParam().file;
  if (!std::filesystem::exists(path))
    GTEST_SKIP() << path << " is not there; scripts/fetch_model " << GetParam().name
                 << " brings it";
  const auto engine = MakeEngine(path, nullptr);
  ASSERT_NE(engine, nullptr);
  const json goldens = ReadJson(std::string(CONDENSE_TEST_DATA "/") + GetParam().golden);
  for (const auto& [name, golden] : goldens.items()) {
    SCOPED_TRACE(name);
    const double share = golden["ids"].size() >= 256 ? 0.005 : 0.01;
    CheckGolden(engine.get(), golden, share * golden["mean_nll"].get<double>());
  }
}

}  // namespace
}  // namespace condense
