#ifndef CONDENSE_ENGINE_MODEL_H_
#define CONDENSE_ENGINE_MODEL_H_

// The forward pass of a decoder-only transformer: reads like the paper, one Backend call per line.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache/kv_cache.h"
#include "cache/rope_table.h"
#include "engine/batch.h"
#include "engine/gguf.h"
#include "engine/model_config.h"
#include "engine/weights.h"
#include "kernels/backend.h"

namespace condense {

// Owns: weights and activation buffers, all allocated in Load. Threads: thread-compatible, owner is
// the engine thread.
class Model {
 public:
  // Rows of logits that exist at once; more are computed in turns.
  static constexpr int32_t kLogitRows = 64;

  // `step_tokens`: the largest T of a step. Errors of ReadModelConfig, Weights::Load and
  // Backend::Allocate.
  static absl::StatusOr<std::unique_ptr<Model>> Load(Backend* backend, const GgufFile& file,
                                                     int32_t step_tokens);

  // Enqueues the pass over all rows of the batch; keys and values go into the cache, where room is
  // reserved. REQUIRES: 1 <= T <= step_tokens.
  void Forward(Batch* batch, KvCache* cache);
  // What its attention took the calling thread. On a backend that only enqueues, next to nothing.
  absl::Duration attention_time() const { return attention_time_; }
  // Enqueues the logits [count, V] of rows batch.logit_rows[first, first + count) of the last
  // Forward. Valid until the next call. REQUIRES: count <= kLogitRows.
  const float* Logits(const Batch& batch, int32_t first, int32_t count);

  // Mean keys before RoPE, which centred blocks leave out; constant from then on.
  // means: [L, G, D].
  absl::Status SetKeyMeans(std::span<const float> means);
  // Angles of positions [0, num_positions) for lists that hold positions.
  absl::Status MakePositionTables(int32_t num_positions);
  // [G, D] of a layer, device; null before SetKeyMeans.
  const float* KeyMean(int32_t layer) const;
  PositionTable Positions(int32_t layer) const;  // empty before MakePositionTables
  RopeFrequencies Frequencies(int32_t layer) const;

  const ModelConfig& config() const { return config_; }
  const Weights& weights() const { return *weights_; }
  // What a KvCache for this model is made of.
  KvLayout MakeKvLayout(int32_t block_tokens) const;

 private:
  // For one base frequency: cos and sin of every token of a step, [T, D/2] each, and of every
  // position, [P, D/2] each.
  struct LayerRope {
    double theta = 0.0;
    double linear_factor = 1.0;
    Buffer cos, sin;
    Buffer position_cos, position_sin;
  };

  Model(Backend* backend, ModelConfig config) : backend_(backend), config_(std::move(config)) {}
  absl::Status AllocateBuffers(int32_t step_tokens);
  void FillAngles(std::span<const int32_t> positions, const LayerRope& rope, Buffer* cos,
                  Buffer* sin);
  const LayerRope& RopeOf(int32_t layer) const;
  RopeFrequencies FrequenciesOf(const LayerRope& rope) const;
  // Copies the queries that sequences want to keep out of q_.
  void CaptureQueries(int32_t layer, const Batch& batch);
  void Attention(int32_t layer, Batch* batch, KvCache* cache);
  void FeedForward(int32_t layer, int32_t rows);
  void Norm(const float* x, const float* weight, int32_t rows, int32_t cols, float* out);
  // x_ += y, normalised first where the architecture has a norm for it.
  void AddToResidual(const float* post_norm, int32_t rows);

  Backend* const backend_;
  const ModelConfig config_;
  std::unique_ptr<Weights> weights_;
  std::vector<LayerRope> ropes_;
  absl::Duration attention_time_;           // of the last Forward
  int32_t num_positions_ = 0;               // of the position tables
  std::vector<float> cos_host_, sin_host_;  // [T, D/2]
  std::vector<KvList> lists_;               // [S, G] of the layer at hand
  std::vector<int32_t> logit_row_index_;

  Buffer x_;          // [T, E] residual stream
  Buffer h_;          // [T, E] normalised input, and what post-norms read
  Buffer q_, k_, v_;  // [T, H * D], [T, G * D], [T, G * D]
  Buffer attention_;  // [T, H * D]
  Buffer gate_, up_;  // [T, F]
  Buffer logit_h_;    // [kLogitRows, E]
  Buffer logits_;     // [kLogitRows, V]
  Buffer key_means_;  // [L, G, D]
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_MODEL_H_
