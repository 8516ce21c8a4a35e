#include "engine/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/support/fault_backend.h"
#include "tests/support/gguf_writer.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

using testing::HasSubstr;

std::string Tiny(const std::string& name) {
  return std::string(CONDENSE_TEST_DATA) + "/tiny/" + name + ".gguf";
}

std::vector<std::string> AllTiny() {
  std::vector<std::string> names;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::string(CONDENSE_TEST_DATA) + "/tiny")) {
    if (entry.path().extension() == ".gguf") names.push_back(entry.path().stem());
  }
  return names;
}

class WeightsTest : public testing::Test {
 protected:
  void SetUp() override {
    auto backend = MakeBackend({.kind = "cpu", .num_threads = 1});
    ASSERT_TRUE(backend.ok()) << backend.status();
    backend_ = *std::move(backend);
  }

  void Open(const std::string& path) {
    auto file = GgufFile::Open(path);
    ASSERT_TRUE(file.ok()) << file.status();
    file_ = *std::move(file);
    auto config = ReadModelConfig(*file_);
    ASSERT_TRUE(config.ok()) << config.status();
    config_ = *config;
    auto weights = Weights::Load(backend_.get(), *file_, config_);
    ASSERT_TRUE(weights.ok()) << weights.status();
    weights_ = *std::move(weights);
  }

  absl::Status LoadStatus(const GgufWriter& writer) {
    const std::string bytes = writer.Bytes();
    const auto file =
        GgufFile::Parse(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size(), "made");
    if (!file.ok()) return file.status();
    const auto config = ReadModelConfig(**file);
    if (!config.ok()) return config.status();
    return Weights::Load(backend_.get(), **file, *config).status();
  }

  std::vector<std::byte> Host(const std::byte* data, int64_t size) {
    std::vector<std::byte> bytes(size);
    backend_->CopyToHost(bytes.data(), data, size);
    EXPECT_TRUE(backend_->Synchronize().ok());
    return bytes;
  }

  void ExpectVector(const float* values, const std::string& name) {
    const GgufTensor* tensor = file_->FindTensor(name);
    ASSERT_EQ(tensor != nullptr, values != nullptr) << name;
    if (tensor == nullptr) return;
    ASSERT_EQ(tensor->type, TensorType::kF32);
    const auto bytes = Host(reinterpret_cast<const std::byte*>(values), tensor->size_bytes);
    EXPECT_EQ(std::memcmp(bytes.data(), tensor->data, bytes.size()), 0) << name;
  }

  // REQUIRES: an F32 tensor.
  void ExpectMatrix(const WeightView& view, const std::string& name) {
    const GgufTensor* tensor = file_->FindTensor(name);
    ASSERT_NE(tensor, nullptr) << name;
    ASSERT_EQ(view.format, WeightFormat::kF32);
    ASSERT_EQ(view.cols, tensor->dims[0]);
    ASSERT_EQ(view.rows, tensor->dims[1]);
    const auto bytes = Host(view.data, WeightBytes(view.format, view.rows, view.cols));
    const WeightView host{bytes.data(), view.format, view.rows, view.cols};
    std::vector<float> row(view.cols);
    for (int32_t i = 0; i < view.rows; ++i) {
      UnpackRow(host, i, row.data());
      ASSERT_EQ(std::memcmp(row.data(), tensor->data + i * view.cols * 4, view.cols * 4), 0)
          << name << " row " << i;
    }
  }

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const GgufFile> file_;
  ModelConfig config_;
  std::unique_ptr<Weights> weights_;
};

TEST_F(WeightsTest, EveryTensorOfEveryArchitectureIsInItsPlace) {
  for (const char* name : {"llama-f32", "llama-rope-llama3", "qwen2", "qwen3", "gemma3-pattern"}) {
    SCOPED_TRACE(name);
    ASSERT_NO_FATAL_FAILURE(Open(Tiny(name)));
    ExpectMatrix(weights_->embedding, "token_embd.weight");
    ExpectVector(weights_->output_norm, "output_norm.weight");
    for (int32_t i = 0; i < config_.num_layers; ++i) {
      const LayerWeights& layer = weights_->layers[i];
      const std::string prefix = "blk." + std::to_string(i) + ".";
      ExpectMatrix(layer.wq, prefix + "attn_q.weight");
      ExpectMatrix(layer.wk, prefix + "attn_k.weight");
      ExpectMatrix(layer.wv, prefix + "attn_v.weight");
      ExpectMatrix(layer.wo, prefix + "attn_output.weight");
      ExpectMatrix(layer.gate, prefix + "ffn_gate.weight");
      ExpectMatrix(layer.up, prefix + "ffn_up.weight");
      ExpectMatrix(layer.down, prefix + "ffn_down.weight");
      ExpectVector(layer.attn_norm, prefix + "attn_norm.weight");
      ExpectVector(layer.ffn_norm, prefix + "ffn_norm.weight");
      ExpectVector(layer.bq, prefix + "attn_q.bias");
      ExpectVector(layer.bk, prefix + "attn_k.bias");
      ExpectVector(layer.bv, prefix + "attn_v.bias");
      ExpectVector(layer.q_norm, prefix + "attn_q_norm.weight");
      ExpectVector(layer.k_norm, prefix + "attn_k_norm.weight");
      ExpectVector(layer.post_attn_norm, prefix + "post_attention_norm.weight");
      ExpectVector(layer.post_ffn_norm, prefix + "post_ffw_norm.weight");
    }
  }
}

TEST_F(WeightsTest, EveryTinyModelLoads) {
  const std::vector<std::string> names = AllTiny();
  EXPECT_EQ(names.size(), 17u);
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    Open(Tiny(name));
  }
}

TEST_F(WeightsTest, TiedOutputIsTheEmbeddingItself) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("llama-q4_1")));
  EXPECT_EQ(weights_->output.data, weights_->embedding.data);
  EXPECT_EQ(weights_->output.rows, 288);
}

TEST_F(WeightsTest, UntiedOutputIsItsOwnMatrix) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("qwen3")));
  EXPECT_NE(weights_->output.data, weights_->embedding.data);
  ExpectMatrix(weights_->output, "output.weight");
}

TEST_F(WeightsTest, TensorsStartAtMultiplesOf64Bytes) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("qwen2")));
  for (const LayerWeights& layer : weights_->layers) {
    for (const WeightView* view : {&layer.wq, &layer.wk, &layer.wv, &layer.wo, &layer.down}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(view->data) % 64, 0u);
    }
    EXPECT_EQ(reinterpret_cast<uintptr_t>(layer.bk) % 64, 0u);
  }
}

TEST_F(WeightsTest, RopeFrequenciesAreInHostMemory) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("llama-rope-llama3")));
  ASSERT_NE(weights_->rope_freqs, nullptr);
  EXPECT_EQ(weights_->rope_freqs[0], 1.0f);
  EXPECT_FLOAT_EQ(weights_->rope_freqs[15], 8.0f);
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("llama-f32")));
  EXPECT_EQ(weights_->rope_freqs, nullptr);
}

TEST_F(WeightsTest, WeightsOutliveTheFile) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("llama-f32")));
  const std::vector<std::byte> before = Host(weights_->embedding.data, 64 * 288 * 4);
  file_.reset();
  EXPECT_EQ(Host(weights_->embedding.data, 64 * 288 * 4), before);
}

TEST_F(WeightsTest, QuantizedNormIsRefused) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("llama-f32"));
  auto& norm = writer.tensor("output_norm.weight");
  norm.type = static_cast<uint32_t>(TensorType::kQ8_0);
  norm.bytes.resize(2 * 34);
  writer.Relayout();
  const absl::Status status = LoadStatus(writer);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("\"output_norm.weight\": type Q8_0, expected F32, F16 or BF16"));
}

TEST_F(WeightsTest, RopeFrequenciesWhereTheArchitectureHasNoneAreRefused) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("qwen3"));
  writer.AddTensor({"rope_freqs.weight", {16}, 0, 0, std::string(64, '\x3f'), {}});
  writer.Relayout();
  const absl::Status status = LoadStatus(writer);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rope_freqs.weight"));
}

TEST_F(WeightsTest, BiasesOfOneLayerOnlyAreRefused) {
  GgufWriter writer = GgufWriter::FromFile(Tiny("qwen2"));
  writer.RemoveTensor("blk.1.attn_k.bias");
  writer.Relayout();
  EXPECT_THAT(std::string(LoadStatus(writer).message()),
              HasSubstr("\"blk.1.attn_k.bias\" is missing"));
}

TEST_F(WeightsTest, FailureOfTheBackendIsReturned) {
  ASSERT_NO_FATAL_FAILURE(Open(Tiny("llama-f32")));
  FaultBackend no_memory(std::make_unique<ReferenceBackend>());
  no_memory.FailAllocation(0);
  EXPECT_EQ(Weights::Load(&no_memory, *file_, config_).status().code(),
            absl::StatusCode::kResourceExhausted);
  FaultBackend no_copy(std::make_unique<ReferenceBackend>());
  no_copy.FailOp(3);
  EXPECT_FALSE(Weights::Load(&no_copy, *file_, config_).ok());
}

TEST_F(WeightsTest, LoadsTheDemoModel) {
  const std::string path = std::string(CONDENSE_MODELS) + "/SmolLM2-135M-Instruct.Q4_1.gguf";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not there";
  ASSERT_NO_FATAL_FAILURE(Open(path));
  EXPECT_EQ(weights_->layers.size(), 30u);
  EXPECT_EQ(weights_->embedding.rows, 49152);
  EXPECT_EQ(weights_->layers[29].gate.format, WeightFormat::kPacked4);
  // The same rows as the file has, at both ends of a matrix that several threads decoded in several
  // chunks.
  const GgufTensor* tensor = file_->FindTensor("token_embd.weight");
  ASSERT_EQ(tensor->type, TensorType::kQ8_0);
  const auto bytes =
      Host(weights_->embedding.data, WeightBytes(WeightFormat::kPacked8, 49152, 576));
  WeightView host = weights_->embedding;
  host.data = bytes.data();
  std::vector<float> row(576);
  for (const int64_t index : {0, 6143, 6144, 30000, 49151}) {
    UnpackRow(host, index, row.data());
    const auto* block = reinterpret_cast<const uint8_t*>(tensor->data) + index * (576 / 32) * 34;
    for (int i = 0; i < 576; ++i) {
      Half scale;
      std::memcpy(&scale.bits, block + i / 32 * 34, 2);
      const int code = static_cast<int8_t>(block[i / 32 * 34 + 2 + i % 32]);
      ASSERT_EQ(row[i], ToFloat(scale) * static_cast<float>(code)) << index << ", " << i;
    }
  }
}

}  // namespace
}  // namespace condense
