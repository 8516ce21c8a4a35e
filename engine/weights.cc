#include "engine/weights.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/gguf_reader.h"
#include "engine/tensor_decoder.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

constexpr int64_t kTensorAlignment = 64;
// Decoded bytes per copy to the backend: enough work for every core, little enough to stay in the
// caches.
constexpr int64_t kChunkBytes = 4 << 20;
// Below this a thread costs more than it saves.
constexpr int64_t kMinBytesPerThread = 128 << 10;
constexpr int64_t kMaxThreads = 16;

// Collects which tensor goes where, and refuses a file whose tensors are not exactly the expected
// ones.
class WeightsPlan {
 public:
  struct Matrix {
    const GgufTensor* tensor;
    WeightView* view;
    int64_t offset;
  };
  struct Vector {
    const GgufTensor* tensor;
    const float** place;
    int64_t offset;
  };

  WeightsPlan(const GgufFile& file, const ModelConfig& config) : file_(file), config_(config) {}

  absl::Status Add(Weights* weights);

  const std::vector<Matrix>& matrices() const { return matrices_; }
  const std::vector<Vector>& vectors() const { return vectors_; }
  const GgufTensor* rope_freqs() const { return rope_freqs_; }
  int64_t bytes() const { return bytes_; }

 private:
  absl::Status AddLayer(int32_t index, LayerWeights* layer);
  absl::Status AddLayerVectors(const std::string& prefix, LayerWeights* layer);
  absl::Status AddMatrix(const std::string& name, int64_t rows, int64_t cols, WeightView* view);
  absl::Status AddVector(const std::string& name, int64_t size, const float** place);
  absl::StatusOr<const GgufTensor*> Take(const std::string& name, std::vector<int64_t> dims);
  absl::StatusOr<const GgufTensor*> TakeVector(const std::string& name, int64_t size);
  absl::Status CheckAllTaken() const;
  int64_t Reserve(int64_t bytes);

  const GgufFile& file_;
  const ModelConfig& config_;
  std::vector<Matrix> matrices_;
  std::vector<Vector> vectors_;
  const GgufTensor* rope_freqs_ = nullptr;
  absl::flat_hash_set<const GgufTensor*> taken_;
  int64_t bytes_ = 0;
};

absl::StatusOr<const GgufTensor*> WeightsPlan::Take(const std::string& name,
                                                    std::vector<int64_t> dims) {
  const GgufTensor* tensor = file_.FindTensor(name);
  if (tensor == nullptr) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": tensor \"", name, "\" is missing"));
  }
  if (tensor->dims != dims) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": tensor \"", name, "\": shape [",
                                            absl::StrJoin(tensor->dims, ", "), "], expected [",
                                            absl::StrJoin(dims, ", "), "]"));
  }
  taken_.insert(tensor);
  return tensor;
}

absl::StatusOr<const GgufTensor*> WeightsPlan::TakeVector(const std::string& name, int64_t size) {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, Take(name, {size}));
  if (TensorBlockElements(tensor->type) != 1) {
    return absl::DataLossError(absl::StrCat(file_.path(), ": tensor \"", name, "\": type ",
                                            TensorTypeName(tensor->type),
                                            ", expected F32, F16 or BF16"));
  }
  return tensor;
}

int64_t WeightsPlan::Reserve(int64_t bytes) {
  const int64_t offset = bytes_;
  bytes_ += (bytes + kTensorAlignment - 1) / kTensorAlignment * kTensorAlignment;
  return offset;
}

absl::Status WeightsPlan::AddMatrix(const std::string& name, int64_t rows, int64_t cols,
                                    WeightView* view) {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, Take(name, {cols, rows}));
  view->format = DecodedFormat(tensor->type);
  view->rows = static_cast<int32_t>(rows);
  view->cols = static_cast<int32_t>(cols);
  matrices_.push_back({tensor, view, Reserve(WeightBytes(view->format, rows, cols))});
  return absl::OkStatus();
}

absl::Status WeightsPlan::AddVector(const std::string& name, int64_t size, const float** place) {
  ASSIGN_OR_RETURN(const GgufTensor* tensor, TakeVector(name, size));
  vectors_.push_back({tensor, place, Reserve(size * static_cast<int64_t>(sizeof(float)))});
  return absl::OkStatus();
}

absl::Status WeightsPlan::AddLayerVectors(const std::string& prefix, LayerWeights* layer) {
  const int64_t q_size = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  const int64_t kv_size = static_cast<int64_t>(config_.num_kv_heads) * config_.head_dim;
  RETURN_IF_ERROR(AddVector(prefix + "attn_norm.weight", config_.embed, &layer->attn_norm));
  RETURN_IF_ERROR(AddVector(prefix + "ffn_norm.weight", config_.embed, &layer->ffn_norm));
  if (config_.has_qkv_biases) {
    RETURN_IF_ERROR(AddVector(prefix + "attn_q.bias", q_size, &layer->bq));
    RETURN_IF_ERROR(AddVector(prefix + "attn_k.bias", kv_size, &layer->bk));
    RETURN_IF_ERROR(AddVector(prefix + "attn_v.bias", kv_size, &layer->bv));
  }
  if (config_.has_qk_norms) {
    RETURN_IF_ERROR(AddVector(prefix + "attn_q_norm.weight", config_.head_dim, &layer->q_norm));
    RETURN_IF_ERROR(AddVector(prefix + "attn_k_norm.weight", config_.head_dim, &layer->k_norm));
  }
  if (config_.has_post_norms) {
    RETURN_IF_ERROR(
        AddVector(prefix + "post_attention_norm.weight", config_.embed, &layer->post_attn_norm));
    RETURN_IF_ERROR(
        AddVector(prefix + "post_ffw_norm.weight", config_.embed, &layer->post_ffn_norm));
  }
  return absl::OkStatus();
}

absl::Status WeightsPlan::AddLayer(int32_t index, LayerWeights* layer) {
  const std::string prefix = absl::StrCat("blk.", index, ".");
  const int64_t embed = config_.embed, feed_forward = config_.feed_forward;
  const int64_t q_size = static_cast<int64_t>(config_.num_heads) * config_.head_dim;
  const int64_t kv_size = static_cast<int64_t>(config_.num_kv_heads) * config_.head_dim;
  RETURN_IF_ERROR(AddMatrix(prefix + "attn_q.weight", q_size, embed, &layer->wq));
  RETURN_IF_ERROR(AddMatrix(prefix + "attn_k.weight", kv_size, embed, &layer->wk));
  RETURN_IF_ERROR(AddMatrix(prefix + "attn_v.weight", kv_size, embed, &layer->wv));
  RETURN_IF_ERROR(AddMatrix(prefix + "attn_output.weight", embed, q_size, &layer->wo));
  RETURN_IF_ERROR(AddMatrix(prefix + "ffn_gate.weight", feed_forward, embed, &layer->gate));
  RETURN_IF_ERROR(AddMatrix(prefix + "ffn_up.weight", feed_forward, embed, &layer->up));
  RETURN_IF_ERROR(AddMatrix(prefix + "ffn_down.weight", embed, feed_forward, &layer->down));
  return AddLayerVectors(prefix, layer);
}

absl::Status WeightsPlan::CheckAllTaken() const {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (taken_.contains(&tensor)) continue;
    return absl::UnimplementedError(
        absl::StrCat(file_.path(), ": tensor ", QuotedForMessage(tensor.name),
                     " has no place in architecture ", QuotedForMessage(config_.architecture)));
  }
  return absl::OkStatus();
}

absl::Status WeightsPlan::Add(Weights* weights) {
  weights->layers.resize(config_.num_layers);
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    RETURN_IF_ERROR(AddLayer(layer, &weights->layers[layer]));
  }
  RETURN_IF_ERROR(
      AddMatrix("token_embd.weight", config_.vocab, config_.embed, &weights->embedding));
  RETURN_IF_ERROR(AddVector("output_norm.weight", config_.embed, &weights->output_norm));
  if (!config_.tied_output) {
    RETURN_IF_ERROR(AddMatrix("output.weight", config_.vocab, config_.embed, &weights->output));
  }
  if (config_.has_rope_freqs) {
    ASSIGN_OR_RETURN(rope_freqs_, TakeVector("rope_freqs.weight", config_.head_dim / 2));
  }
  return CheckAllTaken();
}

// Decodes `num_rows` rows into `stream` on several threads, each with whole row groups.
absl::Status DecodeChunk(const GgufTensor& tensor, const WeightView& view, int64_t first_row,
                         int64_t num_rows, std::byte* stream) {
  const int64_t group_bytes = WeightBytes(view.format, kWeightRowGroup, view.cols);
  const int64_t groups = (num_rows + kWeightRowGroup - 1) / kWeightRowGroup;
  const int64_t cores = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, kMaxThreads);
  const int64_t num_parts =
      std::clamp<int64_t>(groups * group_bytes / kMinBytesPerThread, 1, std::min(cores, groups));
  std::vector<absl::Status> results(num_parts);
  const auto decode_part = [&](int64_t part) {
    const int64_t begin = groups * part / num_parts, end = groups * (part + 1) / num_parts;
    const int64_t row = begin * kWeightRowGroup;
    results[part] =
        DecodeMatrixRows(tensor, first_row + row, std::min(end * kWeightRowGroup, num_rows) - row,
                         stream + begin * group_bytes);
  };
  std::vector<std::thread> threads;
  for (int64_t part = 1; part < num_parts; ++part) threads.emplace_back(decode_part, part);
  decode_part(0);
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& result : results) RETURN_IF_ERROR(result);
  return absl::OkStatus();
}

absl::Status DecodeMatrix(Backend* backend, const GgufTensor& tensor, const WeightView& view,
                          std::byte* to, std::vector<std::byte>* staging) {
  const int64_t group_bytes = WeightBytes(view.format, kWeightRowGroup, view.cols);
  const int64_t chunk_rows = std::max<int64_t>(kChunkBytes / group_bytes, 1) * kWeightRowGroup;
  for (int64_t row = 0; row < view.rows; row += chunk_rows) {
    const int64_t num_rows = std::min<int64_t>(chunk_rows, view.rows - row);
    const int64_t bytes = WeightBytes(view.format, num_rows, view.cols);
    staging->assign(bytes, std::byte{0});
    RETURN_IF_ERROR(DecodeChunk(tensor, view, row, num_rows, staging->data()));
    backend->CopyToDevice(to + row / kWeightRowGroup * group_bytes, staging->data(), bytes);
  }
  return absl::OkStatus();
}

absl::Status DecodeAll(Backend* backend, const WeightsPlan& plan, std::byte* buffer) {
  std::vector<std::byte> staging;
  for (const WeightsPlan::Matrix& matrix : plan.matrices()) {
    matrix.view->data = buffer + matrix.offset;
    RETURN_IF_ERROR(
        DecodeMatrix(backend, *matrix.tensor, *matrix.view, buffer + matrix.offset, &staging));
  }
  std::vector<float> values;
  for (const WeightsPlan::Vector& vector : plan.vectors()) {
    values.resize(vector.tensor->dims[0]);
    RETURN_IF_ERROR(DecodeVector(*vector.tensor, values.data()));
    backend->CopyToDevice(buffer + vector.offset, reinterpret_cast<const std::byte*>(values.data()),
                          static_cast<int64_t>(values.size() * sizeof(float)));
    *vector.place = reinterpret_cast<const float*>(buffer + vector.offset);
  }
  return absl::OkStatus();
}

absl::Status DecodeRopeFreqs(const GgufTensor& tensor, std::vector<float>* freqs) {
  freqs->resize(tensor.dims[0]);
  RETURN_IF_ERROR(DecodeVector(tensor, freqs->data()));
  for (size_t i = 0; i < freqs->size(); ++i) {
    if ((*freqs)[i] > 0.0f) continue;
    return absl::DataLossError(absl::StrCat("tensor \"", tensor.name, "\": element ", i, " is ",
                                            (*freqs)[i], "; divisors of angles must be positive"));
  }
  return absl::OkStatus();
}

// Puts the file's name in front of a message about one of its tensors.
absl::Status InFile(const GgufFile& file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(file.path(), ": ", status.message()));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Weights>> Weights::Load(Backend* backend, const GgufFile& file,
                                                       const ModelConfig& config) {
  std::unique_ptr<Weights> weights(new Weights);
  WeightsPlan plan(file, config);
  RETURN_IF_ERROR(plan.Add(weights.get()));
  if (plan.rope_freqs() != nullptr) {
    RETURN_IF_ERROR(InFile(file, DecodeRopeFreqs(*plan.rope_freqs(), &weights->rope_freqs_)));
    weights->rope_freqs = weights->rope_freqs_.data();
  }
  ASSIGN_OR_RETURN(weights->buffer_, backend->Allocate(plan.bytes()));
  weights->bytes = plan.bytes();
  RETURN_IF_ERROR(InFile(file, DecodeAll(backend, plan, weights->buffer_.data())));
  // A copy that failed shows here.
  RETURN_IF_ERROR(backend->Synchronize());
  if (config.tied_output) weights->output = weights->embedding;
  return weights;
}

}  // namespace condense
