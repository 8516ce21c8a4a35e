#include "engine/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>

#include "tests/support/gguf_writer.h"

namespace condense {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string Tiny(const std::string& name) {
  return std::string(CONDENSE_TEST_DATA) + "/tiny/" + name + ".gguf";
}

absl::StatusOr<ModelConfig> ReadTiny(const std::string& name) {
  const auto file = GgufFile::Open(Tiny(name));
  if (!file.ok()) return file.status();
  return ReadModelConfig(**file);
}

absl::StatusOr<ModelConfig> Read(const GgufWriter& writer) {
  const std::string bytes = writer.Bytes();
  const auto file =
      GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "made");
  if (!file.ok()) return file.status();
  return ReadModelConfig(**file);
}

TEST(ModelConfigTest, LlamaWithItsOwnHeadSize) {
  const auto config = ReadTiny("llama-f32");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->architecture, "llama");
  EXPECT_EQ(config->name, "tiny llama-f32");
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->embed, 64);
  EXPECT_EQ(config->num_heads, 4);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->feed_forward, 96);
  EXPECT_EQ(config->vocab, 288);
  EXPECT_EQ(config->context_length, 512);
  EXPECT_FLOAT_EQ(config->rms_epsilon, 1e-5f);
  EXPECT_FLOAT_EQ(config->attention_scale, 1.0f / std::sqrt(32.0f));
  EXPECT_EQ(config->embedding_scale, 1.0f);
  EXPECT_EQ(config->activation, Activation::kSilu);
  EXPECT_EQ(config->rope_pairing, RopePairing::kAdjacent);
  EXPECT_EQ(config->rope_theta, 10000.0);
  EXPECT_EQ(config->rope_linear_factor, 1.0);
  EXPECT_FALSE(config->has_rope_freqs);
  EXPECT_FALSE(config->has_qkv_biases);
  EXPECT_FALSE(config->has_qk_norms);
  EXPECT_FALSE(config->has_post_norms);
  EXPECT_TRUE(config->tied_output);
  EXPECT_EQ(config->window(0), 0);
}

TEST(ModelConfigTest, HeadSizeFollowsFromTheHeadsWithoutAKey) {
  const auto config = ReadTiny("llama-q4_k");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->head_dim, 256 / 8);
}

TEST(ModelConfigTest, LlamaRopeScaling) {
  const auto linear = ReadTiny("llama-rope-linear");
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->rope_linear_factor, 4.0);
  EXPECT_FALSE(linear->tied_output);
  const auto freqs = ReadTiny("llama-rope-llama3");
  ASSERT_TRUE(freqs.ok()) << freqs.status();
  EXPECT_TRUE(freqs->has_rope_freqs);
  EXPECT_EQ(freqs->rope_linear_factor, 1.0);
}

TEST(ModelConfigTest, RopeScalingNoneIgnoresTheFactor) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("llama-rope-linear"));
  writer.SetText("llama.rope.scaling.type", "none");
  const auto config = Read(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_linear_factor, 1.0);
}

TEST(ModelConfigTest, RopeScalingUnderItsOlderName) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("llama-f32"));
  writer.SetF32("llama.rope.scale_linear", 2.0f);
  const auto config = Read(writer);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_linear_factor, 2.0);
}

TEST(ModelConfigTest, Qwen2HasBiasesAndHalfSplitPairs) {
  const auto config = ReadTiny("qwen2");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_pairing, RopePairing::kHalfSplit);
  EXPECT_TRUE(config->has_qkv_biases);
  EXPECT_FALSE(config->has_qk_norms);
  EXPECT_EQ(config->rope_theta, 1e6);
  EXPECT_EQ(config->head_dim, 32);
}

TEST(ModelConfigTest, Qwen3HasHeadNorms) {
  const auto config = ReadTiny("qwen3");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope_pairing, RopePairing::kHalfSplit);
  EXPECT_FALSE(config->has_qkv_biases);
  EXPECT_TRUE(config->has_qk_norms);
  EXPECT_FALSE(config->tied_output);
}

TEST(ModelConfigTest, Gemma3WithoutAPatternHasEverySixthLayerGlobal) {
  const auto config = ReadTiny("gemma3");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->layer_local, ElementsAre(1, 1, 1, 1, 1, 0, 1));
  EXPECT_EQ(config->window(0), 8);
  EXPECT_EQ(config->window(5), 0);
  EXPECT_EQ(config->theta(0), 10000.0);
  EXPECT_EQ(config->theta(5), 1e6);
  EXPECT_FLOAT_EQ(config->embedding_scale, 8.0f);
  EXPECT_EQ(config->activation, Activation::kGeluTanh);
  EXPECT_TRUE(config->has_qk_norms);
  EXPECT_TRUE(config->has_post_norms);
}

TEST(ModelConfigTest, Gemma3PatternScalesGlobalLayersOnly) {
  const auto config = ReadTiny("gemma3-pattern");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->layer_local, ElementsAre(1, 1, 0, 1));
  EXPECT_EQ(config->theta(0), 5000.0);
  EXPECT_EQ(config->linear_factor(0), 1.0);
  EXPECT_EQ(config->linear_factor(2), 8.0);
}

TEST(ModelConfigTest, UnknownArchitectureListsTheKnownOnes) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("llama-f32"));
  writer.SetText("general.architecture", "foonet");
  const absl::Status status = Read(writer).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("unknown architecture \"foonet\""));
  EXPECT_THAT(std::string(status.message()), HasSubstr("gemma3, llama, qwen2, qwen3"));
}

TEST(ModelConfigTest, FeaturesThatAreNotComputedAreRefused) {
  const auto with = [](const char* key, auto set) {
    GgufWriter writer = GgufWriter::FromFile(Tiny("llama-f32"));
    set(&writer, key);
    const absl::Status status = Read(writer).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(key));
  };
  with("llama.expert_count", [](GgufWriter* w, const char* key) { w->SetU32(key, 8); });
  with("llama.final_logit_softcapping", [](GgufWriter* w, const char* key) { w->SetF32(key, 30); });
  with("llama.attention.value_length", [](GgufWriter* w, const char* key) { w->SetU32(key, 16); });
  with("llama.rope.dimension_count", [](GgufWriter* w, const char* key) { w->SetU32(key, 16); });
  with("llama.rope.scaling.type", [](GgufWriter* w, const char* key) { w->SetText(key, "yarn"); });
}

TEST(ModelConfigTest, HeadSizeAboveTheLimitIsRefusedWithoutAKeyToo) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("llama-q4_k"));
  writer.SetU32("llama.attention.head_count", 64);
  writer.SetU32("llama.attention.head_count_kv", 64);
  const absl::Status status = Read(writer).status();  // 256 / 64 = 4, not a multiple of 8
  EXPECT_THAT(std::string(status.message()), HasSubstr("a head size of 4"));
}

}  // namespace
}  // namespace condense
