#include "engine/compaction_guard.h"

#include <chrono>

#include "absl/strings/str_cat.h"
#include "metrics/log.h"

namespace condense {
namespace {

int64_t HeldBytes(const KvCacheStats& stats) { return stats.used_bytes + stats.staging_bytes; }

std::string Reason(const GuardrailDecision& decision) {
  if (decision.waiting_for.empty()) return decision.text;
  return absl::StrCat(decision.text, "; goes on: ", decision.waiting_for);
}

}  // namespace

CompactionGuard::CompactionGuard(const GuardrailLimits& limits, int32_t cycle_turns,
                                 CompressionControl* control)
    : cycle_turns_(cycle_turns), control_(control), monitor_(limits, Now()) {
  Tell();
}

absl::Time CompactionGuard::Now() {
  return absl::UnixEpoch() + absl::FromChrono(std::chrono::steady_clock::now().time_since_epoch());
}

void CompactionGuard::Judge() {
  const absl::Time now = Now();
  FollowOperator(now);
  if (!monitor_.Due(now)) return;
  monitor_.Evaluate(now);
  Tell();
}

void CompactionGuard::FollowOperator(absl::Time now) {
  const std::optional<GuardrailMode> wish = control_->forced();
  if (wish == forced_) return;
  forced_ = wish;
  if (wish.has_value()) {
    monitor_.Force(*wish, now);
  } else {
    monitor_.Release(now);
  }
  Tell();
}

void CompactionGuard::Tell() {
  const GuardrailDecision& decision = monitor_.decision();
  control_->SetGuard(decision.mode, Reason(decision));
  const Guardrail& guardrail = monitor_.guardrail();
  if (guardrail.num_transitions() == transitions_) return;
  transitions_ = guardrail.num_transitions();
  const GuardrailTransition& last = guardrail.transitions().back();
  LogInfo("compaction: %s, was %s: %s", GuardrailModeName(last.to), GuardrailModeName(last.from),
          last.text);
}

bool CompactionGuard::AdmitsNext() { return IsCompacted(monitor_.decision(), starts_++); }

bool CompactionGuard::HoldsJobs(bool memory_runs_out) const {
  const GuardrailDecision& decision = monitor_.decision();
  if (decision.new_jobs) return false;
  return !memory_runs_out || decision.mode == GuardrailMode::kUncompressed;
}

void CompactionGuard::Settled(const SettledJob& job) {
  const bool validated =
      job.outcome == SwapOutcome::kAccepted || job.outcome == SwapOutcome::kRefused;
  if (job.dropped || !validated || job.held_out_queries == 0) return;
  monitor_.ObserveUnit(job.quality.hit_ratio, Now());
}

void CompactionGuard::Stepped(absl::Duration added) { monitor_.ObserveAdded(added, Now()); }

void CompactionGuard::Turned(const KvCacheStats& before, const KvCacheStats& after) {
  // Between two turns only requests take and return bytes; what a job leaves that is dropped
  // belonged to a request that ended.
  const MemoryStep step{.used_bytes = after.used_bytes,
                        .staging_bytes = after.staging_bytes,
                        .grown_bytes = HeldBytes(before) - held_bytes_,
                        .cycle_end = ++turns_ == cycle_turns_};
  held_bytes_ = HeldBytes(after);
  if (step.cycle_end) turns_ = 0;
  const double arena_use =
      static_cast<double>(after.slab_bytes) / static_cast<double>(after.arena_bytes);
  monitor_.ObserveMemory(step, arena_use, Now());
}

void CompactionGuard::FirstToken(bool compacted, int64_t prompt_tokens, absl::Duration waited) {
  monitor_.ObserveFirstToken(compacted, prompt_tokens, waited, Now());
}

}  // namespace condense
