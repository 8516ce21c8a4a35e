#include "engine/compaction_guard.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "engine/steady_now.h"
#include "metrics/log.h"

namespace condense {
namespace {

int64_t HeldBytes(const KvCacheStats& stats) { return stats.used_bytes + stats.staging_bytes; }

std::string Reason(const GuardrailDecision& decision) {
  if (decision.waiting_for.empty()) return decision.text;
  return absl::StrCat(decision.text, "; goes on: ", decision.waiting_for);
}

// Labels are of the metrics' own closed sets, in the same order.
GuardMode ModeLabel(GuardrailMode mode) { return static_cast<GuardMode>(mode); }
static_assert(kNumGuardrailModes == 1 + static_cast<int>(GuardMode::kProbation));
static_assert(kNumGuards == 1 + static_cast<int>(GuardMetric::kInterToken));

// Nothing for what makes no transition.
std::optional<TransitionReason> ReasonLabel(GuardrailReason reason) {
  switch (reason) {
    case GuardrailReason::kWarning:
      return TransitionReason::kWarning;
    case GuardrailReason::kLimitBroken:
      return TransitionReason::kLimitBroken;
    case GuardrailReason::kRecovered:
      return TransitionReason::kRecovered;
    case GuardrailReason::kDwellOver:
      return TransitionReason::kDwellOver;
    case GuardrailReason::kProbationPassed:
      return TransitionReason::kPassed;
    case GuardrailReason::kForced:
      return TransitionReason::kForced;
    case GuardrailReason::kStart:
    case GuardrailReason::kReleased:
      break;
  }
  return std::nullopt;
}

}  // namespace

CompactionGuard::CompactionGuard(const GuardrailLimits& limits, int32_t cycle_turns,
                                 CompressionControl* control, Metrics* metrics)
    : cycle_turns_(cycle_turns),
      control_(control),
      metrics_(metrics),
      monitor_(limits, SteadyNow()) {
  Tell();
}

void CompactionGuard::Judge() {
  const absl::Time now = SteadyNow();
  FollowOperator(now);
  if (!monitor_.Due(now)) return;
  monitor_.Evaluate(now);
  TellReadings();
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
  if (metrics_ != nullptr) metrics_->SetGuardMode(ModeLabel(decision.mode));
  const Guardrail& guardrail = monitor_.guardrail();
  if (guardrail.num_transitions() == transitions_) return;
  transitions_ = guardrail.num_transitions();
  TellTransition(guardrail.transitions().back());
}

void CompactionGuard::TellTransition(const GuardrailTransition& transition) {
  LogInfo("compaction: %s, was %s: %s", GuardrailModeName(transition.to),
          GuardrailModeName(transition.from), transition.text);
  const std::optional<TransitionReason> reason = ReasonLabel(transition.reason);
  if (metrics_ == nullptr || !reason.has_value()) return;
  metrics_->guard_transitions(ModeLabel(transition.to), *reason).Increment();
}

void CompactionGuard::TellReadings() {
  GuardReports reports;
  for (int i = 0; i < kNumGuards; ++i) {
    const auto guard = static_cast<Guard>(i);
    reports[i] = {monitor_.readings()[guard], monitor_.guardrail().level(guard)};
  }
  control_->SetReports(reports);
  if (metrics_ == nullptr) return;
  for (int i = 0; i < kNumGuards; ++i) {
    const std::optional<Reading>& reading = monitor_.readings()[static_cast<Guard>(i)];
    const auto label = static_cast<GuardMetric>(i);
    const int64_t samples = reading.has_value() ? reading->samples : 0;
    metrics_->guard_samples(label).Set(static_cast<double>(samples));
    if (reading.has_value()) metrics_->guard_reading(label).Set(reading->value);
  }
  if (const std::optional<Reading> floor = monitor_.drift_floor(SteadyNow())) {
    metrics_->drift_floor.Set(floor->value);
  }
}

bool CompactionGuard::AdmitsNext() { return IsCompacted(monitor_.decision(), starts_++); }

bool CompactionGuard::HoldsJobs(bool memory_runs_out) const {
  const GuardrailDecision& decision = monitor_.decision();
  if (decision.new_jobs) return false;
  return !memory_runs_out || decision.mode == GuardrailMode::kUncompressed;
}

bool CompactionGuard::Rebuilds(double hit_ratio, std::optional<double> nats) const {
  const GuardrailDecision& decision = monitor_.decision();
  if (decision.mode != GuardrailMode::kUncompressed || !decision.guard.has_value()) return false;
  if (TraitsOf(*decision.guard).effect != GuardEffect::kQuality) return false;
  const GuardrailLimits& limits = monitor_.guardrail().limits();
  const bool drifted = nats.has_value() && std::expm1(*nats) > limits.drift.limit;
  return drifted || hit_ratio < limits.hit_ratio.limit;
}

void CompactionGuard::Settled(const SettledJob& job) {
  const bool validated =
      job.outcome == SwapOutcome::kAccepted || job.outcome == SwapOutcome::kRefused;
  if (job.dropped || !validated || job.held_out_queries == 0) return;
  monitor_.ObserveUnit(job.quality.hit_ratio, SteadyNow());
}

void CompactionGuard::Stepped(absl::Duration thread_time, absl::Duration owed) {
  const AddedStep step{
      .thread_time = thread_time, .owed = owed, .cycle_end = ++steps_ == cycle_turns_};
  if (step.cycle_end) steps_ = 0;
  monitor_.ObserveAdded(step, SteadyNow());
}

void CompactionGuard::Turned(const KvCacheStats& before, const KvCacheStats& after) {
  // Between two turns only requests take and return bytes; what a job leaves that is dropped
  // belonged to a request that ended.
  const MemoryStep step{.used_bytes = after.used_bytes,
                        .staging_bytes = after.staging_bytes,
                        .grown_bytes = HeldBytes(before) - held_bytes_,
                        .arena_bytes = after.arena_bytes,
                        .cycle_end = ++turns_ == cycle_turns_};
  held_bytes_ = HeldBytes(after);
  if (step.cycle_end) turns_ = 0;
  const double arena_use =
      static_cast<double>(after.slab_bytes) / static_cast<double>(after.arena_bytes);
  monitor_.ObserveMemory(step, arena_use, SteadyNow());
}

void CompactionGuard::Drift(bool compacted, double nats, int32_t tokens) {
  monitor_.ObserveDrift(compacted, nats, tokens, SteadyNow());
}

void CompactionGuard::Canary(int32_t found, int32_t asked) {
  monitor_.ObserveCanary(found, asked, SteadyNow());
}

void CompactionGuard::NextToken(absl::Duration gap) { monitor_.ObserveNextToken(gap, SteadyNow()); }

void CompactionGuard::FirstToken(bool compacted, int64_t prompt_tokens, absl::Duration waited) {
  monitor_.ObserveFirstToken(compacted, prompt_tokens, waited, SteadyNow());
}

}  // namespace condense
