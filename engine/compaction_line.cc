#include "engine/compaction_line.h"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "engine/unit_calibration.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

// Enough that the worker never runs dry between two turns.
constexpr int32_t kMailboxJobs = 32;

absl::StatusOr<UnitCalibration> SetUpModel(Backend* backend, Model* model, KvCache* cache,
                                           const Tokenizer& tokenizer, int32_t step_tokens,
                                           int32_t cluster_window, int32_t max_positions) {
  std::vector<TokenId> tokens = tokenizer.Encode(CalibrationText(), {});
  int64_t room = std::min<int64_t>({cache->max_sequence_tokens(), max_positions, int64_t{1024}});
  // With the repetition, or too short for one.
  room = room >= 5 * kRepeatedTokens ? room - kRepeatedTokens
                                     : std::min<int64_t>(room, 4 * kRepeatedTokens - 1);
  tokens.resize(std::min<int64_t>(static_cast<int64_t>(tokens.size()), room));
  if (tokens.empty()) return absl::FailedPreconditionError("no tokens to calibrate with");
  ASSIGN_OR_RETURN(UnitCalibration units,
                   MeasureUnits(backend, model, cache, tokens, step_tokens, cluster_window));
  RETURN_IF_ERROR(model->SetKeyMeans(units.means));
  RETURN_IF_ERROR(model->MakePositionTables(max_positions));
  return units;
}

}  // namespace

absl::StatusOr<std::unique_ptr<CompactionLine>> CompactionLine::Make(
    Backend* backend, Model* model, KvCache* cache, const Tokenizer& tokenizer,
    const CompactionConfig& config, int32_t step_tokens, int32_t max_positions) {
  ASSIGN_OR_RETURN(UnitCalibration units, SetUpModel(backend, model, cache, tokenizer, step_tokens,
                                                     config.cluster_window, max_positions));
  const ModelConfig& c = model->config();
  CompactionModel parts{.arena = cache->arena(),
                        .shape = cache->layout().block,
                        .num_kv_heads = c.num_kv_heads,
                        .group = c.num_heads / c.num_kv_heads,
                        .attention_scale = c.attention_scale};
  CompactorOptions options{.swap_every = config.swap_every,
                           .grace_tokens = config.grace_tokens,
                           .group = parts.group,
                           .merge_curves = std::move(units.merge_curves),
                           .recall = std::move(units.recall),
                           .mark_at = config.mark_at,
                           .soft_limit = config.soft_limit,
                           .hard_limit = config.hard_limit,
                           .drop_share = config.drop_share};
  for (int32_t layer = 0; layer < c.num_layers; ++layer) {
    parts.key_mean.push_back(model->KeyMean(layer));
    parts.positions.push_back(model->Positions(layer));
    parts.frequencies.push_back(model->Frequencies(layer));
    options.centred_layers.push_back(c.window(layer) == 0);
  }
  // Where the backend's threads take every core, the worker takes its time from theirs.
  std::unique_ptr<CompactionPace> pace;
  if (backend->Info().num_threads >= static_cast<int32_t>(std::thread::hardware_concurrency())) {
    pace = std::make_unique<CompactionPace>(
        PaceLimits{absl::ToChronoNanoseconds(config.step_time), config.step_share});
  }
  return std::unique_ptr<CompactionLine>(
      new CompactionLine(backend, cache, std::move(parts), std::move(options), std::move(pace)));
}

CompactionLine::CompactionLine(Backend* backend, KvCache* cache, CompactionModel model,
                               CompactorOptions options, std::unique_ptr<CompactionPace> pace)
    : pace_(std::move(pace)),
      mailbox_(kMailboxJobs),
      compactor_(cache, &mailbox_, std::move(options)),
      worker_(backend, std::move(model), &mailbox_, pace_.get()) {}

}  // namespace condense
