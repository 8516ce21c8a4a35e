#ifndef CONDENSE_ENGINE_PROBE_PROBER_H_
#define CONDENSE_ENGINE_PROBE_PROBER_H_

// What compaction costs in quality, measured while the server runs: requests computed again on an
// uncompressed cache, and canaries. docs/guardrails.md, "Drift" and "Canary".

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "engine/compaction_guard.h"
#include "engine/compression_control.h"
#include "engine/probe/canary_text.h"
#include "engine/probe/probe_budget.h"
#include "engine/probe/probe_options.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_plan.h"
#include "engine/tokenizer/tokenizer.h"
#include "metrics/metrics.h"

namespace condense {

// Decides which requests keep a record of what they generate, and what runs in the background: one
// sequence at a time, which the scheduler holds. Threads: thread-compatible, owner is the engine
// thread.
class Prober {
 public:
  // All outlive it; `metrics` may be null.
  struct Parts {
    CompactionGuard* guard = nullptr;
    const CompressionControl* control = nullptr;
    const Tokenizer* tokenizer = nullptr;
    Metrics* metrics = nullptr;
    int64_t max_tokens = 0;  // of what runs in the background
  };
  Prober(const ProbeOptions& options, const Parts& parts);

  // Of requests. One that starts may keep a record; where enough is recorded, it is to be probed.
  void Started(Sequence* sequence);
  void Stepped(Sequence* sequence);
  void Ended(const Sequence& sequence);

  // What is to run in the background now, or null.
  std::unique_ptr<Sequence> Next();
  // What became of it: it ran to its end, or was set back or broke.
  void Finished(const Sequence& sequence);

  BackgroundTokens Allowed() const { return budget_.Allowed(); }
  void StepTook(absl::Duration time, const StepPlan& plan);
  // Until Next may have something for an idle engine.
  absl::Duration UntilNext() const;

 private:
  // Recorded of a request, to be computed again.
  struct Pending {
    std::vector<TokenId> tokens;  // all, up to the last recorded one
    TokenRecord record;
    bool compacted = false;
  };
  enum class Kind : uint8_t { kDrift, kReference, kCanary };

  void Offer(const Sequence& sequence);
  std::unique_ptr<Sequence> MakeSequence(std::vector<TokenId> prompt, std::vector<TokenId> forced,
                                         Compression compression);
  std::unique_ptr<Sequence> NextDrift();
  std::unique_ptr<Sequence> NextCanary();
  // The mode lets what a canary is about happen.
  bool CanaryMayRun() const;
  void FinishDrift(const TokenRecord& reference);
  void FinishReference(const TokenRecord& reference);
  void FinishCanary(const Sequence& sequence);
  // The answers that are what the model would have said.
  std::vector<bool> Found(const TokenRecord& record) const;
  void Count(ProbeKind kind, ProbeOutcome outcome);
  void ScheduleCanary();

  const ProbeOptions options_;
  const Parts parts_;
  ProbeBudget budget_;
  int32_t num_top_;
  uint64_t starts_ = 0;
  std::deque<Pending> pending_;

  Kind running_ = Kind::kDrift;  // what the background sequence is
  std::optional<Pending> active_;
  absl::Time floor_due_ = absl::InfinitePast();
  absl::Time canary_due_;
  bool has_traffic_ = false;  // requests ran since the last canary began
  uint64_t canaries_ = 0;
  CanaryText text_;
  std::vector<bool> known_;  // by the uncompressed cache; empty: not asked
  absl::Time canary_since_;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_PROBE_PROBER_H_
