#include "engine/model.h"

#include <chrono>
#include <cmath>
#include <numeric>
#include <utility>

#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"

namespace condense {

absl::StatusOr<std::unique_ptr<Model>> Model::Load(Backend* backend, const GgufFile& file,
                                                   int32_t step_tokens) {
  ASSIGN_OR_RETURN(ModelConfig config, ReadModelConfig(file));
  std::unique_ptr<Model> model(new Model(backend, std::move(config)));
  ASSIGN_OR_RETURN(model->weights_, Weights::Load(backend, file, model->config_));
  RETURN_IF_ERROR(model->AllocateBuffers(step_tokens));
  return model;
}

absl::Status Model::AllocateBuffers(int32_t step_tokens) {
  const auto allocate = [&](Buffer* buffer, int64_t rows, int64_t cols) -> absl::Status {
    ASSIGN_OR_RETURN(*buffer,
                     backend_->Allocate(rows * cols * static_cast<int64_t>(sizeof(float))));
    return absl::OkStatus();
  };
  const int64_t rows = step_tokens;
  const int64_t q_width = int64_t{config_.num_heads} * config_.head_dim;
  const int64_t kv_width = int64_t{config_.num_kv_heads} * config_.head_dim;
  RETURN_IF_ERROR(allocate(&x_, rows, config_.embed));
  RETURN_IF_ERROR(allocate(&h_, rows, config_.embed));
  RETURN_IF_ERROR(allocate(&q_, rows, q_width));
  RETURN_IF_ERROR(allocate(&k_, rows, kv_width));
  RETURN_IF_ERROR(allocate(&v_, rows, kv_width));
  RETURN_IF_ERROR(allocate(&attention_, rows, q_width));
  RETURN_IF_ERROR(allocate(&gate_, rows, config_.feed_forward));
  RETURN_IF_ERROR(allocate(&up_, rows, config_.feed_forward));
  RETURN_IF_ERROR(allocate(&logit_h_, kLogitRows, config_.embed));
  RETURN_IF_ERROR(allocate(&logits_, kLogitRows, config_.vocab));
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    bool known = false;
    for (const LayerRope& rope : ropes_) {
      known |=
          rope.theta == config_.theta(layer) && rope.linear_factor == config_.linear_factor(layer);
    }
    if (known) continue;
    LayerRope rope{.theta = config_.theta(layer), .linear_factor = config_.linear_factor(layer)};
    RETURN_IF_ERROR(allocate(&rope.cos, rows, config_.head_dim / 2));
    RETURN_IF_ERROR(allocate(&rope.sin, rows, config_.head_dim / 2));
    ropes_.push_back(std::move(rope));
  }
  return absl::OkStatus();
}

absl::Status Model::SetKeyMeans(std::span<const float> means) {
  const auto size_bytes = static_cast<int64_t>(means.size_bytes());
  CHECK_EQ(static_cast<int64_t>(means.size()),
           int64_t{config_.num_layers} * config_.num_kv_heads * config_.head_dim);
  ASSIGN_OR_RETURN(key_means_, backend_->Allocate(size_bytes));
  backend_->CopyToDevice(key_means_.data(), reinterpret_cast<const std::byte*>(means.data()),
                         size_bytes);
  return backend_->Synchronize();
}

absl::Status Model::MakePositionTables(int32_t num_positions) {
  std::vector<int32_t> positions(num_positions);
  std::iota(positions.begin(), positions.end(), 0);
  const int64_t size_bytes =
      int64_t{num_positions} * (config_.head_dim / 2) * static_cast<int64_t>(sizeof(float));
  for (LayerRope& rope : ropes_) {
    ASSIGN_OR_RETURN(rope.position_cos, backend_->Allocate(size_bytes));
    ASSIGN_OR_RETURN(rope.position_sin, backend_->Allocate(size_bytes));
    FillAngles(positions, rope, &rope.position_cos, &rope.position_sin);
    RETURN_IF_ERROR(backend_->Synchronize());
  }
  num_positions_ = num_positions;
  return absl::OkStatus();
}

const float* Model::KeyMean(int32_t layer) const {
  if (key_means_.size_bytes() == 0) return nullptr;
  return key_means_.as<float>() + int64_t{layer} * config_.num_kv_heads * config_.head_dim;
}

PositionTable Model::Positions(int32_t layer) const {
  const LayerRope& rope = RopeOf(layer);
  return {.cos = rope.position_cos.as<float>(),
          .sin = rope.position_sin.as<float>(),
          .num_positions = num_positions_,
          .pairing = config_.rope_pairing};
}

RopeFrequencies Model::Frequencies(int32_t layer) const { return FrequenciesOf(RopeOf(layer)); }

RopeFrequencies Model::FrequenciesOf(const LayerRope& rope) const {
  RopeFrequencies frequencies{.pairing = config_.rope_pairing};
  for (int32_t i = 0; i < config_.head_dim / 2; ++i) {
    double radians = std::pow(rope.theta, -2.0 * i / config_.head_dim) / rope.linear_factor;
    if (weights_->rope_freqs != nullptr) radians /= weights_->rope_freqs[i];
    frequencies.radians.push_back(radians);
  }
  return frequencies;
}

KvLayout Model::MakeKvLayout(int32_t block_tokens) const {
  KvLayout layout{.num_layers = config_.num_layers,
                  .num_kv_heads = config_.num_kv_heads,
                  .block = {.head_dim = config_.head_dim, .block_tokens = block_tokens}};
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    layout.layer_window.push_back(config_.window(layer));
  }
  return layout;
}

void Model::FillAngles(std::span<const int32_t> positions, const LayerRope& rope, Buffer* cos,
                       Buffer* sin) {
  const int32_t half = config_.head_dim / 2;
  const RopeFrequencies frequencies = FrequenciesOf(rope);
  cos_host_.resize(positions.size() * half);
  sin_host_.resize(positions.size() * half);
  for (int32_t i = 0; i < half; ++i) {
    for (size_t t = 0; t < positions.size(); ++t) {
      const double angle = positions[t] * frequencies.radians[i];
      cos_host_[t * half + i] = static_cast<float>(std::cos(angle));
      sin_host_[t * half + i] = static_cast<float>(std::sin(angle));
    }
  }
  const int64_t size_bytes = static_cast<int64_t>(cos_host_.size() * sizeof(float));
  backend_->CopyToDevice(cos->data(), reinterpret_cast<const std::byte*>(cos_host_.data()),
                         size_bytes);
  backend_->CopyToDevice(sin->data(), reinterpret_cast<const std::byte*>(sin_host_.data()),
                         size_bytes);
}

const Model::LayerRope& Model::RopeOf(int32_t layer) const {
  for (const LayerRope& rope : ropes_) {
    if (rope.theta == config_.theta(layer) && rope.linear_factor == config_.linear_factor(layer))
      return rope;
  }
  CheckFailed(__FILE__, __LINE__, "no RoPE table for a layer");
}

void Model::CaptureQueries(int32_t layer, const Batch& batch) {
  const int64_t row_size = int64_t{config_.num_heads} * config_.head_dim;
  for (const QueryCapture& capture : batch.captures) {
    backend_->CopyToHost(reinterpret_cast<std::byte*>(capture.log->Row(capture.slot, layer)),
                         reinterpret_cast<std::byte*>(q_.as<float>() + capture.row * row_size),
                         row_size * static_cast<int64_t>(sizeof(float)));
  }
}

void Model::Norm(const float* x, const float* weight, int32_t rows, int32_t cols, float* out) {
  backend_->RmsNorm({.x = x,
                     .weight = weight,
                     .rows = rows,
                     .cols = cols,
                     .epsilon = config_.rms_epsilon,
                     .out = out});
}

void Model::AddToResidual(const float* post_norm, int32_t rows) {
  Norm(h_.as<float>(), post_norm, rows, config_.embed, h_.as<float>());
  backend_->Add({.x = x_.as<float>(), .y = h_.as<float>(), .size = int64_t{rows} * config_.embed});
}

void Model::Attention(int32_t layer, Batch* batch, KvCache* cache) {
  const LayerWeights& w = weights_->layers[layer];
  const int32_t rows = static_cast<int32_t>(batch->tokens.size());
  const int32_t heads = config_.num_heads, kv_heads = config_.num_kv_heads, dim = config_.head_dim;
  float* const q = q_.as<float>();
  float* const k = k_.as<float>();
  float* const v = v_.as<float>();

  Norm(x_.as<float>(), w.attn_norm, rows, config_.embed, h_.as<float>());
  backend_->Matmul({.x = h_.as<float>(),
                    .rows = rows,
                    .num_outputs = 3,
                    .outputs = {{.weight = w.wq, .bias = w.bq, .y = q},
                                {.weight = w.wk, .bias = w.bk, .y = k},
                                {.weight = w.wv, .bias = w.bv, .y = v}}});
  if (config_.has_qk_norms) {
    Norm(q, w.q_norm, rows * heads, dim, q);
    Norm(k, w.k_norm, rows * kv_heads, dim, k);
  }
  const LayerRope& rope = RopeOf(layer);
  RopeArgs rope_args{.x = q,
                     .cos = rope.cos.as<float>(),
                     .sin = rope.sin.as<float>(),
                     .num_tokens = rows,
                     .num_heads = heads,
                     .head_dim = dim,
                     .pairing = config_.rope_pairing};
  backend_->Rope(rope_args);
  rope_args.x = k;
  rope_args.num_heads = kv_heads;
  backend_->Rope(rope_args);
  CaptureQueries(layer, *batch);

  const int32_t num_sequences = static_cast<int32_t>(batch->sequences.size());
  lists_.resize(static_cast<size_t>(num_sequences) * kv_heads);
  for (int32_t s = 0; s < num_sequences; ++s) {
    KvList* lists = &lists_[static_cast<size_t>(s) * kv_heads];
    cache->Lists(batch->kv[s], layer, batch->sequences[s].num_tokens, lists);
    batch->sequences[s].lists = lists;
  }
  const KvBlockShape shape = cache->layout().block;
  backend_->KvAppend({.k = k,
                      .v = v,
                      .arena = cache->arena(),
                      .shape = shape,
                      .num_kv_heads = kv_heads,
                      .num_sequences = num_sequences,
                      .sequences = batch->sequences.data()});
  const auto begin = std::chrono::steady_clock::now();
  backend_->Attention({.q = q,
                       .arena = cache->arena(),
                       .shape = shape,
                       .num_heads = heads,
                       .num_kv_heads = kv_heads,
                       .num_sequences = num_sequences,
                       .sequences = batch->sequences.data(),
                       .scale = config_.attention_scale,
                       .key_mean = KeyMean(layer),
                       .positions = Positions(layer),
                       .window = config_.window(layer),
                       .out = attention_.as<float>()});
  attention_time_ += absl::FromChrono(std::chrono::steady_clock::now() - begin);
  const bool post_norm = config_.has_post_norms;
  backend_->Matmul(
      {.x = attention_.as<float>(),
       .rows = rows,
       .num_outputs = 1,
       .outputs = {
           {.weight = w.wo, .y = (post_norm ? h_ : x_).as<float>(), .accumulate = !post_norm}}});
  if (post_norm) AddToResidual(w.post_attn_norm, rows);
}

void Model::FeedForward(int32_t layer, int32_t rows) {
  const LayerWeights& w = weights_->layers[layer];
  float* const gate = gate_.as<float>();
  float* const up = up_.as<float>();
  Norm(x_.as<float>(), w.ffn_norm, rows, config_.embed, h_.as<float>());
  backend_->Matmul({.x = h_.as<float>(),
                    .rows = rows,
                    .num_outputs = 2,
                    .outputs = {{.weight = w.gate, .y = gate}, {.weight = w.up, .y = up}}});
  backend_->Gate({.gate = gate,
                  .up = up,
                  .size = int64_t{rows} * config_.feed_forward,
                  .activation = config_.activation});
  const bool post_norm = config_.has_post_norms;
  backend_->Matmul(
      {.x = gate,
       .rows = rows,
       .num_outputs = 1,
       .outputs = {
           {.weight = w.down, .y = (post_norm ? h_ : x_).as<float>(), .accumulate = !post_norm}}});
  if (post_norm) AddToResidual(w.post_ffn_norm, rows);
}

void Model::Forward(Batch* batch, KvCache* cache) {
  const int32_t rows = static_cast<int32_t>(batch->tokens.size());
  CHECK_GE(rows, 1);
  CHECK_LE(int64_t{rows} * config_.embed * 4, x_.size_bytes());
  for (LayerRope& rope : ropes_) FillAngles(batch->positions, rope, &rope.cos, &rope.sin);
  backend_->Embed({.table = weights_->embedding,
                   .tokens = batch->tokens.data(),
                   .num_tokens = rows,
                   .scale = config_.embedding_scale,
                   .out = x_.as<float>()});
  attention_time_ = absl::ZeroDuration();
  for (int32_t layer = 0; layer < config_.num_layers; ++layer) {
    Attention(layer, batch, cache);
    FeedForward(layer, rows);
  }
}

const float* Model::Logits(const Batch& batch, int32_t first, int32_t count) {
  CHECK_LE(count, kLogitRows);
  logit_row_index_.clear();
  for (int32_t i = first; i < first + count; ++i)
    logit_row_index_.push_back(batch.logit_rows[i].row);
  backend_->RmsNorm({.x = x_.as<float>(),
                     .weight = weights_->output_norm,
                     .row_index = logit_row_index_.data(),
                     .rows = count,
                     .cols = config_.embed,
                     .epsilon = config_.rms_epsilon,
                     .out = logit_h_.as<float>()});
  backend_->Matmul({.x = logit_h_.as<float>(),
                    .rows = count,
                    .num_outputs = 1,
                    .outputs = {{.weight = weights_->output, .y = logits_.as<float>()}}});
  return logits_.as<float>();
}

}  // namespace condense
