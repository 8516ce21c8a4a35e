#include "engine/compaction_steps.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "kernels/base/thread_cpu_time.h"
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

bool IsActive(const Sequence& sequence) {
  const std::optional<Compression>& compression = sequence.request().compression;
  return compression.has_value() && compression->active();
}

// Of this thread.
struct Stopwatch {
  const absl::Time wall = absl::Now();
  const std::chrono::nanoseconds cpu = ThreadCpuTime();

  absl::Duration Wall() const { return absl::Now() - wall; }
  absl::Duration Cpu() const { return absl::FromChrono(ThreadCpuTime() - cpu); }
};

}  // namespace

void CompactionSteps::Collect() {
  if (parts_.compactor == nullptr) return;
  if (parts_.guard != nullptr) parts_.guard->Judge();
  const Stopwatch stopwatch;
  parts_.compactor->Collect();
  collecting_ = {stopwatch.Wall(), stopwatch.Cpu()};
}

void CompactionSteps::Begin(const StepPlan& plan) {
  if (parts_.compactor == nullptr) return;
  for (const StepPlan::Item& item : plan.items) {
    Sequence* sequence = item.sequence;
    if (sequence->computed() > 0) continue;
    if (item.background ? !IsActive(*sequence) : !Admits(*sequence)) continue;
    sequence->SetCompaction(parts_.compactor->Open(*sequence->request().compression, sequence->kv(),
                                                   sequence->known()));
  }
  if (parts_.pace == nullptr) return;
  if (hurried_ || !plan.HasRequests()) {
    parts_.pace->Lift();
    owed_ = absl::ZeroDuration();
  } else {
    const auto saved = absl::ToChronoNanoseconds(saving_.saved());
    owed_ = absl::FromChrono(parts_.pace->BeginStep(saved));
  }
}

std::vector<Sequence*> CompactionSteps::ToRebuild(const std::vector<Sequence*>& all) const {
  std::vector<Sequence*> worst;
  if (parts_.guard == nullptr || parts_.guard->mode() != GuardrailMode::kUncompressed) return worst;
  for (Sequence* sequence : all) {
    if (sequence->known() - sequence->computed() > 1) return {};
    const SequenceCompaction* compaction = sequence->compaction();
    if (compaction == nullptr) continue;
    const TokenRecord* record = sequence->record();
    const std::optional<double> nats = record == nullptr ? std::nullopt : record->drift();
    if (parts_.guard->Rebuilds(compaction->hit_ratio(), nats)) worst.push_back(sequence);
  }
  std::sort(worst.begin(), worst.end(), [](const Sequence* a, const Sequence* b) {
    return a->compaction()->hit_ratio() < b->compaction()->hit_ratio();
  });
  return worst;
}

bool CompactionSteps::Admits(const Sequence& sequence) {
  if (!IsActive(sequence)) return false;
  return parts_.guard == nullptr || parts_.guard->AdmitsNext();
}

void CompactionSteps::FirstToken(const Sequence& sequence, absl::Time now) {
  if (parts_.guard == nullptr) return;
  parts_.guard->FirstToken(sequence.compaction() != nullptr, sequence.prompt_size(),
                           now - sequence.submitted());
}

void CompactionSteps::NextToken(absl::Duration gap) {
  if (parts_.guard != nullptr) parts_.guard->NextToken(gap);
}

void CompactionSteps::End(const StepPlan& plan, const std::vector<Sequence*>& all,
                          Sequence* background, absl::Duration attention_time) {
  if (parts_.compactor == nullptr) return;
  const Stopwatch stopwatch;
  const KvCacheStats stats = parts_.cache->Stats();
  Learn(plan, all, background, attention_time);
  const double fill =
      static_cast<double>(stats.slab_bytes) / static_cast<double>(stats.arena_bytes);
  hurried_ = plan.deferred > 0 || fill > hard_limit_;
  parts_.compactor->set_paused(Paused());
  if (parts_.guard != nullptr) parts_.compactor->set_notches(parts_.guard->ratio_notches());
  for (Sequence* sequence : all) Turn(sequence, plan);
  if (background != nullptr) Turn(background, plan);
  const absl::Duration added = collecting_.wall + stopwatch.Wall();
  if (parts_.guard != nullptr) TellGuard(plan, stats, collecting_.cpu + stopwatch.Cpu());
  if (parts_.metrics == nullptr) return;
  parts_.metrics->step_added_seconds.Observe(absl::ToDoubleSeconds(added));
}

void CompactionSteps::Turn(Sequence* sequence, const StepPlan& plan) {
  if (sequence->compaction() == nullptr || sequence->known() - sequence->computed() > 1) return;
  const auto ran = [&](const StepPlan::Item& item) { return item.sequence == sequence; };
  if (hurried_ || std::any_of(plan.items.begin(), plan.items.end(), ran)) {
    parts_.compactor->Step(sequence->compaction(), hurried_);
  }
}

bool CompactionSteps::Paused() const {
  if (parts_.control != nullptr && parts_.control->paused()) return true;
  return parts_.guard != nullptr && parts_.guard->HoldsJobs(hurried_);
}

void CompactionSteps::TellGuard(const StepPlan& plan, const KvCacheStats& before,
                                absl::Duration cpu_time) {
  parts_.guard->Turned(before, parts_.cache->Stats());
  if (plan.HasRequests()) parts_.guard->Stepped(cpu_time, owed_);
}

// Only steps in which everything that holds memory decoded one token can be compared.
void CompactionSteps::Learn(const StepPlan& plan, const std::vector<Sequence*>& all,
                            const Sequence* background, absl::Duration attention_time) {
  // A probe that takes part changes what attention takes, not what it saves.
  if (parts_.pace == nullptr || plan.HasBackground()) return;
  const auto holding = std::count_if(
      all.begin(), all.end(), [](const Sequence* sequence) { return sequence->kv() != nullptr; });
  const auto decoding = std::count_if(plan.items.begin(), plan.items.end(),
                                      [](const auto& item) { return item.num_tokens == 1; });
  const KvCacheStats stats = parts_.cache->Stats();
  int64_t bytes = stats.used_bytes;
  int64_t bytes_16bit = parts_.cache->Bytes16Bit();
  int64_t tokens = stats.logical_tokens;
  if (background != nullptr && background->kv() != nullptr) {
    const KvHolding held = parts_.cache->Held(*background->kv());
    bytes -= held.bytes;
    bytes_16bit -= held.bytes_16bit;
    tokens -= background->computed();
  }
  if (decoding < holding || bytes_16bit == 0) {
    saving_.Skip();
    return;
  }
  const double held_share = static_cast<double>(bytes) / static_cast<double>(bytes_16bit);
  saving_.Observe(attention_time, tokens, 1.0 - held_share);
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
    if (parts_.metrics == nullptr) continue;
    parts_.metrics->compaction_worker_seconds.Increment(job.cpu_seconds);
    Observe(job, outcome);
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
