#ifndef CONDENSE_ENGINE_QUALITY_GUARDRAIL_H_
#define CONDENSE_ENGINE_QUALITY_GUARDRAIL_H_

// The state machine that turns measured quality into what compaction may do. docs/guardrails.md,
// "Modes".

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/quality/guard_tracker.h"
#include "engine/quality/guardrail_limits.h"
#include "engine/quality/guardrail_reading.h"

namespace condense {

enum class GuardrailMode : uint8_t { kCompacting, kHolding, kUncompressed, kProbation };
inline constexpr int kNumGuardrailModes = 4;
const char* GuardrailModeName(GuardrailMode mode);  // "compacting", ...

enum class GuardrailReason : uint8_t {
  kStart,
  kWarning,          // of `guard`
  kLimitBroken,      // of `guard`
  kRecovered,        // no warning, and the dwell of holding is over
  kDwellOver,        // of uncompressed
  kProbationPassed,  // both stages
  kForced,           // by an operator
  kReleased,         // by an operator; the mode stays until the guardrails change it
};
const char* GuardrailReasonName(GuardrailReason reason);
// The text of a decision with reason kForced.
std::string ForcedReason(GuardrailMode mode);

// What holds from now on.
struct GuardrailDecision {
  GuardrailMode mode = GuardrailMode::kCompacting;
  GuardrailReason reason = GuardrailReason::kStart;  // of the mode
  std::optional<Guard> guard;                        // that gave the reason
  std::string text;                                  // the reason with value and limit
  std::string waiting_for;   // what keeps a stage of probation from ending, if anything does
  absl::Time since;          // the mode
  absl::Duration dwell;      // of holding or uncompressed: the least time until they end
  absl::Time evidence_from;  // readings must be of what was measured from here on

  bool forced = false;
  bool new_jobs = true;        // compaction may begin jobs
  double compacted_share = 1;  // of new requests; the others are uncompressed
  int32_t ratio_notches = 0;   // by which the ratio is lowered and formats widen; < 0: it is raised
  bool ratio_may_rise = false;  // up to the quality floor: memory is near its limit, quality is not
};

struct GuardrailTransition {
  GuardrailMode from;
  GuardrailMode to;
  absl::Time time;
  GuardrailReason reason;
  std::optional<Guard> guard;
  std::string text;
};

// Whether the request with this running number is among the compacted ones. A pure function, and
// not periodic in the number.
bool IsCompacted(const GuardrailDecision& decision, uint64_t request_number);

// Pure: no clock, no thread, no input but its arguments. Times never run backwards: an earlier one
// counts as the latest seen. Threads: thread-compatible.
class Guardrail {
 public:
  static constexpr size_t kKeptTransitions = 64;

  // INVALID_ARGUMENT naming field, value and limit.
  static absl::StatusOr<Guardrail> Make(const GuardrailLimits& limits, absl::Time now);

  // Whether an evaluation window has ended since the last evaluation.
  bool Due(absl::Time now) const { return now - evaluated_ >= limits_.evaluation_window; }
  // Judges the readings of one evaluation window; at most one transition.
  const GuardrailDecision& Evaluate(const Readings& readings, absl::Time now);
  // The mode is `mode` whatever is read, until released. Readings are judged meanwhile.
  const GuardrailDecision& Force(GuardrailMode mode, absl::Time now);
  // Guardrails decide again, beginning with the mode that was forced. Nothing if none is.
  const GuardrailDecision& Release(absl::Time now);

  const GuardrailDecision& decision() const { return decision_; }
  GuardLevel level(Guard guard) const { return trackers_[static_cast<size_t>(guard)].level(); }
  // The last kKeptTransitions, newest last, and how many there have been.
  const std::deque<GuardrailTransition>& transitions() const { return transitions_; }
  int64_t num_transitions(GuardrailMode from, GuardrailMode to) const;
  int64_t num_transitions() const;
  // Returns to holding or uncompressed within flap_window of leaving them, or from probation.
  int64_t flaps() const { return flaps_; }
  const GuardrailLimits& limits() const { return limits_; }

 private:
  // Of holding or uncompressed: how long it lasts at least. Doubled when it is back within
  // flap_window, halved for each flap_window that it was away.
  struct Dwell {
    absl::Duration current;
    absl::Time left = absl::InfinitePast();
  };

  Guardrail(const GuardrailLimits& limits, absl::Time now);

  void Observe(const Readings& readings, absl::Time now);
  // Whether its level is so high and its effect is to hold or switch off.
  bool Speaks(Guard guard, GuardLevel at_least) const;
  std::optional<Guard> Highest(GuardLevel at_least) const;  // the first of the highest level
  bool QualityWarns() const;
  // Whether a guardrail warns of what was measured since compaction holds. Drift and recall reach
  // far back, and nothing is compacted of which there could be news.
  bool WarnsAnew(absl::Time now) const;
  void Step(absl::Time now);
  void StepCompacting(absl::Time now);
  void StepHolding(absl::Time now);
  void StepProbation(absl::Time now);
  void NextStage(absl::Time now);
  void GoBecause(GuardrailMode to, GuardrailReason reason, Guard guard, absl::Time now);
  void Go(GuardrailMode to, GuardrailReason reason, const std::string& text, absl::Time now);
  void Enter(GuardrailMode from, GuardrailMode to, GuardrailReason reason, absl::Time now);
  void StartDwell(Dwell* dwell, absl::Duration shortest, bool by_guard, absl::Time now);
  void LowerRatio() { notches_ = std::min(notches_ + 1, limits_.max_notches); }
  bool MayRise() const;
  void Raise();
  void SetOutputs();

  GuardrailLimits limits_;
  std::array<GuardTracker, kNumGuards> trackers_;
  GuardrailDecision decision_;
  std::deque<GuardrailTransition> transitions_;
  std::array<std::array<int64_t, kNumGuardrailModes>, kNumGuardrailModes> counts_{};  // [from][to]
  int64_t flaps_ = 0;
  absl::Time evaluated_ = absl::InfinitePast();
  absl::Time latest_;
  Dwell holding_;
  Dwell uncompressed_;
  int32_t notches_ = 0;          // by which quality, or a probation, lowers the ratio
  int32_t raised_ = 0;           // by which memory raises it
  absl::Time notch_time_;        // when the ratio may last have had a reason to stay low
  int32_t quality_windows_ = 0;  // of quality warning while holding, since the last notch
  std::optional<Guard> broken_;  // why uncompressed: what probation must see again
  int32_t stage_ = 0;            // of probation, from 0
  absl::Time stage_time_;        // since when it has run without a warning
  int32_t stage_windows_ = 0;    // in which `broken_` had data
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_GUARDRAIL_H_
