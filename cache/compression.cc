#include "cache/compression.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "cache/policies/registry.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

struct Preset {
  std::string_view name;
  std::string_view policy;
  double ratio;
  // Formats of 4 bits alone move single outputs by more than 0.05 without any visible cost. What
  // evaluation accepts passes, see docs/quality.md.
  double max_output_error;
  double max_log_mass_error;
  float cosine = 0.87f;  // its policy merges nothing that is less alike, whatever the ratio
};

// By ascending ratio. The ratios of those that do not merge are what their formats reach.
constexpr Preset kPresets[] = {
    {"off", "none", 1.0, 0.0, 0.0},
    {"lossless", "none", 1.9, 0.05, 0.05},
    {"light", "none", 2.8, 0.20, 0.05},
    {"balanced", "balanced", 4.35, 0.35, 0.10, 0.93f},
    {"aggressive", "balanced", 8.0, 0.50, 0.20, 0.86f},
};

// Up to which ratio a format is the choice. Without merging it must reach the ratio by itself, in a
// sequence of a few thousand tokens; with merging narrower values begin to pay only where clusters
// would have to be looser than cosine 0.90 instead.
struct FormatRange {
  KvFormat format;
  double alone;
  double merging;
};
constexpr FormatRange kFormatRanges[] = {
    {KvFormat::kK8V8, 1.9, 1.9},
    {KvFormat::kK6V4, 2.8, 2.8},
    {KvFormat::kK4V4, 3.4, 6.0},
    {KvFormat::kK4V3, kMaxRatio, kMaxRatio},
};

const Preset* FindPreset(std::string_view name) {
  const auto found = std::find_if(std::begin(kPresets), std::end(kPresets),
                                  [&](const Preset& preset) { return preset.name == name; });
  return found == std::end(kPresets) ? nullptr : found;
}

void SetFormat(Compression* compression) {
  if (compression->ratio == 1.0) return;
  const bool merges = compression->policy != "none";
  for (const FormatRange& range : kFormatRanges) {
    if (compression->ratio > (merges ? range.merging : range.alone)) continue;
    compression->formats = {range.format};
    // Wider keys gain nothing from it that could be measured, and reading costs more.
    compression->centred = KvKeyBits(range.format) <= 4;
    compression->keeps_window = merges || KvKeyBits(range.format) < 8;
    return;
  }
}

// Those of the mildest preset that goes as far.
void SetLimits(Compression* compression) {
  const Preset* limits = std::begin(kPresets);
  while (limits->ratio < compression->ratio && limits + 1 != std::end(kPresets)) ++limits;
  compression->max_output_error = limits->max_output_error;
  compression->max_log_mass_error = limits->max_log_mass_error;
}

absl::Status CheckPolicy(std::string_view policy) {
  const absl::Status status = MakePolicy(policy).status();
  if (status.ok()) return status;
  return absl::InvalidArgumentError("compression." + std::string(status.message()));
}

absl::Status CheckRatio(double ratio) {
  // Written so that NaN fails.
  if (ratio >= 1.0 && ratio <= kMaxRatio) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("compression.ratio is %g, must be in [1, %g]", ratio, kMaxRatio));
}

absl::Status CheckNothingBesideOff(std::optional<std::string_view> policy,
                                   std::optional<double> ratio) {
  if (policy.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("compression.policy is \"%s\", must be left out where compression.preset "
                        "is \"off\"",
                        std::string(*policy)));
  }
  if (ratio.has_value()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "compression.ratio is %g, must be left out where compression.preset is \"off\"", *ratio));
  }
  return absl::OkStatus();
}

}  // namespace

const std::vector<std::string>& PresetNames() {
  static const auto* const kNames = [] {
    auto* names = new std::vector<std::string>;
    for (const Preset& preset : kPresets) names->emplace_back(preset.name);
    return names;
  }();
  return *kNames;
}

absl::StatusOr<Compression> MakeCompression(std::string_view preset,
                                            std::optional<std::string_view> policy,
                                            std::optional<double> ratio) {
  const Preset* found = FindPreset(preset);
  if (found == nullptr) {
    std::string known;
    for (const Preset& p : kPresets) known += (known.empty() ? "" : ", ") + std::string(p.name);
    return absl::InvalidArgumentError(absl::StrFormat(
        "compression.preset is \"%s\", must be one of %s", std::string(preset), known));
  }
  if (found->ratio == 1.0) RETURN_IF_ERROR(CheckNothingBesideOff(policy, ratio));
  if (policy.has_value()) RETURN_IF_ERROR(CheckPolicy(*policy));
  if (ratio.has_value()) RETURN_IF_ERROR(CheckRatio(*ratio));

  Compression compression;
  compression.preset = policy.has_value() || ratio.has_value() ? "custom" : std::string(preset);
  compression.policy = std::string(policy.value_or(found->policy));
  compression.ratio = ratio.value_or(found->ratio);
  if (compression.preset != "custom") compression.cosine = found->cosine;
  SetFormat(&compression);
  SetLimits(&compression);
  return compression;
}

}  // namespace condense
