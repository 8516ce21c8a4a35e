#include "engine/quality/guardrail.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/base/status_macros.h"
#include "kernels/base/uniform.h"

namespace condense {
namespace {

constexpr int32_t kProbationStages = 2;

template <size_t... I>
std::array<GuardTracker, sizeof...(I)> MakeTrackers(const GuardrailLimits& limits,
                                                    std::index_sequence<I...>) {
  return {GuardTracker(static_cast<Guard>(I), limits)...};
}

constexpr uint64_t kAdmissionSeed = 1;

}  // namespace

const char* GuardrailModeName(GuardrailMode mode) {
  switch (mode) {
    case GuardrailMode::kCompacting:
      return "compacting";
    case GuardrailMode::kHolding:
      return "holding";
    case GuardrailMode::kUncompressed:
      return "uncompressed";
    case GuardrailMode::kProbation:
      return "probation";
  }
  return "unknown";
}

const char* GuardrailReasonName(GuardrailReason reason) {
  switch (reason) {
    case GuardrailReason::kStart:
      return "start";
    case GuardrailReason::kWarning:
      return "warning";
    case GuardrailReason::kLimitBroken:
      return "limit_broken";
    case GuardrailReason::kRecovered:
      return "recovered";
    case GuardrailReason::kDwellOver:
      return "dwell_over";
    case GuardrailReason::kProbationPassed:
      return "probation_passed";
    case GuardrailReason::kForced:
      return "forced";
    case GuardrailReason::kReleased:
      return "released";
  }
  return "unknown";
}

std::string ForcedReason(GuardrailMode mode) {
  return absl::StrCat("an operator forced the mode ", GuardrailModeName(mode));
}

bool IsCompacted(const GuardrailDecision& decision, uint64_t request_number) {
  return Uniform(kAdmissionSeed, request_number) < decision.compacted_share;
}

absl::StatusOr<Guardrail> Guardrail::Make(const GuardrailLimits& limits, absl::Time now) {
  RETURN_IF_ERROR(Validate(limits));
  return Guardrail(limits, now);
}

Guardrail::Guardrail(const GuardrailLimits& limits, absl::Time now)
    : limits_(limits),
      trackers_(MakeTrackers(limits, std::make_index_sequence<kNumGuards>())),
      evaluated_(now),
      latest_(now),
      holding_{.current = limits.holding_dwell},
      uncompressed_{.current = limits.uncompressed_dwell},
      notch_time_(now),
      stage_time_(now) {
  decision_.since = now;
  decision_.evidence_from = now;
  decision_.text = "nothing has been measured yet";
}

const GuardrailDecision& Guardrail::Evaluate(const Readings& readings, absl::Time now) {
  now = latest_ = std::max(now, latest_);
  evaluated_ = now;
  for (int i = 0; i < kNumGuards; ++i) {
    trackers_[static_cast<size_t>(i)].Observe(readings[static_cast<Guard>(i)], now);
  }
  if (!decision_.forced) Step(now);
  Raise();
  SetOutputs();
  return decision_;
}

const GuardrailDecision& Guardrail::Force(GuardrailMode mode, absl::Time now) {
  latest_ = std::max(now, latest_);
  decision_.forced = true;
  Go(mode, GuardrailReason::kForced, ForcedReason(mode), latest_);
  broken_ = std::nullopt;
  SetOutputs();
  return decision_;
}

const GuardrailDecision& Guardrail::Release(absl::Time now) {
  if (!decision_.forced) return decision_;
  latest_ = std::max(now, latest_);
  decision_.forced = false;
  Go(decision_.mode, GuardrailReason::kReleased, "an operator released the mode", latest_);
  SetOutputs();
  return decision_;
}

int64_t Guardrail::num_transitions(GuardrailMode from, GuardrailMode to) const {
  return counts_[static_cast<size_t>(from)][static_cast<size_t>(to)];
}

int64_t Guardrail::num_transitions() const {
  int64_t sum = 0;
  for (const auto& row : counts_) {
    for (const int64_t count : row) sum += count;
  }
  return sum;
}

bool Guardrail::Speaks(Guard guard, GuardLevel at_least) const {
  const GuardTraits& traits = TraitsOf(guard);
  if (traits.effect == GuardEffect::kMemory || level(guard) < at_least) return false;
  // Requests may be waiting for room, which only compaction makes.
  return !traits.yields_to_memory || level(Guard::kMemory) == GuardLevel::kClear;
}

std::optional<Guard> Guardrail::Highest(GuardLevel at_least) const {
  std::optional<Guard> highest;
  for (int i = 0; i < kNumGuards; ++i) {
    const Guard guard = static_cast<Guard>(i);
    if (!Speaks(guard, at_least)) continue;
    if (!highest.has_value() || level(guard) > level(*highest)) highest = guard;
  }
  return highest;
}

bool Guardrail::QualityWarns() const {
  for (int i = 0; i < kNumGuards; ++i) {
    const Guard guard = static_cast<Guard>(i);
    if (TraitsOf(guard).effect != GuardEffect::kQuality) continue;
    if (level(guard) >= GuardLevel::kWarning) return true;
  }
  return false;
}

bool Guardrail::WarnsAnew(absl::Time now) const {
  for (int i = 0; i < kNumGuards; ++i) {
    const Guard guard = static_cast<Guard>(i);
    if (!Speaks(guard, GuardLevel::kWarning)) continue;
    const bool reaches_back = TraitsOf(guard).needs_bound;
    if (!reaches_back || now - trackers_[i].news() < decision_.dwell) return true;
  }
  return false;
}

void Guardrail::Step(absl::Time now) {
  switch (decision_.mode) {
    case GuardrailMode::kCompacting:
      return StepCompacting(now);
    case GuardrailMode::kHolding:
      return StepHolding(now);
    case GuardrailMode::kUncompressed:
      // Only time leads out: what is read here is not of new compaction.
      if (now - decision_.since < decision_.dwell) return;
      return Go(GuardrailMode::kProbation, GuardrailReason::kDwellOver,
                absl::StrCat("uncompressed for ", absl::FormatDuration(now - decision_.since)),
                now);
    case GuardrailMode::kProbation:
      return StepProbation(now);
  }
}

void Guardrail::StepCompacting(absl::Time now) {
  if (const std::optional<Guard> broken = Highest(GuardLevel::kBroken)) {
    return GoBecause(GuardrailMode::kUncompressed, GuardrailReason::kLimitBroken, *broken, now);
  }
  if (const std::optional<Guard> warning = Highest(GuardLevel::kWarning)) {
    return GoBecause(GuardrailMode::kHolding, GuardrailReason::kWarning, *warning, now);
  }
  if (notches_ > 0 && now - notch_time_ >= limits_.restore_after) {
    --notches_;
    notch_time_ = now;
  }
}

void Guardrail::StepHolding(absl::Time now) {
  if (const std::optional<Guard> broken = Highest(GuardLevel::kBroken)) {
    return GoBecause(GuardrailMode::kUncompressed, GuardrailReason::kLimitBroken, *broken, now);
  }
  if (QualityWarns() && ++quality_windows_ >= limits_.widen_windows) {
    LowerRatio();
    quality_windows_ = 0;
  }
  if (WarnsAnew(now) || now - decision_.since < decision_.dwell) return;
  const bool stale = Highest(GuardLevel::kWarning).has_value();
  Go(GuardrailMode::kCompacting, GuardrailReason::kRecovered,
     absl::StrCat(stale ? "nothing new is measured" : "no warning", ", after ",
                  absl::FormatDuration(now - decision_.since)),
     now);
  if (!stale) return;
  for (GuardTracker& tracker : trackers_) tracker.Reset();
  decision_.evidence_from = now;
}

void Guardrail::StepProbation(absl::Time now) {
  decision_.waiting_for.clear();
  if (const std::optional<Guard> broken = Highest(GuardLevel::kBroken)) {
    return GoBecause(GuardrailMode::kUncompressed, GuardrailReason::kLimitBroken, *broken, now);
  }
  if (broken_.has_value() && trackers_[static_cast<size_t>(*broken_)].measured()) ++stage_windows_;
  if (const std::optional<Guard> warning = Highest(GuardLevel::kWarning)) {
    decision_.waiting_for = trackers_[static_cast<size_t>(*warning)].Describe();
    stage_time_ = now;
    return;
  }
  if (now - stage_time_ < limits_.probation_dwell) return;
  const int32_t missing = limits_.probation_windows - stage_windows_;
  if (broken_.has_value() && missing > 0) {
    decision_.waiting_for = absl::StrCat(missing, " more windows with data of ",
                                         TraitsOf(*broken_).name, ", whose limit was broken");
    return;
  }
  NextStage(now);
}

void Guardrail::NextStage(absl::Time now) {
  if (++stage_ == kProbationStages) {
    return Go(GuardrailMode::kCompacting, GuardrailReason::kProbationPassed,
              absl::StrCat("no limit was broken in ", absl::FormatDuration(now - decision_.since)),
              now);
  }
  stage_time_ = now;
  stage_windows_ = 0;
}

void Guardrail::GoBecause(GuardrailMode to, GuardrailReason reason, Guard guard, absl::Time now) {
  Go(to, reason, trackers_[static_cast<size_t>(guard)].Describe(), now);
  decision_.guard = guard;
  if (!transitions_.empty()) transitions_.back().guard = guard;
  if (to == GuardrailMode::kUncompressed) broken_ = guard;
}

void Guardrail::Go(GuardrailMode to, GuardrailReason reason, const std::string& text,
                   absl::Time now) {
  const GuardrailMode from = decision_.mode;
  decision_.mode = to;
  decision_.reason = reason;
  decision_.guard = std::nullopt;
  decision_.text = text;
  decision_.waiting_for.clear();
  decision_.since = now;
  Enter(from, to, reason, now);
  if (from == to) return;
  ++counts_[static_cast<size_t>(from)][static_cast<size_t>(to)];
  transitions_.push_back({from, to, now, reason, std::nullopt, text});
  if (transitions_.size() > kKeptTransitions) transitions_.pop_front();
}

void Guardrail::Enter(GuardrailMode from, GuardrailMode to, GuardrailReason reason,
                      absl::Time now) {
  const bool by_guard =
      reason == GuardrailReason::kWarning || reason == GuardrailReason::kLimitBroken;
  if (from == GuardrailMode::kHolding && from != to) holding_.left = now;
  if (from == GuardrailMode::kProbation && from != to) uncompressed_.left = now;
  decision_.dwell = absl::ZeroDuration();
  notch_time_ = now;
  switch (to) {
    case GuardrailMode::kCompacting:
      return;
    case GuardrailMode::kHolding:
      quality_windows_ = 0;
      if (by_guard) LowerRatio();
      return StartDwell(&holding_, limits_.holding_dwell, by_guard, now);
    case GuardrailMode::kUncompressed:
      raised_ = 0;
      broken_ = std::nullopt;
      return StartDwell(&uncompressed_, limits_.uncompressed_dwell, by_guard, now);
    case GuardrailMode::kProbation:
      for (GuardTracker& tracker : trackers_) tracker.Reset();
      decision_.evidence_from = now;
      notches_ = std::max(notches_, std::min(1, limits_.max_notches));
      raised_ = 0;
      stage_ = stage_windows_ = 0;
      stage_time_ = now;
      return;
  }
}

void Guardrail::StartDwell(Dwell* dwell, absl::Duration shortest, bool by_guard, absl::Time now) {
  const absl::Duration calm = by_guard ? now - dwell->left : absl::InfiniteDuration();
  if (calm < limits_.flap_window) {
    ++flaps_;
    dwell->current = std::min(2 * dwell->current, limits_.max_dwell);
  } else {
    // Not at once: noise that happens to rest for a while would begin a flurry.
    const double halvings =
        std::min(std::floor(absl::FDivDuration(calm, limits_.flap_window)), 64.0);
    dwell->current = std::max(dwell->current / std::exp2(halvings), shortest);
  }
  decision_.dwell = dwell->current;
}

bool Guardrail::MayRise() const {
  return decision_.mode == GuardrailMode::kCompacting &&
         level(Guard::kMemory) >= GuardLevel::kWarning && !QualityWarns();
}

// One notch per window, up and down. A ratio that was lowered rises back to its target only: going
// beyond would undo more than what has just been found necessary.
void Guardrail::Raise() {
  if (QualityWarns()) {
    raised_ = 0;
  } else if (MayRise()) {
    ++raised_;
  } else if (level(Guard::kMemory) == GuardLevel::kClear) {
    raised_ = std::max(raised_ - 1, 0);
  }
  raised_ = std::min(raised_, notches_ > 0 ? notches_ : limits_.max_raised);
}

void Guardrail::SetOutputs() {
  const GuardrailMode mode = decision_.mode;
  const bool probation = mode == GuardrailMode::kProbation;
  // In probation a warning holds back jobs, as it would while compacting.
  const bool warns = !decision_.forced && Highest(GuardLevel::kWarning).has_value();
  decision_.new_jobs = mode == GuardrailMode::kCompacting || (probation && !warns);
  decision_.compacted_share = mode == GuardrailMode::kUncompressed ? 0 : 1;
  if (probation) {
    decision_.compacted_share =
        stage_ == 0 ? limits_.first_probation_share : limits_.second_probation_share;
  }
  decision_.ratio_notches = notches_ - raised_;
  decision_.ratio_may_rise = MayRise();
}

}  // namespace condense
