#include "engine/guard_monitor.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr double kTailLevel = 0.05;
constexpr double kLatencyLevel = 0.99;
constexpr double kFluctuationLevel = 0.95;
constexpr int32_t kMemoryBuckets = 10;

Guardrail MakeGuardrail(const GuardrailLimits& limits, absl::Time now) {
  absl::StatusOr<Guardrail> guardrail = Guardrail::Make(limits, now);
  CHECK(guardrail.ok());
  return *std::move(guardrail);
}

std::optional<SlidingQuantile> MakeLatency(const GuardLimit& limit) {
  if (!limit.bound) return std::nullopt;
  return SlidingQuantile(limit.window, QuantileScale::Latency());
}

}  // namespace

GuardMonitor::GuardMonitor(const GuardrailLimits& limits, absl::Time now)
    : guardrail_(MakeGuardrail(limits, now)),
      confidence_(limits.confidence),
      evidence_from_(guardrail_.decision().evidence_from),
      hit_ratio_(limits.hit_ratio.window),
      hit_ratio_tail_(limits.hit_ratio_tail.window, QuantileScale::Share()),
      added_(limits.merge_latency.window, QuantileScale::Latency()),
      fluctuation_(limits.memory_fluctuation.window, QuantileScale::Share()),
      drift_(limits.drift.window),
      drift_floor_(limits.drift.window),
      canary_(limits.canary.window),
      first_token_(limits.first_token.window),
      memory_(limits.memory.window, kMemoryBuckets, Peak()),
      ttft_(MakeLatency(limits.ttft)),
      inter_token_(MakeLatency(limits.inter_token)) {}

void GuardMonitor::ObserveUnit(double hit_ratio, absl::Time now) {
  hit_ratio_.Add(now, hit_ratio);
  hit_ratio_tail_.Add(now, hit_ratio);
}

void GuardMonitor::ObserveAdded(const AddedStep& step, absl::Time now) {
  if (const std::optional<absl::Duration> added = added_time_.Observe(step)) {
    added_.Add(now, absl::ToDoubleSeconds(*added));
  }
}

void GuardMonitor::ObserveMemory(const MemoryStep& step, double arena_use, absl::Time now) {
  if (const std::optional<double> fluctuation = cycle_.Observe(step)) {
    fluctuation_.Add(now, *fluctuation);
  }
  Peak* peak = memory_.At(now);
  if (peak == nullptr) return;
  peak->share = std::max(peak->share, arena_use);
  ++peak->steps;
}

void GuardMonitor::ObserveFirstToken(bool compacted, int64_t prompt_tokens, absl::Duration waited,
                                     absl::Time now) {
  first_token_.Add(now, compacted, prompt_tokens, absl::ToDoubleSeconds(waited));
  if (ttft_.has_value()) ttft_->Add(now, absl::ToDoubleSeconds(waited));
}

void GuardMonitor::ObserveNextToken(absl::Duration gap, absl::Time now) {
  if (inter_token_.has_value()) inter_token_->Add(now, absl::ToDoubleSeconds(gap));
}

void GuardMonitor::ObserveDrift(bool compacted, double nats, int64_t tokens, absl::Time now) {
  (compacted ? drift_ : drift_floor_).Add(now, nats, static_cast<double>(tokens));
}

void GuardMonitor::ObserveCanary(int64_t found, int64_t asked, absl::Time now) {
  const auto trials = static_cast<double>(asked);
  canary_.Add(now, static_cast<double>(found) / trials, trials);
}

std::optional<Reading> GuardMonitor::drift_floor(absl::Time now) const {
  return DriftReading(drift_floor_, now, confidence_);
}

const GuardrailDecision& GuardMonitor::Evaluate(absl::Time now) {
  readings_ = Read(now);
  guardrail_.Evaluate(readings_, now);
  ForgetBefore(decision().evidence_from);
  return decision();
}

const GuardrailDecision& GuardMonitor::Force(GuardrailMode mode, absl::Time now) {
  guardrail_.Force(mode, now);
  ForgetBefore(decision().evidence_from);
  return decision();
}

const GuardrailDecision& GuardMonitor::Release(absl::Time now) {
  guardrail_.Release(now);
  ForgetBefore(decision().evidence_from);
  return decision();
}

Readings GuardMonitor::Read(absl::Time now) const {
  Readings readings;
  readings[Guard::kHitRatio] = MeanReading(hit_ratio_, now, confidence_);
  readings[Guard::kHitRatioTail] = QuantileReading(hit_ratio_tail_, kTailLevel, now, confidence_);
  readings[Guard::kMergeLatency] = QuantileReading(added_, kLatencyLevel, now, confidence_);
  readings[Guard::kMemoryFluctuation] =
      QuantileReading(fluctuation_, kFluctuationLevel, now, confidence_);
  readings[Guard::kDrift] = DriftReading(drift_, now, confidence_);
  readings[Guard::kCanary] = ShareReading(canary_, now, confidence_);
  readings[Guard::kFirstToken] = first_token_.Estimate(now, confidence_);
  readings[Guard::kMemory] = ReadMemory(now);
  const auto read = [&](const std::optional<SlidingQuantile>& latency) -> std::optional<Reading> {
    if (!latency.has_value()) return std::nullopt;
    return QuantileReading(*latency, kLatencyLevel, now, confidence_);
  };
  readings[Guard::kTtft] = read(ttft_);
  readings[Guard::kInterToken] = read(inter_token_);
  return readings;
}

// A peak is what it was: no sample, and no bound.
std::optional<Reading> GuardMonitor::ReadMemory(absl::Time now) const {
  Reading reading;
  memory_.ForEach(now, [&](const Peak& peak) {
    reading.value = std::max(reading.value, peak.share);
    reading.samples += peak.steps;
  });
  if (reading.samples == 0) return std::nullopt;
  return reading;
}

void GuardMonitor::ForgetBefore(absl::Time evidence_from) {
  if (evidence_from == evidence_from_) return;
  evidence_from_ = evidence_from;
  hit_ratio_.Clear();
  hit_ratio_tail_.Clear();
  added_time_ = AddedTime();
  added_.Clear();
  cycle_ = MemoryFluctuation();
  fluctuation_.Clear();
  drift_.Clear();
  canary_.Clear();
  first_token_.Clear();
  memory_.Clear();
  if (ttft_.has_value()) ttft_->Clear();
  if (inter_token_.has_value()) inter_token_->Clear();
}

}  // namespace condense
