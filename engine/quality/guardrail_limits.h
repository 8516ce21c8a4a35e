#ifndef CONDENSE_ENGINE_QUALITY_GUARDRAIL_LIMITS_H_
#define CONDENSE_ENGINE_QUALITY_GUARDRAIL_LIMITS_H_

// Every number that decides what guardrails do. docs/guardrails.md, "Guardrails" and "Times and
// counts".

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/quality/guardrail_reading.h"

namespace condense {

// `warning` and `limit` are passed by a value strictly beyond them.
struct GuardLimit {
  double warning = 0;
  double limit = 0;
  int64_t min_samples = 1;  // a reading of fewer is none
  absl::Duration window;    // over which the reading is to be taken
  bool bound = true;        // false: there is no limit; nothing is read and nothing judged
};

struct GuardrailLimits {
  GuardLimit hit_ratio{0.92, 0.85, 32, absl::Minutes(1)};
  GuardLimit hit_ratio_tail{0.80, 0.70, 100, absl::Minutes(1)};
  GuardLimit merge_latency{0.001, 0.002, 100, absl::Minutes(2)};
  GuardLimit memory_fluctuation{0.05, 0.10, 3, absl::Minutes(1)};
  GuardLimit drift{0.01, 0.02, 8, absl::Minutes(30)};
  GuardLimit canary{0.95, 0.90, 5, absl::Hours(1)};
  GuardLimit first_token{0.07, 0.15, 20, absl::Minutes(5)};
  GuardLimit memory{0.90, 1.00, 1, absl::Seconds(10)};
  // What a latency may be only an operator knows: by an SLO.
  GuardLimit ttft{.min_samples = 100, .window = absl::Minutes(5), .bound = false};
  GuardLimit inter_token{.min_samples = 100, .window = absl::Minutes(1), .bound = false};

  double confidence = 0.99;  // of the one-sided bounds that readings carry
  // A level ends where the value is this share of (limit - warning) on the safe side of its edge.
  double hysteresis = 0.1;

  absl::Duration evaluation_window = absl::Seconds(10);
  int32_t warning_windows = 3;  // one after another, until a warning counts
  int32_t limit_windows = 4;    // the same for a broken limit
  int32_t clear_windows = 3;    // the same until a level ends
  // After so long without data what was known of a guardrail is forgotten.
  absl::Duration forget_after = absl::Minutes(1);

  absl::Duration holding_dwell = absl::Seconds(30);
  absl::Duration uncompressed_dwell = absl::Minutes(1);
  absl::Duration probation_dwell = absl::Minutes(1);  // of each of its two stages
  // Coming back to a mode so soon after leaving it is a flap: its dwell doubles, up to max_dwell.
  // For each such time without it the dwell halves again.
  absl::Duration flap_window = absl::Minutes(15);
  absl::Duration max_dwell = absl::Minutes(30);

  double first_probation_share = 0.10;  // of new requests that are compacted
  double second_probation_share = 0.50;
  int32_t probation_windows = 3;  // with data of the guardrail that broke, in each stage

  int32_t max_notches = 3;    // by which the ratio is lowered at most
  int32_t max_raised = 4;     // by which it is raised at most
  int32_t widen_windows = 6;  // of a lasting quality warning, until the next notch
  absl::Duration restore_after = absl::Minutes(10);  // of compacting without a warning, per notch
};

// INVALID_ARGUMENT naming field, value and limit. What is not bound is valid.
absl::Status Validate(const GuardrailLimits& limits);

// What a guardrail may do.
enum class GuardEffect : uint8_t {
  kQuality,    // warns, breaks; while a warning lasts the ratio is lowered further
  kStability,  // warns, breaks
  kLatency,    // only warns: a broken limit counts as a warning
  kMemory,     // neither: the ratio may rise
};

struct GuardTraits {
  const char* label;  // in flags and metrics
  const char* name;   // in texts
  GuardLimit GuardrailLimits::*limit;
  GuardEffect effect;
  bool is_ceiling;    // values above the limit break it; otherwise values below
  bool needs_bound;   // judged by its bound alone: a reading without one is none
  bool is_share;      // limits are in [0, 1]
  double unit_scale;  // from the value to what texts show
  const char* unit;
  bool is_time = false;           // limits are seconds
  bool yields_to_memory = false;  // counts only while memory is clear of its warning
};
const GuardTraits& TraitsOf(Guard guard);

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_GUARDRAIL_LIMITS_H_
