#ifndef CONDENSE_ENGINE_COMPACTION_GUARD_H_
#define CONDENSE_ENGINE_COMPACTION_GUARD_H_

// The guardrails on duty: fed by the engine's steps, obeyed by them. docs/guardrails.md.

#include <cstdint>
#include <optional>

#include "absl/time/time.h"
#include "cache/compactor.h"
#include "cache/kv_cache.h"
#include "engine/compression_control.h"
#include "engine/guard_monitor.h"
#include "engine/quality/guardrail_limits.h"
#include "metrics/metrics.h"

namespace condense {

// Reads the clock, makes samples of what the engine saw, follows the operator, and tells
// `control`, `metrics` and the log what was decided. Threads: thread-compatible, owner is the
// engine thread.
class CompactionGuard {
 public:
  // `cycle_turns`: turns in which every sequence has had its own. `control` and `metrics` outlive
  // the guard; `metrics` may be null. REQUIRES: Validate(limits) is OK; cycle_turns >= 1.
  CompactionGuard(const GuardrailLimits& limits, int32_t cycle_turns, CompressionControl* control,
                  Metrics* metrics);

  // Between two steps: does what the operator wants, and judges where an evaluation window ended.
  void Judge();

  // Whether the sequence that starts is compacted. Each call is about another one.
  bool AdmitsNext();
  // Whether jobs are held back. Memory that runs out is worse than a warning, not than a broken
  // limit.
  bool HoldsJobs(bool memory_runs_out) const;
  // Whether a running request that has lost so much is to be computed anew, uncompressed: quality
  // has broken a limit, and this one its share of it. `nats`: of its drift, where known.
  bool Rebuilds(double hit_ratio, std::optional<double> nats) const;
  int32_t ratio_notches() const { return monitor_.decision().ratio_notches; }

  void Settled(const SettledJob& job);
  // A step ran tokens: `thread_time` of the engine's CPU time went to compaction; `owed` by the
  // worker.
  void Stepped(absl::Duration thread_time, absl::Duration owed);
  // The cache before and after a turn of compaction.
  void Turned(const KvCacheStats& before, const KvCacheStats& after);
  void FirstToken(bool compacted, int64_t prompt_tokens, absl::Duration waited);
  // A request was computed again: nats per token over so many.
  void Drift(bool compacted, double nats, int32_t tokens);
  // A canary found so many of the facts that the full cache finds.
  void Canary(int32_t found, int32_t asked);
  void NextToken(absl::Duration gap);

  GuardrailMode mode() const { return monitor_.decision().mode; }
  // What was measured of requests that started before says nothing any more. Of SteadyNow:
  absl::Time evidence_from() const { return monitor_.decision().evidence_from; }

 private:
  void FollowOperator(absl::Time now);
  // What was decided.
  void Tell();
  void TellTransition(const GuardrailTransition& transition);
  // What was read.
  void TellReadings();

  const int32_t cycle_turns_;
  CompressionControl* const control_;
  Metrics* const metrics_;
  GuardMonitor monitor_;
  std::optional<GuardrailMode> forced_;  // as the monitor knows it
  int64_t transitions_ = 0;              // that were told
  uint64_t starts_ = 0;
  int32_t turns_ = 0;       // of the cycle at hand
  int32_t steps_ = 0;       // that ran tokens, of theirs
  int64_t held_bytes_ = 0;  // after the last turn
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_COMPACTION_GUARD_H_
