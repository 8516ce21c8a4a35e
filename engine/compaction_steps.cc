#include "engine/compaction_steps.h"

#include <algorithm>
#include <optional>

#include "metrics/log.h"

namespace condense {
namespace {

// A new request is not seen for so long, at most.
constexpr absl::Duration kLongestWaitForJobs = absl::Milliseconds(5);

CompactionOutcome OutcomeOf(const SettledJob& job) {
  if (job.dropped) return CompactionOutcome::kDropped;
  switch (job.outcome) {
    case SwapOutcome::kAccepted:
      return CompactionOutcome::kAccepted;
    case SwapOutcome::kRefused:
      return CompactionOutcome::kRefused;
    case SwapOutcome::kUseless:
      return CompactionOutcome::kUseless;
    case SwapOutcome::kFailed:
      break;
  }
  return CompactionOutcome::kFailed;
}

uint64_t* TotalOf(CompactionOutcome outcome, SwapTotals* totals) {
  switch (outcome) {
    case CompactionOutcome::kAccepted:
      return &totals->accepted;
    case CompactionOutcome::kRefused:
      return &totals->refused;
    case CompactionOutcome::kUseless:
      return &totals->useless;
    case CompactionOutcome::kDropped:
      return &totals->dropped;
    case CompactionOutcome::kFailed:
      break;
  }
  return &totals->failed;
}

// The worker gets a share of their time, and nobody notices: they are long by themselves.
bool HasPromptParts(const StepPlan& plan) {
  return std::any_of(plan.items.begin(), plan.items.end(),
                     [](const auto& item) { return item.num_tokens > 1; });
}

}  // namespace

void CompactionSteps::Collect() {
  if (parts_.compactor == nullptr) return;
  if (parts_.guard != nullptr) parts_.guard->Judge();
  const absl::Time begin = absl::Now();
  parts_.compactor->Collect();
  collecting_ = absl::Now() - begin;
}

void CompactionSteps::Begin(const StepPlan& plan) {
  if (parts_.compactor == nullptr) return;
  for (const StepPlan::Item& item : plan.items) {
    Sequence* sequence = item.sequence;
    if (sequence->computed() > 0 || !Admits(*sequence)) continue;
    sequence->SetCompaction(parts_.compactor->Open(*sequence->request().compression, sequence->kv(),
                                                   sequence->known()));
  }
  if (parts_.pace == nullptr) return;
  // What the worker did between two steps made none longer.
  if (parts_.guard != nullptr) parts_.pace->TakeSpent();
  if (hurried_) {
    parts_.pace->Lift();
  } else {
    parts_.pace->BeginStep(absl::ToChronoNanoseconds(saving_.saved()));
  }
}

bool CompactionSteps::Admits(const Sequence& sequence) {
  const std::optional<Compression>& compression = sequence.request().compression;
  if (!compression.has_value() || !compression->active()) return false;
  return parts_.guard == nullptr || parts_.guard->AdmitsNext();
}

void CompactionSteps::FirstToken(const Sequence& sequence, absl::Time now) {
  if (parts_.guard == nullptr) return;
  parts_.guard->FirstToken(sequence.compaction() != nullptr, sequence.prompt_size(),
                           now - sequence.submitted());
}

void CompactionSteps::End(const StepPlan& plan, const std::vector<Sequence*>& all,
                          absl::Duration attention_time) {
  if (parts_.compactor == nullptr) return;
  const absl::Time begin = absl::Now();
  const KvCacheStats stats = parts_.cache->Stats();
  Learn(plan, all, stats, attention_time);
  const double fill =
      static_cast<double>(stats.slab_bytes) / static_cast<double>(stats.arena_bytes);
  hurried_ = plan.deferred > 0 || fill > hard_limit_;
  parts_.compactor->set_paused(Paused());
  if (parts_.guard != nullptr) parts_.compactor->set_ratio_notches(parts_.guard->ratio_notches());
  for (Sequence* sequence : all) {
    if (sequence->compaction() == nullptr || sequence->known() - sequence->computed() > 1) continue;
    const auto ran = [&](const StepPlan::Item& item) { return item.sequence == sequence; };
    if (hurried_ || std::any_of(plan.items.begin(), plan.items.end(), ran)) {
      parts_.compactor->Step(sequence->compaction(), hurried_);
    }
  }
  const absl::Duration added = collecting_ + (absl::Now() - begin);
  if (parts_.guard != nullptr) TellGuard(plan, stats, added);
  if (parts_.metrics == nullptr) return;
  parts_.metrics->step_added_seconds.Observe(absl::ToDoubleSeconds(added));
}

bool CompactionSteps::Paused() const {
  if (parts_.control != nullptr && parts_.control->paused()) return true;
  return parts_.guard != nullptr && parts_.guard->HoldsJobs(hurried_);
}

void CompactionSteps::TellGuard(const StepPlan& plan, const KvCacheStats& before,
                                absl::Duration added) {
  parts_.guard->Turned(before, parts_.cache->Stats());
  if (plan.items.empty() || HasPromptParts(plan)) return;
  // Where the worker keeps to a pace it takes its time from the threads of the forward pass.
  if (parts_.pace != nullptr) added += absl::FromChrono(parts_.pace->TakeSpent());
  parts_.guard->Stepped(std::max(added - saving_.saved(), absl::ZeroDuration()));
}

// Only steps in which everything that holds memory decoded one token can be compared.
void CompactionSteps::Learn(const StepPlan& plan, const std::vector<Sequence*>& all,
                            const KvCacheStats& stats, absl::Duration attention_time) {
  if (parts_.pace == nullptr) return;
  const auto holding = std::count_if(
      all.begin(), all.end(), [](const Sequence* sequence) { return sequence->kv() != nullptr; });
  const auto decoding = std::count_if(plan.items.begin(), plan.items.end(),
                                      [](const auto& item) { return item.num_tokens == 1; });
  const int64_t bytes_16bit = parts_.cache->Bytes16Bit();
  if (decoding < holding || bytes_16bit == 0) {
    saving_.Skip();
    return;
  }
  const double held = static_cast<double>(stats.used_bytes) / static_cast<double>(bytes_16bit);
  saving_.Observe(attention_time, stats.logical_tokens, 1.0 - held);
}

void CompactionSteps::Settled() {
  if (parts_.compactor == nullptr) return;
  for (const SettledJob& job : parts_.compactor->TakeSettled()) {
    const CompactionOutcome outcome = OutcomeOf(job);
    ++*TotalOf(outcome, &totals_);
    if (outcome == CompactionOutcome::kFailed) {
      LogError("a compaction job failed: %s", job.status.ToString());
    }
    if (parts_.guard != nullptr) parts_.guard->Settled(job);
    if (parts_.metrics != nullptr) Observe(job, outcome);
  }
  const int64_t no_reserve = parts_.compactor->TakeNoReserve();
  if (parts_.metrics == nullptr) return;
  parts_.metrics->compaction_no_reserve.Increment(static_cast<double>(no_reserve));
}

void CompactionSteps::Observe(const SettledJob& job, CompactionOutcome outcome) {
  Metrics& metrics = *parts_.metrics;
  metrics.compaction_swaps(outcome).Increment();
  // Nobody has measured a job that was recalled or that failed half way.
  if (outcome == CompactionOutcome::kDropped || outcome == CompactionOutcome::kFailed) return;
  metrics.compaction_seconds(CompactionPhase::kPlan).Observe(job.plan_seconds);
  metrics.compaction_seconds(CompactionPhase::kBuild).Observe(job.build_seconds);
  metrics.compaction_seconds(CompactionPhase::kValidate).Observe(job.validate_seconds);
  if (outcome != CompactionOutcome::kAccepted && outcome != CompactionOutcome::kRefused) return;
  metrics.compaction_hit_ratio.Observe(job.quality.hit_ratio);
  metrics.compaction_output_error.Observe(job.quality.output_error);
  metrics.compaction_log_mass_error.Observe(job.quality.log_mass_error);
}

void CompactionSteps::Rest() {
  if (parts_.pace != nullptr) parts_.pace->Lift();
}

void CompactionSteps::Await() {
  if (parts_.compactor == nullptr) return;
  Rest();
  parts_.compactor->WaitForResult(kLongestWaitForJobs);
  parts_.compactor->Collect();
  Settled();
}

bool CompactionSteps::relief_coming() const {
  return parts_.compactor != nullptr && parts_.compactor->relief_coming();
}

int32_t CompactionSteps::jobs_out() const {
  return parts_.compactor == nullptr ? 0 : parts_.compactor->jobs_out();
}

}  // namespace condense
