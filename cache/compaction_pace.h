#ifndef CONDENSE_CACHE_COMPACTION_PACE_H_
#define CONDENSE_CACHE_COMPACTION_PACE_H_

// Keeps the compaction worker from slowing down steps where the backend's threads take every core.

#include <chrono>

#include "cache/step_allowance.h"
#include "kernels/base/mutex.h"

namespace condense {

// The engine says when steps begin, the worker asks between two pieces of work. The engine never
// waits. Threads: thread-safe, with one worker at a time. Its lock is a leaf.
class CompactionPace {
 public:
  explicit CompactionPace(const PaceLimits& limits) : allowance_(limits) {}

  // Engine. `saved`: what this step gains by what was compacted before; the worker may have it.
  // Returns what the worker owes: taken beyond what steps allowed, of what it has counted, and not
  // paid back by later ones.
  std::chrono::nanoseconds BeginStep(std::chrono::nanoseconds saved);
  // Engine. No step runs, or memory runs out: no limit until the next step begins.
  void Lift();

  // Worker. Counts the CPU time of the calling thread since its last call; returns when it may take
  // more.
  void Await();

 private:
  Mutex mutex_;
  CondVar changed_;
  StepAllowance allowance_ ABSL_GUARDED_BY(mutex_);
  std::chrono::nanoseconds cpu_time_{0};  // the worker's, at its last call
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_PACE_H_
