#ifndef CONDENSE_ENGINE_MODEL_CONFIG_H_
#define CONDENSE_ENGINE_MODEL_CONFIG_H_

// The dimensions and architectural choices of one model, read from a GGUF file and checked against
// each other.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/gguf.h"
#include "kernels/op_args.h"

namespace condense {

struct ModelConfig {
  std::string architecture;
  std::string name;  // general.name; may be empty

  int32_t num_layers = 0;      // L
  int32_t embed = 0;           // E
  int32_t num_heads = 0;       // H, a multiple of G
  int32_t num_kv_heads = 0;    // G
  int32_t head_dim = 0;        // D, a multiple of 8
  int32_t feed_forward = 0;    // F
  int32_t vocab = 0;           // V, the rows of the token embedding
  int32_t context_length = 0;  // tokens that the model was trained for

  float rms_epsilon = 0.0f;
  float attention_scale = 0.0f;  // factor of q k^T
  float embedding_scale = 1.0f;  // factor of the looked-up embeddings
  Activation activation = Activation::kSilu;

  RopePairing rope_pairing = RopePairing::kAdjacent;
  double rope_theta = 0.0;          // layers that see everything
  double rope_linear_factor = 1.0;  // divides the angles of those layers
  double local_rope_theta = 0.0;    // sliding-window layers; their angles are not scaled
  bool has_rope_freqs = false;      // rope_freqs.weight [D/2] divides the angles

  int32_t sliding_window =
      0;  // tokens that a local layer sees, its own included; 0: no local layers
  std::vector<uint8_t> layer_local;  // [L], 1: the layer has the window

  bool has_qkv_biases = false;
  bool has_qk_norms = false;    // RMS norm of each head of q and k, before RoPE
  bool has_post_norms = false;  // RMS norm of what attention and feed-forward add to the residual
  bool tied_output = false;     // logits come from the token embedding

  bool is_local(int32_t layer) const { return layer_local[layer] != 0; }
  // Tokens that `layer` sees; 0: all.
  int32_t window(int32_t layer) const { return is_local(layer) ? sliding_window : 0; }
  double theta(int32_t layer) const { return is_local(layer) ? local_rope_theta : rope_theta; }
  double linear_factor(int32_t layer) const { return is_local(layer) ? 1.0 : rope_linear_factor; }
};

// Errors: DATA_LOSS naming key, value and limit for a key that is missing, of another type, out of
// range, or in conflict with another; UNIMPLEMENTED for an architecture or a feature that is not
// known, with the list of known ones.
absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file);

// Names of the known architectures, sorted.
std::vector<std::string> KnownArchitectures();

}  // namespace condense

#endif  // CONDENSE_ENGINE_MODEL_CONFIG_H_
