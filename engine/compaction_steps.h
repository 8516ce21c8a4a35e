#ifndef CONDENSE_ENGINE_COMPACTION_STEPS_H_
#define CONDENSE_ENGINE_COMPACTION_STEPS_H_

// What the engine does about compaction, step by step.

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "cache/compaction_pace.h"
#include "cache/compactor.h"
#include "cache/kv_cache.h"
#include "engine/attention_saving.h"
#include "engine/compaction_guard.h"
#include "engine/compression_control.h"
#include "engine/engine.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "metrics/metrics.h"

namespace condense {

// In the order of a step: Collect, Begin, then the forward pass, End, Settled. Without a compactor
// every call does nothing. Threads: thread-compatible, owner is the engine thread.
class CompactionSteps {
 public:
  // All outlive it. Null: nothing is compacted, the worker keeps to no pace, requests have no
  // common mode, no guardrail speaks, nobody measures.
  struct Parts {
    Compactor* compactor = nullptr;
    CompactionPace* pace = nullptr;
    const KvCache* cache = nullptr;
    const CompressionControl* control = nullptr;
    CompactionGuard* guard = nullptr;
    Metrics* metrics = nullptr;
  };
  // `hard_limit`: fill of the arena from which every step is a turn.
  CompactionSteps(const Parts& parts, double hard_limit) : parts_(parts), hard_limit_(hard_limit) {}

  // The guard judges; takes what the worker has finished.
  void Collect();
  // Sequences that start begin to keep queries; the worker hears how much of the step it may take.
  void Begin(const StepPlan& plan);
  // A sequence got its first token.
  void FirstToken(const Sequence& sequence, absl::Time now);
  // And a later one, `gap` after the one before.
  void NextToken(absl::Duration gap);
  // Swaps and jobs of the sequences whose turn it is. `all`: requests that run or wait.
  // `background`: the sequence there, or null. `attention_time`: of the forward pass, zero if none
  // ran.
  void End(const StepPlan& plan, const std::vector<Sequence*>& all, Sequence* background,
           absl::Duration attention_time);
  // Counts what became of jobs since the last call.
  void Settled();

  // The running requests that are to be computed anew, those that compaction cost most first; none
  // while others compute their prompts.
  std::vector<Sequence*> ToRebuild(const std::vector<Sequence*>& all) const;

  // Nothing runs: the worker may take all time.
  void Rest();
  // The same, and waits shortly for one of the jobs that are out.
  void Await();

  bool relief_coming() const;
  int32_t jobs_out() const;
  const SwapTotals& totals() const { return totals_; }

 private:
  // Of this thread, for compaction.
  struct StepTime {
    absl::Duration wall, cpu;
  };

  // Whether the sequence that starts is to be compacted.
  bool Admits(const Sequence& sequence);
  bool Paused() const;
  // What this turn did, `before` it the cache. `cpu_time`: of this thread.
  void TellGuard(const StepPlan& plan, const KvCacheStats& before, absl::Duration cpu_time);
  void Learn(const StepPlan& plan, const std::vector<Sequence*>& all, const Sequence* background,
             absl::Duration attention_time);
  void Turn(Sequence* sequence, const StepPlan& plan);
  void Observe(const SettledJob& job, CompactionOutcome outcome);

  const Parts parts_;
  const double hard_limit_;
  SwapTotals totals_;
  AttentionSaving saving_;
  bool hurried_ = false;  // memory runs out
  StepTime collecting_;   // of the step at hand; so is the next
  absl::Duration owed_;   // by the worker, when it began
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_COMPACTION_STEPS_H_
