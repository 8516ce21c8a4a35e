#ifndef CONDENSE_ENGINE_QUALITY_GUARD_TRACKER_H_
#define CONDENSE_ENGINE_QUALITY_GUARD_TRACKER_H_

// From the readings of one guardrail to its level, unmoved by noise. docs/guardrails.md, "Levels".

#include <cstdint>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/quality/guardrail_limits.h"
#include "engine/quality/guardrail_reading.h"

namespace condense {

enum class GuardLevel : uint8_t { kClear, kWarning, kBroken };

// A level rises when the reading, given the benefit of the doubt (the bound on the safe side, if it
// has one), lies beyond an edge for some windows one after another. It falls when the value itself
// lies clearly on the safe side for some. Windows without data are no windows. Threads:
// thread-compatible.
class GuardTracker {
 public:
  // `limits` are valid.
  GuardTracker(Guard guard, const GuardrailLimits& limits);

  // The reading of the window that ends at `now`. Too few samples, a number that is not finite, or
  // no bound where one is needed: no data.
  void Observe(const std::optional<Reading>& reading, absl::Time now);
  // Forgets what was seen.
  void Reset();

  GuardLevel level() const { return level_; }
  bool measured() const { return measured_; }  // the last window had data
  // When a reading last told something else than the one before.
  absl::Time news() const { return news_; }
  // "perplexity drift 3.1% (lower bound 2.3%, 41 samples) is above its limit of 2%"; of the last
  // window with data and the edge that counts at the present level.
  std::string Describe() const;

 private:
  // What a rising level is judged by; nothing: no data.
  std::optional<double> Doubted(const std::optional<Reading>& reading) const;
  bool IsBeyond(double value, double edge) const;
  bool IsClearOf(double value, double edge) const;
  void Rise();
  void Fall();

  const GuardTraits* const traits_;
  const GuardLimit limit_;
  const double margin_;  // of the hysteresis, in units of the value
  const int32_t warning_windows_;
  const int32_t limit_windows_;
  const int32_t clear_windows_;
  const absl::Duration forget_after_;

  GuardLevel level_ = GuardLevel::kClear;
  bool measured_ = false;
  Reading last_;  // with data
  absl::Time last_time_ = absl::InfinitePast();
  absl::Time news_ = absl::InfinitePast();
  int32_t beyond_warning_ = 0;  // windows with data, one after another
  int32_t beyond_limit_ = 0;
  int32_t clear_of_warning_ = 0;
  int32_t clear_of_limit_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_GUARD_TRACKER_H_
