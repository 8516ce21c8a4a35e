#ifndef CONDENSE_ENGINE_SCHEDULER_H_
#define CONDENSE_ENGINE_SCHEDULER_H_

// Who runs in the next step: continuous batching under a token budget and a memory budget.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/time/time.h"
#include "cache/kv_cache.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"

namespace condense {

struct SchedulerOptions {
  int32_t step_tokens = 512;           // token budget of a step
  int32_t max_sequences = 64;          // running at once
  int32_t decode_reserve_tokens = 32;  // kept free per running sequence when another is admitted
  int32_t max_running_per_tenant = 0;  // 0: no limit
  absl::Duration aging = absl::Seconds(10);  // an age of so much is worth one level of priority
  // Of the arena: the fill up to which the background may start, and beyond which it goes.
  double background_starts_below = 1.0;
  double background_leaves_above = 1.0;
  // Nothing runs for so long at most, because all wait for relief that may never come.
  absl::Duration longest_idle = absl::Seconds(2);
};

// Tokens of the background sequence in a step.
struct BackgroundTokens {
  int32_t beside = 0;  // what others run
  int32_t alone = 0;   // where no request is there
};

// Rules, in order:
//  1. Every running sequence that decodes gets one token.
//  2. What is left of the token budget goes to prompts: the oldest gets at least half of it, the
//  rest goes to those with
//     the fewest tokens left, so that a short prompt never waits for the whole of a long one.
//  3. Waiting sequences are admitted by effective priority (priority + time since submission /
//  aging), then by the tokens their
//     tenant was served (fewest first), then by age; strictly in that order, so that nothing is
//     starved by smaller requests behind it. Admission needs room for all known tokens and the
//     decode reserve of every running sequence.
//  4. A sequence that needs room that is not there waits while compaction is about to free some
//     (but not where nobody has run for `longest_idle`); else it preempts the newest running
//     sequence of the lowest priority (perhaps itself). Each preemption doubles the decode reserve
//     (at least one block), up to 16 times; it shrinks back step by step.
//  5. The background sequence comes last. While requests run it gets as much as it is allowed, and
//     at most an eighth of what they run or one token; while any waits or is short of room,
//     nothing. It starts where half of the arena would stay free, and what it holds goes to
//     whoever needs it: it is computed anew later.
// Threads: thread-compatible, owner is the engine thread. Pure but for the reservations it makes in
// the cache.
class Scheduler {
 public:
  // `relief_coming`: whether memory will come back without a preemption (compaction jobs are out);
  // may be empty.
  Scheduler(SchedulerOptions options, KvCache* cache, std::function<bool()> relief_coming = {});

  void Add(std::unique_ptr<Sequence> sequence);
  // REQUIRES: there is none.
  void SetBackground(std::unique_ptr<Sequence> sequence);
  Sequence* background() const { return background_.get(); }
  // Plans a step. Every item has its room reserved.
  StepPlan Schedule(absl::Time now, const BackgroundTokens& background = {});
  // Ends a sequence in whatever state it is, frees its room and gives it back to the caller for its
  // last event. The background sequence, too.
  std::unique_ptr<Sequence> Remove(Sequence* sequence);
  // A running sequence is computed anew, without anybody's need. False, and nothing changes, if
  // there is no room for all of its tokens in 16 bits.
  bool Rebuild(Sequence* sequence);

  // All requests: running ones oldest first, then waiting ones in order of arrival.
  std::vector<Sequence*> All() const;
  int32_t running() const { return static_cast<int32_t>(running_.size()); }
  int32_t waiting() const { return static_cast<int32_t>(waiting_.size()); }
  bool empty() const { return running_.empty() && waiting_.empty(); }
  int32_t decode_reserve_tokens() const { return decode_reserve_; }

 private:
  using Sequences = std::vector<std::unique_ptr<Sequence>>;

  double EffectivePriority(const Sequence& sequence, absl::Time now) const;
  bool TenantMayRun(const std::string& tenant) const;
  // The next to be admitted, or null.
  Sequence* NextWaiting(absl::Time now) const;
  // Tokens for which running sequences may still need room: what they know and have not computed,
  // and their reserve.
  int64_t PromisedTokens() const;
  void Admit(absl::Time now, StepPlan* plan);
  void PlanDecodes(StepPlan* plan);
  // In a step of at most `step_tokens`.
  void PlanPrompts(int32_t step_tokens, StepPlan* plan);
  // Reserves room for `tokens` more of `sequence`, preempting others if needed. False if it was
  // itself preempted, or is to wait for relief.
  bool Reserve(Sequence* sequence, int32_t tokens, StepPlan* plan);
  Sequence* Victim() const;
  void Preempt(Sequence* victim, StepPlan* plan);
  // To the front of those that wait, without its room.
  void SetBack(Sequence* sequence);
  // What the background may take of a step whose decodes are planned.
  int32_t BackgroundTokensOf(const StepPlan& plan, const BackgroundTokens& allowed) const;
  void PlanBackground(int32_t tokens, absl::Time now, StepPlan* plan);
  // False if it held nothing.
  bool TakeBackgroundsRoom();
  // Share of the arena in use, with so many tokens more in 16 bits.
  double ArenaFill(int64_t more_tokens) const;
  void Plan(Sequence* sequence, int32_t tokens, StepPlan* plan);

  const SchedulerOptions options_;
  KvCache* const cache_;
  const std::function<bool()> relief_coming_;

  Sequences running_;  // by admission, oldest first
  Sequences waiting_;  // by arrival; preempted ones at the front
  std::unique_ptr<Sequence> background_;
  absl::flat_hash_map<std::string, int64_t> served_tokens_;  // by tenant with live sequences
  int32_t decode_reserve_;
  absl::flat_hash_set<const Sequence*> deferred_;   // running, and waiting for room
  absl::Time idle_since_ = absl::InfiniteFuture();  // all that run wait for room
  bool patient_ = true;                             // such waiting is allowed in the plan at hand
  const Sequence* alone_ = nullptr;  // the last one preempted while nothing else ran,
  int64_t alone_known_ = 0;          // and what it knew then
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_SCHEDULER_H_
