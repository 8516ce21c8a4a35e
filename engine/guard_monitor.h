#ifndef CONDENSE_ENGINE_GUARD_MONITOR_H_
#define CONDENSE_ENGINE_GUARD_MONITOR_H_

// The guardrails and the sliding statistics that they judge. docs/guardrails.md, "What is
// measured".

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "engine/quality/added_time.h"
#include "engine/quality/bucket_ring.h"
#include "engine/quality/guardrail.h"
#include "engine/quality/guardrail_limits.h"
#include "engine/quality/guardrail_reading.h"
#include "engine/quality/matched_ratio.h"
#include "engine/quality/memory_fluctuation.h"
#include "engine/quality/sliding_mean.h"
#include "engine/quality/sliding_quantile.h"

namespace condense {

// Is told what compaction does and says what it may do. Times come from one steady clock; there is
// none inside. Threads: thread-compatible. Cost: what is observed is O(1) amortized, Evaluate a few
// thousand additions.
class GuardMonitor {
 public:
  // REQUIRES: Validate(limits) is OK.
  GuardMonitor(const GuardrailLimits& limits, absl::Time now);

  // A unit was compacted and asked held-out queries, whatever became of it.
  void ObserveUnit(double hit_ratio, absl::Time now);
  // A step that ran tokens, and what compaction took of it.
  void ObserveAdded(const AddedStep& step, absl::Time now);
  // The cache after a step. `arena_use`: a share of 1.
  void ObserveMemory(const MemoryStep& step, double arena_use, absl::Time now);
  // A request with a prompt of so many tokens got its first one `waited` after it was submitted.
  void ObserveFirstToken(bool compacted, int64_t prompt_tokens, absl::Duration waited,
                         absl::Time now);
  // A request was computed again on an uncompressed cache: `nats` per token between the two, mean
  // over `tokens`. Of one that was not compacted itself it is the noise floor.
  void ObserveDrift(bool compacted, double nats, int64_t tokens, absl::Time now);
  // A canary found so many of the facts asked for, at least one.
  void ObserveCanary(int64_t found, int64_t asked, absl::Time now);
  // A request got a later token, `gap` after the one before.
  void ObserveNextToken(absl::Duration gap, absl::Time now);

  // Whether an evaluation window has ended.
  bool Due(absl::Time now) const { return guardrail_.Due(now); }
  // Judges what was observed. Forgets it all where the guardrails ask for evidence from now on.
  const GuardrailDecision& Evaluate(absl::Time now);
  // An operator's will, see Guardrail.
  const GuardrailDecision& Force(GuardrailMode mode, absl::Time now);
  const GuardrailDecision& Release(absl::Time now);

  const GuardrailDecision& decision() const { return guardrail_.decision(); }
  const Guardrail& guardrail() const { return guardrail_; }
  // What was judged last.
  const Readings& readings() const { return readings_; }
  // The drift that is read where nothing is compacted; nothing where nobody measured it.
  std::optional<Reading> drift_floor(absl::Time now) const;

 private:
  struct Peak {
    double share = 0;
    int64_t steps = 0;
  };

  Readings Read(absl::Time now) const;
  std::optional<Reading> ReadMemory(absl::Time now) const;
  void ForgetBefore(absl::Time evidence_from);

  Guardrail guardrail_;
  const double confidence_;
  Readings readings_;
  absl::Time evidence_from_;  // of what the statistics hold
  SlidingMean hit_ratio_;
  SlidingQuantile hit_ratio_tail_;
  AddedTime added_time_;
  SlidingQuantile added_;  // seconds
  MemoryFluctuation cycle_;
  SlidingQuantile fluctuation_;
  SlidingMean drift_;        // nats, weighted by tokens
  SlidingMean drift_floor_;  // the same
  SlidingMean canary_;       // shares, weighted by facts
  MatchedRatio first_token_;
  BucketRing<Peak> memory_;
  std::optional<SlidingQuantile> ttft_;         // in seconds; nothing unless bound
  std::optional<SlidingQuantile> inter_token_;  // the same
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_GUARD_MONITOR_H_
