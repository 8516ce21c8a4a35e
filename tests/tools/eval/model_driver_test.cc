#include "tools/eval/model_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tools/eval/quality_stats.h"

namespace condense {
namespace {

using ::testing::HasSubstr;

std::string TinyModel(const std::string& name) {
  return std::string(CONDENSE_TEST_DATA) + "/tiny/" + name + ".gguf";
}

nlohmann::json TinyGolden(const std::string& name) {
  std::ifstream in(std::string(CONDENSE_TEST_DATA) + "/tiny/" + name + ".json");
  return nlohmann::json::parse(in);
}

std::unique_ptr<ModelDriver> MakeDriver(const std::string& name, int64_t max_tokens,
                                        int32_t max_branches) {
  auto driver = ModelDriver::Make({.model_path = TinyModel(name),
                                   .backend = {.num_threads = 1},
                                   .step_tokens = 16,
                                   .max_tokens = max_tokens,
                                   .max_branches = max_branches});
  EXPECT_TRUE(driver.ok()) << driver.status();
  return driver.ok() ? *std::move(driver) : nullptr;
}

double Nll(const float* logits, int32_t vocab, TokenId target) {
  double sum = 0;
  for (int32_t v = 0; v < vocab; ++v) sum += std::exp(double{logits[v]} - logits[target]);
  return std::log(sum);
}

class ModelDriverTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, ModelDriverTest, ::testing::Values("llama-f32", "gemma3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// One token per step after a context finds what an independent implementation found in one go, and
// branches that nothing was done to are the same bit for bit, also after a rewind.
TEST_P(ModelDriverTest, StepsAgreeWithTheGoldenNumbersInEveryBranch) {
  const auto golden = TinyGolden(GetParam());
  const auto ids = golden["ids"].get<std::vector<TokenId>>();
  const auto nll = golden["nll"].get<std::vector<double>>();
  const auto size = static_cast<int64_t>(ids.size());
  const int64_t context = std::min<int64_t>(20, size / 2);
  const auto driver = MakeDriver(GetParam(), size, 3);
  ASSERT_NE(driver, nullptr);
  const int32_t vocab = driver->vocab();
  ASSERT_TRUE(driver->Prefill(std::span(ids).first(context)).ok());
  ASSERT_TRUE(driver->Fork(std::vector<Compression>(3)).ok());
  ASSERT_TRUE(driver->Settle().ok());
  std::vector<float> first_logits;
  for (int round = 0; round < 2; ++round) {
    double sum = 0, expected = 0;
    std::vector<float> logits(3 * vocab);
    for (int64_t i = context; i + 1 < size; ++i) {
      ASSERT_TRUE(driver->Step(std::vector<TokenId>(3, ids[i]), logits.data()).ok());
      for (int b = 1; b < 3; ++b) {
        ASSERT_TRUE(std::equal(logits.begin(), logits.begin() + vocab, logits.begin() + b * vocab))
            << "token " << i;
      }
      if (i == context && round == 0) first_logits = logits;
      if (i == context) {
        EXPECT_EQ(logits, first_logits);
      }
      sum += Nll(logits.data(), vocab, ids[i + 1]);
      expected += nll[i];
    }
    EXPECT_NEAR(sum / (size - context - 1), expected / (size - context - 1), 2e-3);
    EXPECT_EQ(driver->State(0).bytes, driver->State(0).bytes_16bit);
    EXPECT_GT(driver->State(0).bytes, 0);
    ASSERT_TRUE(driver->Rewind().ok());
  }
}

TEST(ModelDriverLimitsTest, BranchesGoTheirOwnWays) {
  const auto driver = MakeDriver("llama-f32", 32, 2);
  ASSERT_NE(driver, nullptr);
  const int32_t vocab = driver->vocab();
  std::vector<float> both(2 * vocab), alone(vocab);
  const std::vector<TokenId> context = {5, 6, 7, 8};
  ASSERT_TRUE(driver->Prefill(context).ok());
  ASSERT_TRUE(driver->Fork(std::vector<Compression>(2)).ok());
  ASSERT_TRUE(driver->Settle().ok());
  ASSERT_TRUE(driver->Step(std::vector<TokenId>{9, 10}, both.data()).ok());
  ASSERT_TRUE(driver->Fork(std::vector<Compression>(1)).ok());
  ASSERT_TRUE(driver->Settle().ok());
  ASSERT_TRUE(driver->Step(std::vector<TokenId>{10}, alone.data()).ok());
  EXPECT_TRUE(std::equal(alone.begin(), alone.end(), both.begin() + vocab));
  EXPECT_FALSE(std::equal(alone.begin(), alone.end(), both.begin()));
}

TEST(ModelDriverLimitsTest, AFullBranchSaysSo) {
  const auto driver = MakeDriver("llama-f32", 4, 2);
  ASSERT_NE(driver, nullptr);
  std::vector<float> logits(driver->vocab());
  ASSERT_TRUE(driver->Prefill(std::vector<TokenId>{1, 2, 3, 4}).ok());
  ASSERT_TRUE(driver->Fork(std::vector<Compression>(1)).ok());
  EXPECT_EQ(driver->Step(std::vector<TokenId>{5}, logits.data()).code(),
            absl::StatusCode::kResourceExhausted);
  // Prefill makes it usable again.
  ASSERT_TRUE(driver->Prefill(std::vector<TokenId>{1, 2, 3}).ok());
  ASSERT_TRUE(driver->Fork(std::vector<Compression>(1)).ok());
  EXPECT_TRUE(driver->Step(std::vector<TokenId>{5}, logits.data()).ok());
}

TEST(ModelDriverLimitsTest, RefusesWhatTheModelCannotHold) {
  const auto length = ModelDriver::Make(
      {.model_path = TinyModel("llama-f32"), .max_tokens = 1 << 20, .max_branches = 2});
  EXPECT_EQ(length.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(length.status().message()), HasSubstr("1048576"));
  const auto branches = ModelDriver::Make({.model_path = TinyModel("llama-f32"),
                                           .step_tokens = 4,
                                           .max_tokens = 16,
                                           .max_branches = 5});
  EXPECT_EQ(branches.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(branches.status().message()), HasSubstr("--branches is 5"));
  EXPECT_FALSE(ModelDriver::Make({.model_path = "/no/such/model", .max_tokens = 16}).ok());
}

}  // namespace
}  // namespace condense
