#include "server/convert_compression.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status_macros.h"
#include "server/field_check.h"

namespace condense {
namespace {

// What may be quoted in a refusal.
constexpr int64_t kMaxNameBytes = 64;

absl::StatusOr<Compression> Make(const std::string& preset, std::optional<std::string_view> policy,
                                 std::optional<double> ratio, int32_t cluster_window) {
  ASSIGN_OR_RETURN(Compression made, MakeCompression(preset, policy, ratio));
  made.cluster_window = cluster_window;
  return made;
}

const char* LevelName(GuardLevel level) {
  switch (level) {
    case GuardLevel::kClear:
      return "clear";
    case GuardLevel::kWarning:
      return "warning";
    case GuardLevel::kBroken:
      break;
  }
  return "broken";
}

}  // namespace

absl::StatusOr<std::optional<Compression>> ToCompression(const v1::Compression& message,
                                                         int32_t cluster_window) {
  if (!message.has_preset() && !message.has_policy() && !message.has_ratio()) return std::nullopt;
  RETURN_IF_ERROR(CheckName("compression.preset", message.preset(), kMaxNameBytes));
  RETURN_IF_ERROR(CheckName("compression.policy", message.policy(), kMaxNameBytes));
  std::optional<std::string_view> policy;
  std::optional<double> ratio;
  if (message.has_policy()) policy = message.policy();
  if (message.has_ratio()) {
    RETURN_IF_ERROR(CheckRange("compression.ratio", message.ratio(), 1, kMaxRatio));
    ratio = message.ratio();
  }
  ASSIGN_OR_RETURN(Compression made, Make(message.has_preset() ? message.preset() : kDefaultPreset,
                                          policy, ratio, cluster_window));
  return std::optional<Compression>(std::move(made));
}

absl::StatusOr<Compression> CompressionOfFlags(const std::string& preset, const std::string& policy,
                                               double ratio, int32_t cluster_window) {
  std::optional<std::string_view> given_policy;
  std::optional<double> given_ratio;
  if (!policy.empty()) given_policy = policy;
  if (ratio != 0) {
    RETURN_IF_ERROR(CheckRange("--ratio", ratio, 1, kMaxRatio));
    given_ratio = ratio;
  }
  const absl::StatusOr<Compression> made = Make(preset, given_policy, given_ratio, cluster_window);
  if (made.ok()) return made;
  return absl::Status(
      made.status().code(),
      absl::StrReplaceAll(std::string(made.status().message()), {{"compression.", "--"}}));
}

absl::StatusOr<std::optional<GuardrailMode>> ToForcedMode(const std::string& mode) {
  RETURN_IF_ERROR(CheckName("mode", mode, kMaxNameBytes));
  if (mode == "auto") return std::optional<GuardrailMode>();
  // Probation is a way back, nothing to stay in.
  for (const GuardrailMode known :
       {GuardrailMode::kCompacting, GuardrailMode::kHolding, GuardrailMode::kUncompressed}) {
    if (mode == GuardrailModeName(known)) return std::optional<GuardrailMode>(known);
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "mode is \"%s\"; must be one of auto, compacting, holding, uncompressed", mode));
}

void FillSwaps(const SwapTotals& swaps, v1::SwapCounts* message) {
  message->set_accepted(swaps.accepted);
  message->set_refused(swaps.refused);
  message->set_useless(swaps.useless);
  message->set_failed(swaps.failed);
  message->set_dropped(swaps.dropped);
}

double HeldRatio(const EngineLoad& load) {
  if (load.kv_bytes_used <= 0 || load.kv_bytes_16bit <= 0) return 1.0;
  return static_cast<double>(load.kv_bytes_16bit) / static_cast<double>(load.kv_bytes_used);
}

void FillGuardReadings(const GuardReports& reports, const GuardrailLimits& limits,
                       google::protobuf::RepeatedPtrField<v1::GuardReading>* messages) {
  for (int i = 0; i < kNumGuards; ++i) {
    const GuardTraits& traits = TraitsOf(static_cast<Guard>(i));
    const GuardLimit& limit = limits.*traits.limit;
    v1::GuardReading* message = messages->Add();
    message->set_guard(traits.label);
    if (limit.bound) {
      message->set_warning(limit.warning);
      message->set_limit(limit.limit);
    }
    message->set_min_samples(limit.min_samples);
    message->set_level(LevelName(reports[i].level));
    const std::optional<Reading>& reading = reports[i].reading;
    if (!reading.has_value()) continue;
    message->set_value(reading->value);
    message->set_samples(reading->samples);
    if (reading->lower.has_value()) message->set_lower(*reading->lower);
    if (reading->upper.has_value()) message->set_upper(*reading->upper);
  }
}

void FillCompressionState(const Compression& compression, bool paused, const EngineLoad& load,
                          v1::CompressionState* message) {
  message->set_preset(compression.preset);
  message->set_policy(compression.policy);
  message->set_ratio(compression.ratio);
  for (const KvFormat format : compression.formats) message->add_formats(KvFormatName(format));
  message->set_paused(paused);
  message->set_mode(load.compaction_mode);
  message->set_mode_reason(load.compaction_reason);
  FillSwaps(load.swaps, message->mutable_swaps());
  message->set_jobs_out(load.jobs_out);
  message->set_bytes_held(load.kv_bytes_used);
  message->set_bytes_16bit(load.kv_bytes_16bit);
  message->set_ratio_held(HeldRatio(load));
  message->set_staging_bytes(load.staging_bytes);
  message->set_slack_bytes(load.slack_bytes);
}

}  // namespace condense
