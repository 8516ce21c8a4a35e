#ifndef CONDENSE_ENGINE_ENGINE_LOOP_H_
#define CONDENSE_ENGINE_ENGINE_LOOP_H_

// The engine thread's work: drain commands, schedule, run, sample, publish, retire.

#include <atomic>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "engine/model.h"
#include "engine/request_queue.h"
#include "engine/scheduler.h"
#include "metrics/metrics.h"

namespace condense {

// Threads: Run and Step belong to the engine thread; Stop and load are thread-safe.
class EngineLoop {
 public:
  // What the loop works with; all of it outlives the loop. `metrics` may be null.
  struct Parts {
    Backend* backend = nullptr;
    Model* model = nullptr;
    KvCache* cache = nullptr;
    const Tokenizer* tokenizer = nullptr;
    RequestQueue* queue = nullptr;
    Metrics* metrics = nullptr;
    int64_t max_request_tokens = 0;
  };
  EngineLoop(const EngineConfig& config, Parts parts);

  // Steps until Stop; then ends what is live with CANCELLED.
  void Run();
  void Stop();
  // One step. False if there was nothing to do.
  bool Step();

  EngineLoad load() const;

 private:
  void DrainCommands();
  void EndFromOutside(absl::Time now);
  // Runs the model over the plan and fills results_ by logit row.
  absl::Status Compute(const StepPlan& plan);
  void Advance(const StepPlan& plan, absl::Time now);
  void Publish(const StepPlan& plan, absl::Time now);
  void End(Sequence* sequence, FinishReason reason, absl::Status status, absl::Time now);
  void Observe(const Sequence& sequence, FinishReason reason, absl::Time now);
  void PublishLoad(absl::Time now);
  Receipt MakeReceipt(const Sequence& sequence) const;

  const EngineConfig& config_;
  const Parts parts_;

  Scheduler scheduler_;
  Batch batch_;
  std::vector<Submission> submissions_;
  std::vector<SampleRow> sample_rows_;
  std::vector<SampleResult> results_;                     // by logit row of the batch
  std::deque<std::pair<absl::Time, int64_t>> generated_;  // of the steps of the last ten seconds
  int64_t generated_in_window_ = 0;
  uint64_t steps_ = 0;
  uint64_t preemptions_ = 0;
  bool published_ = false;  // this step pushed an event
  absl::Time forward_end_;  // of the step at hand; where ops are only enqueued, when they were

  std::atomic<bool> stop_{false};

  mutable Mutex mutex_;  // a leaf
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_ENGINE_LOOP_H_
