#ifndef CONDENSE_TESTS_SUPPORT_SCHEDULER_SIMULATION_H_
#define CONDENSE_TESTS_SUPPORT_SCHEDULER_SIMULATION_H_

// Plays the engine around a Scheduler in simulated time.

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "cache/kv_cache.h"
#include "engine/scheduler.h"
#include "kernels/backend.h"
#include "tests/support/fake_tokenizer.h"

namespace condense {

// Every step takes 10 ms and every row of a last token yields token 0, but forced ones where a
// sequence has some. Fails the test where a plan breaks a promise of StepPlan.
class Simulation {
 public:
  // A slab holds at least 64 KiB; blocks of this layout are 1 KiB.
  Simulation(SchedulerOptions options, int64_t arena_tokens);
  Simulation(SchedulerOptions options, const KvLayout& layout, int64_t arena_bytes);

  void Submit(const std::string& id, int prompt, int output, int priority = 0,
              const std::string& tenant = "");
  // The scheduler's background sequence from now on, until it ends.
  void SetBackground(int prompt, int forced);
  // Sequences of the plan that ended in the step are gone.
  StepPlan Step();
  void End(Sequence* sequence);

  Sequence* Find(const std::string& id);
  Scheduler& scheduler() { return *scheduler_; }
  const KvCache& cache() const { return *cache_; }
  absl::Time now() const { return now_; }
  absl::Duration Waited(const std::string& id) { return started_at_.at(id) - submitted_at_.at(id); }

  // What the scheduler is told.
  bool relief_coming_ = false;
  BackgroundTokens allowed_;
  // Of requests. In the last step: who ran, and how many tokens.
  std::vector<std::pair<std::string, int32_t>> ran_;
  std::set<std::string> ended_;
  std::map<std::string, absl::Time> submitted_at_, started_at_, ended_at_;
  std::map<std::string, int64_t> tokens_;  // run, by tenant
  int64_t preemptions_ = 0;
  int64_t preemptions_avoided_ = 0;
  // Of background sequences.
  int background_ended_ = 0;
  int64_t background_tokens_ = 0;  // run

 private:
  void CheckPlan(const StepPlan& plan);
  void CheckBackground(const StepPlan& plan);
  void Compute(const StepPlan::Item& item);

  const SchedulerOptions options_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<KvCache> cache_;
  std::unique_ptr<Scheduler> scheduler_;
  FakeTokenizer tokenizer_;
  absl::Time now_ = absl::UnixEpoch();
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_SCHEDULER_SIMULATION_H_
