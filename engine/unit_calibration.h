#ifndef CONDENSE_ENGINE_UNIT_CALIBRATION_H_
#define CONDENSE_ENGINE_UNIT_CALIBRATION_H_

// What compaction must know of a model unit by unit, measured at start on a text of its own: the
// mean key before RoPE, how alike keys are, and which units find facts again.

#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/kv_cache.h"
#include "cache/merge_curves.h"
#include "engine/model.h"
#include "kernels/backend.h"

namespace condense {

// A text of a few hundred words in several registers. What is measured depends far more on the unit
// than on what is read, but it must be the same for the life of the server: this text, at start.
std::string_view CalibrationText();

// Of the share of a mean's energy that is kept; the frequency pairs with the rest are set to zero,
// because reading a pair costs time for every entry.
inline constexpr double kMeanEnergyKept = 0.95;
// Tokens of the text that are repeated behind it, to see who finds them; texts shorter than four
// times that are not repeated.
inline constexpr int32_t kRepeatedTokens = 64;

// Of units of sliding windows, which are never compacted, all is zero.
struct UnitCalibration {
  // [L, G, D]: keys before RoPE, the first few (attention sinks) left out.
  std::vector<float> means;
  MergeCurves merge_curves;
  // [L * G] While the text repeats itself, the attention on the token that followed where it stands
  // now the first time: mean over queries of the group's largest. 0 where nothing was repeated.
  std::vector<float> recall;
};

// Runs the tokens through the model. `cluster_window`: that of the merges to come, in tokens. The
// cache is as empty afterwards as before. Errors: those of the backend; RESOURCE_EXHAUSTED if the
// tokens do not fit into the cache.
absl::StatusOr<UnitCalibration> MeasureUnits(Backend* backend, Model* model, KvCache* cache,
                                             std::span<const TokenId> tokens, int32_t step_tokens,
                                             int32_t cluster_window);

}  // namespace condense

#endif  // CONDENSE_ENGINE_UNIT_CALIBRATION_H_
