#ifndef CONDENSE_TESTS_ENGINE_QUALITY_GUARDRAIL_DRIVER_H_
#define CONDENSE_TESTS_ENGINE_QUALITY_GUARDRAIL_DRIVER_H_

// Drives a Guardrail through evaluation windows of simulated time.

#include <utility>
#include <vector>

#include "engine/quality/guardrail.h"
#include "kernels/base/check.h"

namespace condense {

inline std::vector<Guard> AllGuards() {
  std::vector<Guard> guards;
  for (int i = 0; i < kNumGuards; ++i) guards.push_back(static_cast<Guard>(i));
  return guards;
}

inline bool CanBreak(Guard guard) {
  const GuardEffect effect = TraitsOf(guard).effect;
  return effect == GuardEffect::kQuality || effect == GuardEffect::kStability;
}

// A certain reading: at kClear, kWarning or kBroken.
inline Reading ReadingAt(const GuardrailLimits& limits, Guard guard, GuardLevel level) {
  const GuardTraits& traits = TraitsOf(guard);
  const GuardLimit& limit = limits.*traits.limit;
  const double gap = limit.limit - limit.warning;
  const double steps = level == GuardLevel::kClear     ? -0.5
                       : level == GuardLevel::kWarning ? 0.5
                                                       : 1.5;
  const double value = limit.warning + steps * gap;
  return {.value = value, .samples = limit.min_samples + 1, .lower = value, .upper = value};
}

inline Readings ClearReadings(const GuardrailLimits& limits) {
  Readings readings;
  for (const Guard guard : AllGuards()) {
    readings[guard] = ReadingAt(limits, guard, GuardLevel::kClear);
  }
  return readings;
}

// What has no limit by default has one.
inline GuardrailLimits AllBound(GuardrailLimits limits) {
  for (const Guard guard : AllGuards()) {
    GuardLimit& limit = limits.*TraitsOf(guard).limit;
    if (limit.bound) continue;
    limit.warning = 0.4;
    limit.limit = 0.5;
    limit.bound = true;
  }
  return limits;
}

class GuardrailDriver {
 public:
  explicit GuardrailDriver(const GuardrailLimits& limits = {})
      : limits_(AllBound(limits)), guardrail_(*Guardrail::Make(limits_, absl::UnixEpoch())) {}

  Guardrail& guardrail() { return guardrail_; }
  const GuardrailLimits& limits() const { return limits_; }
  absl::Time now() const { return now_; }
  GuardrailMode mode() const { return guardrail_.decision().mode; }
  const GuardrailDecision& decision() const { return guardrail_.decision(); }

  // One evaluation window after the other, each with these readings.
  void Run(int windows, const Readings& readings) {
    for (int i = 0; i < windows; ++i) {
      now_ += limits_.evaluation_window;
      guardrail_.Evaluate(readings, now_);
    }
  }
  Readings Clear() const { return ClearReadings(limits_); }
  Readings With(Guard guard, GuardLevel level) const { return With(Clear(), guard, level); }
  Readings With(Readings readings, Guard guard, GuardLevel level) const {
    readings[guard] = ReadingAt(limits_, guard, level);
    return readings;
  }
  // Until the mode is reached, in at most `windows`; the number of windows it took, 0 if none.
  int RunUntil(GuardrailMode mode, int windows, const Readings& readings) {
    for (int i = 1; i <= windows; ++i) {
      Run(1, readings);
      if (this->mode() == mode) return i;
    }
    return 0;
  }
  // Into the mode, by readings alone, with the fallback caused by `guard`.
  void Bring(GuardrailMode mode, Guard guard = Guard::kMemoryFluctuation) {
    if (mode == GuardrailMode::kCompacting) return;
    if (mode == GuardrailMode::kHolding) {
      CHECK(RunUntil(mode, 10, With(Guard::kFirstToken, GuardLevel::kWarning)) > 0);
      return;
    }
    CHECK(RunUntil(GuardrailMode::kUncompressed, 10, With(guard, GuardLevel::kBroken)) > 0);
    if (mode == GuardrailMode::kProbation) CHECK(RunUntil(mode, 1000, Readings()) > 0);
  }

 private:
  const GuardrailLimits limits_;
  Guardrail guardrail_;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace condense

#endif  // CONDENSE_TESTS_ENGINE_QUALITY_GUARDRAIL_DRIVER_H_
