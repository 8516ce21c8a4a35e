#include "engine/model_config.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/gguf_reader.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// Limits of what is taken for a model rather than for a damaged file.
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxWidth = 1 << 20;  // E and F
constexpr int64_t kMaxHeads = 1024;
constexpr int64_t kMaxHeadDim = 256;
constexpr int64_t kHeadDimStep = 8;
constexpr int64_t kMaxVocab = 1 << 22;
constexpr int64_t kMaxContext = 1 << 24;
constexpr double kMaxRmsEpsilon = 1.0;
constexpr double kMinRopeTheta = 1.0, kMaxRopeTheta = 1e12;
constexpr double kMinRopeFactor = 1e-3, kMaxRopeFactor = 1e6;
constexpr double kDefaultRopeTheta = 10000.0;

// One architecture: what it adds to the keys that all share.
struct ArchitectureRow {
  const char* name;
  absl::Status (*read)(const GgufFile& file, ModelConfig* config);
};

// A metadata key of the file's own architecture.
std::string KeyOf(const ModelConfig& config, std::string_view key) {
  return absl::StrFormat("%s.%s", config.architecture, key);
}

template <typename... Parts>
absl::Status Conflict(const GgufFile& file, const Parts&... parts) {
  return absl::DataLossError(absl::StrCat(file.path(), ": ", parts...));
}

template <typename... Parts>
absl::Status NotSupported(const GgufFile& file, const Parts&... parts) {
  return absl::UnimplementedError(absl::StrCat(file.path(), ": ", parts...));
}

// Reads a required integer of [1, high].
absl::Status ReadSize(const GgufFile& file, const std::string& key, int64_t high, int32_t* size) {
  ASSIGN_OR_RETURN(const int64_t value, file.Int(key, 1, high));
  *size = static_cast<int32_t>(value);
  return absl::OkStatus();
}

absl::Status ReadHeadDim(const GgufFile& file, ModelConfig* config) {
  const std::string key = KeyOf(*config, "attention.key_length");
  if (file.Find(key) != nullptr) {
    RETURN_IF_ERROR(ReadSize(file, key, kMaxHeadDim, &config->head_dim));
  } else if (config->embed % config->num_heads == 0) {
    config->head_dim = config->embed / config->num_heads;
  } else {
    return Conflict(file, "key \"", KeyOf(*config, "attention.head_count"),
                    "\": ", config->num_heads, " does not divide embedding_length ", config->embed,
                    ", and there is no key_length");
  }
  if (config->head_dim > kMaxHeadDim || config->head_dim % kHeadDimStep != 0) {
    return Conflict(file, "key \"", key, "\": a head size of ", config->head_dim,
                    "; supported are multiples of ", kHeadDimStep, " up to ", kMaxHeadDim);
  }
  const std::string value_key = KeyOf(*config, "attention.value_length");
  ASSIGN_OR_RETURN(const int64_t value_length,
                   file.IntOr(value_key, 1, kMaxWidth, config->head_dim));
  if (value_length != config->head_dim) {
    return NotSupported(file, "key \"", value_key, "\": ", value_length,
                        " differs from the key length ", config->head_dim);
  }
  return absl::OkStatus();
}

absl::Status ReadHeads(const GgufFile& file, ModelConfig* config) {
  RETURN_IF_ERROR(
      ReadSize(file, KeyOf(*config, "attention.head_count"), kMaxHeads, &config->num_heads));
  const std::string key = KeyOf(*config, "attention.head_count_kv");
  ASSIGN_OR_RETURN(const int64_t kv_heads, file.IntOr(key, 1, kMaxHeads, config->num_heads));
  if (config->num_heads % kv_heads != 0) {
    return Conflict(file, "key \"", key, "\": ", kv_heads, " does not divide head_count ",
                    config->num_heads);
  }
  config->num_kv_heads = static_cast<int32_t>(kv_heads);
  RETURN_IF_ERROR(ReadHeadDim(file, config));
  config->attention_scale = static_cast<float>(1.0 / std::sqrt(config->head_dim));
  return absl::OkStatus();
}

// The linear factor, under the name of today or the older one; 1 when there is no scaling.
absl::Status ReadRopeScaling(const GgufFile& file, ModelConfig* config) {
  const std::string type_key = KeyOf(*config, "rope.scaling.type");
  ASSIGN_OR_RETURN(const std::string type, file.StringOr(type_key, "linear"));
  if (type == "none") return absl::OkStatus();
  if (type != "linear") {
    return NotSupported(file, "key \"", type_key, "\": unknown RoPE scaling ",
                        QuotedForMessage(type), "; known are none, linear");
  }
  std::string factor_key = KeyOf(*config, "rope.scaling.factor");
  if (file.Find(factor_key) == nullptr) factor_key = KeyOf(*config, "rope.scale_linear");
  ASSIGN_OR_RETURN(config->rope_linear_factor,
                   file.FloatOr(factor_key, kMinRopeFactor, kMaxRopeFactor, 1.0));
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->rope_theta, file.FloatOr(KeyOf(*config, "rope.freq_base"), kMinRopeTheta,
                                                    kMaxRopeTheta, kDefaultRopeTheta));
  config->local_rope_theta = config->rope_theta;
  const std::string key = KeyOf(*config, "rope.dimension_count");
  ASSIGN_OR_RETURN(const int64_t rotated, file.IntOr(key, 1, kMaxWidth, config->head_dim));
  if (rotated > config->head_dim) {
    return Conflict(file, "key \"", key, "\": ", rotated, " is above the head size ",
                    config->head_dim);
  }
  if (rotated < config->head_dim) {
    return NotSupported(file, "key \"", key, "\": ", rotated,
                        " rotates only a part of the head size ", config->head_dim);
  }
  return ReadRopeScaling(file, config);
}

absl::Status ReadVocab(const GgufFile& file, ModelConfig* config) {
  const GgufTensor* embedding = file.FindTensor("token_embd.weight");
  if (embedding == nullptr) return Conflict(file, "tensor \"token_embd.weight\" is missing");
  if (embedding->dims.size() != 2 || embedding->dims[0] != config->embed ||
      embedding->dims[1] > kMaxVocab) {
    return Conflict(file, "tensor \"token_embd.weight\": shape [",
                    absl::StrJoin(embedding->dims, ", "), "], expected [", config->embed,
                    ", vocabulary of at most ", kMaxVocab, "]");
  }
  config->vocab = static_cast<int32_t>(embedding->dims[1]);
  const std::string key = KeyOf(*config, "vocab_size");
  ASSIGN_OR_RETURN(const int64_t vocab_size, file.IntOr(key, 1, kMaxVocab, config->vocab));
  if (vocab_size != config->vocab) {
    return Conflict(file, "key \"", key, "\": ", vocab_size, ", but token_embd.weight has ",
                    config->vocab, " rows");
  }
  ASSIGN_OR_RETURN(const auto* tokens, file.Strings("tokenizer.ggml.tokens"));
  if (tokens->size() != static_cast<size_t>(config->vocab)) {
    return Conflict(file, "key \"tokenizer.ggml.tokens\": ", tokens->size(),
                    " tokens, but token_embd.weight has shape [", config->embed, ", ",
                    config->vocab, "]: one row per token is expected");
  }
  return absl::OkStatus();
}

// What would change the computation and is not computed here must not be passed over in silence.
absl::Status RefuseOtherFeatures(const GgufFile& file, const ModelConfig& config) {
  const std::string experts = KeyOf(config, "expert_count");
  ASSIGN_OR_RETURN(const int64_t num_experts, file.IntOr(experts, 0, kMaxWidth, 0));
  if (num_experts != 0) {
    return NotSupported(file, "key \"", experts, "\": ", num_experts,
                        "; mixtures of experts are not supported");
  }
  for (const char* name : {"final_logit_softcapping", "attn_logit_softcapping"}) {
    const std::string key = KeyOf(config, name);
    if (file.Find(key) == nullptr) continue;
    return NotSupported(file, "key \"", key, "\": soft-capping is not supported");
  }
  return absl::OkStatus();
}

absl::Status ReadShared(const GgufFile& file, ModelConfig* config) {
  ASSIGN_OR_RETURN(config->name, file.StringOr("general.name", ""));
  RETURN_IF_ERROR(ReadSize(file, KeyOf(*config, "block_count"), kMaxLayers, &config->num_layers));
  RETURN_IF_ERROR(ReadSize(file, KeyOf(*config, "embedding_length"), kMaxWidth, &config->embed));
  RETURN_IF_ERROR(
      ReadSize(file, KeyOf(*config, "feed_forward_length"), kMaxWidth, &config->feed_forward));
  RETURN_IF_ERROR(
      ReadSize(file, KeyOf(*config, "context_length"), kMaxContext, &config->context_length));
  ASSIGN_OR_RETURN(
      const double epsilon,
      file.Float(KeyOf(*config, "attention.layer_norm_rms_epsilon"), 0.0, kMaxRmsEpsilon));
  config->rms_epsilon = static_cast<float>(epsilon);
  RETURN_IF_ERROR(ReadHeads(file, config));
  RETURN_IF_ERROR(ReadRope(file, config));
  RETURN_IF_ERROR(ReadVocab(file, config));
  RETURN_IF_ERROR(RefuseOtherFeatures(file, *config));
  config->layer_local.assign(config->num_layers, 0);
  config->tied_output = file.FindTensor("output.weight") == nullptr;
  return absl::OkStatus();
}

absl::Status ReadLlama(const GgufFile& file, ModelConfig* config) {
  config->rope_pairing = RopePairing::kAdjacent;
  config->has_rope_freqs = file.FindTensor("rope_freqs.weight") != nullptr;
  // Llama models proper have no biases; some of their kin under the same name do.
  config->has_qkv_biases = file.FindTensor("blk.0.attn_q.bias") != nullptr;
  return absl::OkStatus();
}

absl::Status ReadQwen2(const GgufFile&, ModelConfig* config) {
  config->rope_pairing = RopePairing::kHalfSplit;
  config->has_qkv_biases = true;
  return absl::OkStatus();
}

absl::Status ReadQwen3(const GgufFile&, ModelConfig* config) {
  config->rope_pairing = RopePairing::kHalfSplit;
  config->has_qk_norms = true;
  return absl::OkStatus();
}

absl::Status ReadGemma3(const GgufFile& file, ModelConfig* config) {
  constexpr int64_t kDefaultPattern = 6;
  constexpr int32_t kLayersOf27b = 62;
  config->rope_pairing = RopePairing::kHalfSplit;
  config->has_qk_norms = true;
  config->has_post_norms = true;
  config->activation = Activation::kGeluTanh;
  config->embedding_scale = std::sqrt(static_cast<float>(config->embed));
  // The 27b alone divides scores by the root of embed / heads, which no key of the file says.
  if (config->num_layers == kLayersOf27b) {
    config->attention_scale =
        static_cast<float>(1.0 / std::sqrt(static_cast<double>(config->embed) / config->num_heads));
  }
  RETURN_IF_ERROR(ReadSize(file, KeyOf(*config, "attention.sliding_window"), kMaxContext,
                           &config->sliding_window));
  ASSIGN_OR_RETURN(const int64_t pattern,
                   file.IntOr(KeyOf(*config, "attention.sliding_window_pattern"), 1, kMaxLayers,
                              kDefaultPattern));
  for (int32_t layer = 0; layer < config->num_layers; ++layer) {
    config->layer_local[layer] = layer % pattern != pattern - 1;
  }
  ASSIGN_OR_RETURN(config->local_rope_theta,
                   file.FloatOr(KeyOf(*config, "rope.freq_base_swa"), kMinRopeTheta, kMaxRopeTheta,
                                kDefaultRopeTheta));
  return absl::OkStatus();
}

constexpr ArchitectureRow kArchitectures[] = {
    {"gemma3", ReadGemma3},
    {"llama", ReadLlama},
    {"qwen2", ReadQwen2},
    {"qwen3", ReadQwen3},
};

}  // namespace

std::vector<std::string> KnownArchitectures() {
  std::vector<std::string> names;
  for (const ArchitectureRow& row : kArchitectures) names.push_back(row.name);
  return names;
}

absl::StatusOr<ModelConfig> ReadModelConfig(const GgufFile& file) {
  ModelConfig config;
  ASSIGN_OR_RETURN(config.architecture, file.String("general.architecture"));
  for (const ArchitectureRow& row : kArchitectures) {
    if (config.architecture != row.name) continue;
    RETURN_IF_ERROR(ReadShared(file, &config));
    RETURN_IF_ERROR(row.read(file, &config));
    return config;
  }
  return NotSupported(file, "key \"general.architecture\": unknown architecture ",
                      QuotedForMessage(config.architecture), "; known are ",
                      absl::StrJoin(KnownArchitectures(), ", "));
}

}  // namespace condense
