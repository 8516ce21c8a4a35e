#include "engine/quality/guardrail_limits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"

namespace condense {
namespace {

using L = GuardrailLimits;
using E = GuardEffect;
constexpr bool kCeiling = true;
constexpr bool kFloor = false;
constexpr bool kNeedsBound = true;
constexpr bool kIsShare = true;
constexpr bool kIsTime = true;
constexpr bool kYieldsToMemory = true;

// In the order of Guard.
constexpr std::array<GuardTraits, kNumGuards> kTraits = {{
    {"hit_ratio", "hit ratio", &L::hit_ratio, E::kQuality, kFloor, false, kIsShare, 1, ""},
    {"hit_ratio_tail", "5th percentile of the hit ratio", &L::hit_ratio_tail, E::kQuality, kFloor,
     false, kIsShare, 1, ""},
    {"merge_latency", "merge latency", &L::merge_latency, E::kLatency, kCeiling, false, false, 1e3,
     " ms", kIsTime},
    {"memory_fluctuation", "memory fluctuation", &L::memory_fluctuation, E::kStability, kCeiling,
     false, false, 100, "%"},
    {"drift", "perplexity drift", &L::drift, E::kQuality, kCeiling, kNeedsBound, false, 100, "%"},
    {"canary", "canary recall", &L::canary, E::kQuality, kFloor, kNeedsBound, kIsShare, 1, ""},
    {"first_token", "first-token latency increase", &L::first_token, E::kLatency, kCeiling, false,
     false, 100, "%"},
    {"memory", "memory use", &L::memory, E::kMemory, kCeiling, false, kIsShare, 100, "%"},
    {"ttft", "time to first token", &L::ttft, E::kLatency, kCeiling, false, false, 1e3, " ms",
     kIsTime, kYieldsToMemory},
    {"inter_token", "time between tokens", &L::inter_token, E::kLatency, kCeiling, false, false,
     1e3, " ms", kIsTime, kYieldsToMemory},
}};

template <typename T>
absl::Status Refuse(const std::string& field, T value, const std::string& rule) {
  return absl::InvalidArgumentError(absl::StrCat(field, " is ", value, ", must be ", rule));
}

absl::Status CheckRange(const std::string& field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return Refuse(field, value, absl::StrCat("in [", low, ", ", high, "]"));
}

absl::Status CheckDuration(const std::string& field, absl::Duration value, absl::Duration least) {
  if (value >= least && value <= absl::Hours(24 * 365)) return absl::OkStatus();
  return Refuse(field, absl::FormatDuration(value),
                absl::StrCat("at least ", absl::FormatDuration(least), " and at most a year"));
}

absl::Status CheckGuard(const GuardTraits& traits, const GuardLimit& limit, double hysteresis) {
  if (!limit.bound) return absl::OkStatus();
  const std::string label = traits.label;
  const double most = traits.is_share ? 1.0 : 1e6;
  RETURN_IF_ERROR(CheckRange(label + "_warning", limit.warning, 0, most));
  RETURN_IF_ERROR(CheckRange(label + "_limit", limit.limit, 0, most));
  const bool warns_first =
      traits.is_ceiling ? limit.warning < limit.limit : limit.warning > limit.limit;
  if (!warns_first) {
    return Refuse(label + "_warning", limit.warning,
                  absl::StrCat(traits.is_ceiling ? "below" : "above", " the limit ", limit.limit));
  }
  // A warning that no value could end would last for good.
  const double margin = hysteresis * std::fabs(limit.limit - limit.warning);
  const double room = traits.is_ceiling ? limit.warning : most - limit.warning;
  if (margin > room) {
    return Refuse("hysteresis", hysteresis,
                  absl::StrCat("at most ", room / margin * hysteresis, " for ", label));
  }
  RETURN_IF_ERROR(
      CheckRange(label + "_min_samples", static_cast<double>(limit.min_samples), 1, 1e9));
  return CheckDuration(label + "_window", limit.window, absl::Seconds(1));
}

absl::Status CheckCounts(const GuardrailLimits& l) {
  RETURN_IF_ERROR(CheckRange("warning_windows", l.warning_windows, 1, 1000));
  // So that a warning has always lowered the ratio before a limit switches compaction off.
  RETURN_IF_ERROR(CheckRange("limit_windows", l.limit_windows, l.warning_windows, 1000));
  RETURN_IF_ERROR(CheckRange("clear_windows", l.clear_windows, 1, 1000));
  RETURN_IF_ERROR(CheckRange("probation_windows", l.probation_windows, 0, 1000));
  RETURN_IF_ERROR(CheckRange("max_notches", l.max_notches, 0, 100));
  RETURN_IF_ERROR(CheckRange("max_raised", l.max_raised, 0, 100));
  RETURN_IF_ERROR(CheckRange("widen_windows", l.widen_windows, 1, 1000));
  RETURN_IF_ERROR(CheckRange("confidence", l.confidence, 0.5, 0.9999));
  RETURN_IF_ERROR(CheckRange("first_probation_share", l.first_probation_share, 0.001, 1));
  return CheckRange("second_probation_share", l.second_probation_share, l.first_probation_share, 1);
}

absl::Status CheckDurations(const GuardrailLimits& l) {
  const absl::Duration window = l.evaluation_window;
  RETURN_IF_ERROR(CheckDuration("evaluation_window", window, absl::Milliseconds(100)));
  RETURN_IF_ERROR(CheckDuration("forget_after", l.forget_after, window));
  RETURN_IF_ERROR(CheckDuration("holding_dwell", l.holding_dwell, window));
  RETURN_IF_ERROR(CheckDuration("uncompressed_dwell", l.uncompressed_dwell, window));
  RETURN_IF_ERROR(CheckDuration("probation_dwell", l.probation_dwell, window));
  RETURN_IF_ERROR(CheckDuration("flap_window", l.flap_window, window));
  RETURN_IF_ERROR(CheckDuration("restore_after", l.restore_after, window));
  return CheckDuration("max_dwell", l.max_dwell, std::max(l.holding_dwell, l.uncompressed_dwell));
}

}  // namespace

const GuardTraits& TraitsOf(Guard guard) { return kTraits[static_cast<size_t>(guard)]; }

absl::Status Validate(const GuardrailLimits& limits) {
  RETURN_IF_ERROR(CheckRange("hysteresis", limits.hysteresis, 0, 10));
  for (const GuardTraits& traits : kTraits) {
    RETURN_IF_ERROR(CheckGuard(traits, limits.*traits.limit, limits.hysteresis));
  }
  RETURN_IF_ERROR(CheckCounts(limits));
  return CheckDurations(limits);
}

}  // namespace condense
