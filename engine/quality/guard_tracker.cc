#include "engine/quality/guard_tracker.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace condense {

GuardTracker::GuardTracker(Guard guard, const GuardrailLimits& limits)
    : traits_(&TraitsOf(guard)),
      limit_(limits.*traits_->limit),
      margin_(limits.hysteresis * std::fabs(limit_.limit - limit_.warning)),
      warning_windows_(limits.warning_windows),
      limit_windows_(limits.limit_windows),
      clear_windows_(limits.clear_windows),
      forget_after_(limits.forget_after) {}

void GuardTracker::Reset() {
  level_ = GuardLevel::kClear;
  measured_ = false;
  last_time_ = news_ = absl::InfinitePast();
  beyond_warning_ = beyond_limit_ = clear_of_warning_ = clear_of_limit_ = 0;
}

std::optional<double> GuardTracker::Doubted(const std::optional<Reading>& reading) const {
  if (!limit_.bound || !reading.has_value()) return std::nullopt;
  if (reading->samples < limit_.min_samples) return std::nullopt;
  const std::optional<double>& bound = traits_->is_ceiling ? reading->lower : reading->upper;
  if (traits_->needs_bound && !bound.has_value()) return std::nullopt;
  const double doubted = bound.value_or(reading->value);
  if (!std::isfinite(reading->value) || !std::isfinite(doubted)) return std::nullopt;
  return doubted;
}

bool GuardTracker::IsBeyond(double value, double edge) const {
  return traits_->is_ceiling ? value > edge : value < edge;
}

bool GuardTracker::IsClearOf(double value, double edge) const {
  return traits_->is_ceiling ? value <= edge - margin_ : value >= edge + margin_;
}

void GuardTracker::Observe(const std::optional<Reading>& reading, absl::Time now) {
  const std::optional<double> doubted = Doubted(reading);
  if (now - last_time_ >= forget_after_) Reset();
  measured_ = doubted.has_value();
  if (!measured_) return;
  const bool same = reading->value == last_.value && reading->samples == last_.samples;
  if (news_ == absl::InfinitePast() || !same) news_ = now;
  last_ = *reading;
  last_time_ = now;
  const auto count = [](bool holds, int32_t* windows) { *windows = holds ? *windows + 1 : 0; };
  count(IsBeyond(*doubted, limit_.warning), &beyond_warning_);
  count(IsBeyond(*doubted, limit_.limit), &beyond_limit_);
  count(IsClearOf(last_.value, limit_.warning), &clear_of_warning_);
  count(IsClearOf(last_.value, limit_.limit), &clear_of_limit_);
  Fall();
  Rise();
}

void GuardTracker::Rise() {
  if (beyond_warning_ >= warning_windows_) level_ = std::max(level_, GuardLevel::kWarning);
  const bool can_break =
      traits_->effect == GuardEffect::kQuality || traits_->effect == GuardEffect::kStability;
  if (can_break && beyond_limit_ >= limit_windows_) level_ = GuardLevel::kBroken;
}

void GuardTracker::Fall() {
  if (clear_of_limit_ >= clear_windows_) level_ = std::min(level_, GuardLevel::kWarning);
  if (clear_of_warning_ >= clear_windows_) level_ = GuardLevel::kClear;
}

std::string GuardTracker::Describe() const {
  const auto show = [this](double value) {
    return absl::StrFormat("%.4g%s", value * traits_->unit_scale, traits_->unit);
  };
  const std::optional<double>& bound = traits_->is_ceiling ? last_.lower : last_.upper;
  std::string doubt;
  if (bound.has_value()) {
    doubt = absl::StrCat(traits_->is_ceiling ? "lower" : "upper", " bound ", show(*bound), ", ");
  }
  const bool broken = level_ == GuardLevel::kBroken;
  return absl::StrCat(traits_->name, " ", show(last_.value), " (", doubt, last_.samples,
                      " samples) is ", traits_->is_ceiling ? "above" : "below",
                      broken ? " its limit of " : " its warning level of ",
                      show(broken ? limit_.limit : limit_.warning));
}

}  // namespace condense
