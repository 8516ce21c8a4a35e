#include "engine/probe/prober.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/probe/token_drift.h"
#include "engine/steady_now.h"
#include "kernels/base/uniform.h"

namespace condense {
namespace {

constexpr int32_t kRecordTokens = 128;
constexpr int32_t kLeastTokens = 16;  // a record of fewer is not worth computing a context again
// A request that goes on is probed each time it has generated so many.
constexpr int64_t kSnapshotTokens = 512;
constexpr size_t kMostPending = 4;
// An idle engine is not woken more often.
constexpr absl::Duration kShortestWait = absl::Seconds(1);
// Of the units, that must be compacted before a canary's answers say something of compaction.
constexpr double kLeastCompacted = 0.8;

// Another sequence than the one that probation draws.
constexpr uint64_t kSampleSeed = 2;

ProbeKind KindOf(bool compacted) { return compacted ? ProbeKind::kDrift : ProbeKind::kFloor; }

}  // namespace

absl::Status ProbeOptions::Validate() const {
  if (!(share >= 0.0 && share <= 1.0)) {
    return absl::InvalidArgumentError(absl::StrFormat("probe_share is %g; must be in 0..1", share));
  }
  if (!(step_share >= 0.0 && step_share <= 0.5)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("probe_step_share is %g; must be in 0..0.5", step_share));
  }
  if (canary_interval != absl::ZeroDuration() &&
      (canary_interval < absl::Milliseconds(100) || canary_interval > absl::Hours(24))) {
    return absl::InvalidArgumentError(
        absl::StrFormat("canary_interval is %s; must be 0 or in 100ms..24h",
                        absl::FormatDuration(canary_interval)));
  }
  if (canary_tokens < 256 || canary_tokens > 1 << 20) {
    return absl::InvalidArgumentError(
        absl::StrFormat("canary_tokens is %d; must be in 256..%d", canary_tokens, 1 << 20));
  }
  return absl::OkStatus();
}

Prober::Prober(const ProbeOptions& options, const Parts& parts)
    : options_(options),
      parts_(parts),
      budget_(options.step_share),
      num_top_(std::min(kMaxTopLogprobs, parts.tokenizer->vocab_size())) {
  ScheduleCanary();
}

void Prober::Started(Sequence* sequence) {
  // Probation waits for evidence of the few that are compacted in it.
  const bool wanted = options_.share > 0.0 && parts_.guard->mode() == GuardrailMode::kProbation;
  if (sequence->request().score || !(Uniform(kSampleSeed, starts_++) < options_.share || wanted))
    return;
  sequence->SetRecord(std::make_unique<TokenRecord>(kRecordTokens, num_top_, SteadyNow()));
}

void Prober::Stepped(Sequence* sequence) {
  const TokenRecord* record = sequence->record();
  // Ended, it is offered once, by Ended.
  if (record == nullptr || record->size() < kRecordTokens || sequence->ended()) return;
  if (record->added() % kSnapshotTokens == 0) Offer(*sequence);
}

void Prober::Ended(const Sequence& sequence) {
  const TokenRecord* record = sequence.record();
  if (record != nullptr && record->size() >= kLeastTokens) Offer(sequence);
}

void Prober::Offer(const Sequence& sequence) {
  const SequenceCompaction* compaction = sequence.compaction();
  const bool compacted = compaction != nullptr;
  // Nothing of it is compacted yet: that says nothing about either kind.
  if (compacted && compaction->swaps_accepted() == 0) return;
  const auto is_floor = [](const Pending& pending) { return !pending.compacted; };
  if (!compacted &&
      (SteadyNow() < floor_due_ || std::any_of(pending_.begin(), pending_.end(), is_floor))) {
    return;
  }
  std::vector<TokenId> tokens = sequence.tokens();
  const TokenRecord& record = *sequence.record();
  // A token that ended the request was chosen too.
  if (static_cast<int64_t>(tokens.size()) < sequence.prompt_size() + sequence.generated()) {
    tokens.push_back(record.at(record.size() - 1).token);
  }
  if (static_cast<int64_t>(tokens.size()) > parts_.max_tokens) return;
  if (pending_.size() == kMostPending) {
    Count(KindOf(pending_.front().compacted), ProbeOutcome::kDropped);
    pending_.pop_front();
  }
  pending_.push_back({std::move(tokens), record, compacted});
}

std::unique_ptr<Sequence> Prober::MakeSequence(std::vector<TokenId> prompt,
                                               std::vector<TokenId> forced,
                                               Compression compression) {
  Request request{
      .id = "probe", .prompt = std::move(prompt), .compression = std::move(compression)};
  request.stop.ignore_eos = true;
  request.forced = std::move(forced);
  const auto count = static_cast<int32_t>(request.forced.size());
  auto stream = std::make_shared<TokenStream>(request.id, count);
  auto sequence =
      std::make_unique<Sequence>(Submission{std::move(request), std::move(stream), absl::Now()},
                                 count, std::vector<TokenId>{});
  sequence->SetRecord(std::make_unique<TokenRecord>(count, num_top_, SteadyNow()));
  return sequence;
}

std::unique_ptr<Sequence> Prober::Next() {
  // In turns, where both have something to do: a busy engine has little time for either.
  const bool drift_first = running_ != Kind::kDrift && known_.empty();
  std::unique_ptr<Sequence> next = drift_first ? NextDrift() : NextCanary();
  if (next == nullptr) next = drift_first ? NextCanary() : NextDrift();
  return next;
}

std::unique_ptr<Sequence> Prober::NextDrift() {
  while (!pending_.empty()) {
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    if (pending.record.since() < parts_.guard->evidence_from()) {
      Count(KindOf(pending.compacted), ProbeOutcome::kDropped);
      continue;
    }
    const auto first = pending.tokens.end() - pending.record.size();
    running_ = Kind::kDrift;
    std::unique_ptr<Sequence> sequence =
        MakeSequence({pending.tokens.begin(), first}, {first, pending.tokens.end()}, {});
    active_.emplace(std::move(pending));
    return sequence;
  }
  return nullptr;
}

bool Prober::CanaryMayRun() const {
  const GuardrailMode mode = parts_.guard->mode();
  const bool compacts = mode == GuardrailMode::kCompacting || mode == GuardrailMode::kProbation;
  return options_.canary_interval > absl::ZeroDuration() && compacts && !parts_.control->paused() &&
         parts_.control->Default().active();
}

std::unique_ptr<Sequence> Prober::NextCanary() {
  if (SteadyNow() < canary_due_ || !CanaryMayRun()) return nullptr;
  if (!known_.empty()) {
    running_ = Kind::kCanary;
    return MakeSequence(text_.prompt, text_.forced, parts_.control->Default());
  }
  // A server that nobody uses has nothing to learn, and a machine to leave alone.
  if (!has_traffic_) return nullptr;
  text_ = MakeCanaryText(*parts_.tokenizer, options_.canary_tokens, ++canaries_);
  canary_since_ = SteadyNow();
  has_traffic_ = false;
  if (static_cast<int64_t>(text_.prompt.size() + text_.forced.size()) > parts_.max_tokens) {
    Count(ProbeKind::kCanary, ProbeOutcome::kUnavailable);
    ScheduleCanary();
    return nullptr;
  }
  running_ = Kind::kReference;
  return MakeSequence(text_.prompt, text_.forced, {});
}

void Prober::ScheduleCanary() {
  known_.clear();
  canary_due_ = SteadyNow() + options_.canary_interval;
}

void Prober::Finished(const Sequence& sequence) {
  const TokenRecord& record = *sequence.record();
  const bool whole = sequence.ended() && sequence.preemptions() == 0 &&
                     record.size() == static_cast<int32_t>(sequence.request().forced.size());
  switch (running_) {
    case Kind::kDrift:
      if (whole) {
        FinishDrift(record);
      } else {
        Count(KindOf(active_->compacted), ProbeOutcome::kDropped);
      }
      active_.reset();
      return;
    case Kind::kReference:
      if (whole) return FinishReference(record);
      break;
    case Kind::kCanary:
      if (whole) return FinishCanary(sequence);
      break;
  }
  Count(ProbeKind::kCanary, ProbeOutcome::kDropped);
  ScheduleCanary();
}

void Prober::FinishDrift(const TokenRecord& reference) {
  const TokenRecord& live = active_->record;
  const ProbeKind kind = KindOf(active_->compacted);
  if (live.since() < parts_.guard->evidence_from()) return Count(kind, ProbeOutcome::kDropped);
  double kl = 0.0, nll_delta = 0.0;
  int32_t agreements = 0;
  for (int32_t i = 0; i < live.size(); ++i) {
    const TokenDrift drift = CompareTokens(live.at(i), reference.at(i), num_top_);
    kl += drift.kl;
    nll_delta += drift.nll_delta;
    agreements += drift.top1_agrees ? 1 : 0;
  }
  kl /= live.size();
  nll_delta /= live.size();
  Count(kind, ProbeOutcome::kDone);
  if (kind == ProbeKind::kFloor) floor_due_ = SteadyNow() + options_.floor_interval;
  live.set_drift(kl);
  parts_.guard->Drift(active_->compacted, kl, live.size());
  if (parts_.metrics == nullptr) return;
  parts_.metrics->quality_kl(kind).Observe(kl);
  parts_.metrics->quality_nll_delta(kind).Observe(nll_delta);
  parts_.metrics->quality_tokens(kind).Increment(live.size());
  parts_.metrics->quality_top1(kind).Increment(agreements);
}

std::vector<bool> Prober::Found(const TokenRecord& record) const {
  std::vector<bool> found;
  for (const CanaryText::Answer& answer : text_.answers) {
    bool right = true;
    for (int32_t i = answer.begin; i < answer.end; ++i) {
      right = right && record.at(i).top[0].token == text_.forced[i];
    }
    found.push_back(right);
  }
  return found;
}

void Prober::FinishReference(const TokenRecord& reference) {
  known_ = Found(reference);
  if (std::find(known_.begin(), known_.end(), true) != known_.end()) return;
  // The model itself cannot answer: nothing to compare with.
  Count(ProbeKind::kCanary, ProbeOutcome::kUnavailable);
  ScheduleCanary();
}

void Prober::FinishCanary(const Sequence& sequence) {
  const SequenceCompaction* compaction = sequence.compaction();
  const bool compacted = compaction != nullptr && compaction->swapped_share() >= kLeastCompacted;
  if (!compacted || canary_since_ < parts_.guard->evidence_from()) {
    Count(ProbeKind::kCanary, ProbeOutcome::kDropped);
    return ScheduleCanary();
  }
  const std::vector<bool> found = Found(*sequence.record());
  int32_t asked = 0, right = 0;
  for (size_t i = 0; i < known_.size(); ++i) {
    if (!known_[i]) continue;
    ++asked;
    right += found[i] ? 1 : 0;
  }
  Count(ProbeKind::kCanary, ProbeOutcome::kDone);
  parts_.guard->Canary(right, asked);
  if (parts_.metrics != nullptr) {
    parts_.metrics->canary_facts_asked.Increment(asked);
    parts_.metrics->canary_facts_found.Increment(right);
  }
  ScheduleCanary();
}

void Prober::Count(ProbeKind kind, ProbeOutcome outcome) {
  if (parts_.metrics != nullptr) parts_.metrics->probes(kind, outcome).Increment();
}

void Prober::StepTook(absl::Duration time, const StepPlan& plan) {
  const absl::Duration before = budget_.spent();
  budget_.Stepped(time, plan.num_tokens, plan.background_tokens());
  has_traffic_ = has_traffic_ || plan.HasRequests();
  if (parts_.metrics == nullptr) return;
  parts_.metrics->probes_pending.Set(static_cast<double>(pending_.size()) +
                                     (active_.has_value() ? 1.0 : 0.0));
  parts_.metrics->probe_tokens.Increment(plan.background_tokens());
  parts_.metrics->probe_seconds.Increment(absl::ToDoubleSeconds(budget_.spent() - before));
}

absl::Duration Prober::UntilNext() const {
  if (!pending_.empty()) return absl::ZeroDuration();
  if (!has_traffic_ || !CanaryMayRun()) return absl::InfiniteDuration();
  return std::max(kShortestWait, canary_due_ - SteadyNow());
}

}  // namespace condense
