#ifndef CONDENSE_ENGINE_QUALITY_ADDED_TIME_H_
#define CONDENSE_ENGINE_QUALITY_ADDED_TIME_H_

// How much longer compaction makes steps, beyond what it was allowed. docs/guardrails.md, "Merge
// latency".

#include <cstdint>
#include <optional>

#include "absl/time/time.h"

namespace condense {

// One step that ran tokens. Times are not negative.
struct AddedStep {
  absl::Duration thread_time;  // CPU time of the engine thread, for compaction
  absl::Duration owed;         // by the worker: taken beyond its allowance and not yet paid back
  bool cycle_end = false;      // the last step of a cycle
};

// Per cycle, on average over its steps: thread time, and the worker's overdraft, by which the least
// that it owed in this cycle exceeds the least in the one before. What is paid back within a cycle
// is no overdraft, what only grows is one. Threads: thread-compatible.
class AddedTime {
 public:
  // Of the cycle that ends with this step; nothing at other steps.
  std::optional<absl::Duration> Observe(const AddedStep& step);

 private:
  absl::Duration owed_before_;  // the least of the cycle before
  absl::Duration owed_ = absl::InfiniteDuration();
  absl::Duration thread_time_;
  int64_t steps_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_ADDED_TIME_H_
