#ifndef CONDENSE_ENGINE_KEY_MEANS_H_
#define CONDENSE_ENGINE_KEY_MEANS_H_

// The mean key of each (layer, KV head) before RoPE: what centred blocks leave out of their keys.

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/kv_cache.h"
#include "engine/model.h"
#include "kernels/backend.h"

namespace condense {

// A text of a few hundred words in several registers. Means barely depend on what is read, but they
// must be the same for the life of the server: this text, at start.
std::string_view CalibrationText();

// Of the share of a mean's energy that is kept; the frequency pairs with the rest are set to zero,
// because reading a pair costs time for every entry.
inline constexpr double kMeanEnergyKept = 0.95;

// Runs the tokens through the model and averages the keys, the first few (attention sinks) left
// out. [L, G, D]. The cache is as empty afterwards as before. Errors: those of the backend;
// RESOURCE_EXHAUSTED if the tokens do not fit into the cache.
absl::StatusOr<std::vector<float>> MeasureKeyMeans(Backend* backend, Model* model, KvCache* cache,
                                                   std::span<const TokenId> tokens,
                                                   int32_t step_tokens);

}  // namespace condense

#endif  // CONDENSE_ENGINE_KEY_MEANS_H_
