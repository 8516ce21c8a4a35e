#ifndef CONDENSE_ENGINE_WEIGHTS_H_
#define CONDENSE_ENGINE_WEIGHTS_H_

// A model's tensors in backend memory, decoded from the file into the layouts that kernels read.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf.h"
#include "engine/model_config.h"
#include "kernels/backend.h"
#include "kernels/packed_weights.h"

namespace condense {

// Views and pointers into backend memory that Weights owns. Null where the architecture has no such
// tensor.
struct LayerWeights {
  WeightView wq;                          // [H * D, E]
  WeightView wk;                          // [G * D, E]
  WeightView wv;                          // [G * D, E]
  WeightView wo;                          // [E, H * D]
  WeightView gate;                        // [F, E]
  WeightView up;                          // [F, E]
  WeightView down;                        // [E, F]
  const float* attn_norm = nullptr;       // [E]
  const float* ffn_norm = nullptr;        // [E]
  const float* bq = nullptr;              // [H * D]
  const float* bk = nullptr;              // [G * D]
  const float* bv = nullptr;              // [G * D]
  const float* q_norm = nullptr;          // [D]
  const float* k_norm = nullptr;          // [D]
  const float* post_attn_norm = nullptr;  // [E]
  const float* post_ffn_norm = nullptr;   // [E]
};

// Owns: one buffer of backend memory. Threads: immutable after Load.
// Nothing refers to the file once Load has returned.
class Weights {
 public:
  // Checks name, shape and type of every tensor before it allocates, then decodes on all cores.
  // REQUIRES: `config` was read from `file`; the backend outlives the result.
  // Errors: DATA_LOSS naming the tensor, what it is and what was expected, or a tensor with a value
  // that is not finite; UNIMPLEMENTED for a tensor that the architecture has no place for; those of
  // Backend::Allocate.
  static absl::StatusOr<std::unique_ptr<Weights>> Load(Backend* backend, const GgufFile& file,
                                                       const ModelConfig& config);
  Weights(const Weights&) = delete;
  Weights& operator=(const Weights&) = delete;

  WeightView embedding;                // [V, E]
  WeightView output;                   // [V, E]; the embedding's own view when tied
  const float* output_norm = nullptr;  // [E]
  const float* rope_freqs =
      nullptr;  // host memory, [D/2]: divides the angle of each frequency; null: none
  std::vector<LayerWeights> layers;  // [L]
  int64_t bytes = 0;                 // of backend memory

 private:
  Weights() = default;

  Buffer buffer_;
  std::vector<float> rope_freqs_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_WEIGHTS_H_
