#ifndef CONDENSE_METRICS_METRICS_H_
#define CONDENSE_METRICS_METRICS_H_

// Every metric of the product: name, help, unit, labels and buckets, as typed handles.

#include <cstdint>
#include <memory>
#include <string>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace condense {

// Handles are cheap to use from any thread and hold for the life of Metrics. Counter and Gauge are
// one atomic each. A Histogram takes a mutex of its own for the few instructions of an observation;
// only other observers of the same histogram and a running scrape ever hold it.
class Counter {
 public:
  // REQUIRES: by >= 0; a negative step is ignored.
  void Increment(double by = 1.0);
  double value() const;

 private:
  friend class Metrics;
  prometheus::Counter* handle_ = nullptr;
};
class Gauge {
 public:
  void Set(double value);
  double value() const;

 private:
  friend class Metrics;
  prometheus::Gauge* handle_ = nullptr;
};
class Histogram {
 public:
  // In the unit that the metric's name ends with; a count where it names none.
  void Observe(double value);

 private:
  friend class Metrics;
  prometheus::Histogram* handle_ = nullptr;
};

// Label values are closed sets, so that the number of series is bounded.
enum class RequestOutcome { kStop, kLength, kCancelled, kDeadline, kRejected, kError };
enum class RejectionReason { kQueueFull, kTooLong, kDraining, kInvalid };
enum class StepPhase { kSchedule, kForward, kSample, kPublish };
enum class CompactionOutcome { kAccepted, kRefused, kUseless, kFailed, kDropped };
enum class CompactionPhase { kPlan, kBuild, kValidate };
enum class GuardMode { kCompacting, kHolding, kUncompressed, kProbation };
enum class GuardMetric {
  kHitRatio,
  kHitRatioTail,
  kMergeLatency,
  kMemoryFluctuation,
  kDrift,
  kCanary,
  kFirstToken,
  kMemory,
  kTtft,
  kInterToken
};
enum class ProbeKind { kDrift, kFloor, kCanary };  // kFloor: drift of what is not compacted
enum class ProbeOutcome { kDone, kDropped, kUnavailable };
enum class TransitionReason { kWarning, kLimitBroken, kRecovered, kDwellOver, kPassed, kForced };

// Owns: the registry. Threads: thread-safe. Every series carries the label `model` and exists, at
// zero (kv_ratio: 1), from construction; only model_info and kv_config_info appear when they are
// set.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  Counter& requests(RequestOutcome outcome);             // condense_requests_total{outcome}
  Counter& rejections(RejectionReason reason);           // condense_rejections_total{reason}
  Histogram& step_seconds(StepPhase phase);              // condense_step_seconds{phase}
  Counter& compaction_swaps(CompactionOutcome outcome);  // condense_compaction_swaps_total{outcome}
  Histogram& compaction_seconds(CompactionPhase phase);  // condense_compaction_seconds{phase}
  // condense_guard_transitions_total{to,reason}
  Counter& guard_transitions(GuardMode to, TransitionReason reason);
  Gauge& guard_reading(GuardMetric guard);  // condense_guard_reading{guard}
  Gauge& guard_samples(GuardMetric guard);  // condense_guard_samples{guard}
  void SetGuardMode(GuardMode mode);        // condense_guard_mode{mode}: 1 for this one, else 0
  Counter& probes(ProbeKind kind, ProbeOutcome outcome);  // condense_probes_total{kind,outcome}
  // Of drift and floor alone: condense_quality_kl_nats{kind},
  // condense_quality_nll_delta_nats{kind}, condense_quality_probed_tokens_total{kind},
  // condense_quality_top1_agreements_total{kind}.
  Histogram& quality_kl(ProbeKind kind);
  Histogram& quality_nll_delta(ProbeKind kind);
  Counter& quality_tokens(ProbeKind kind);
  Counter& quality_top1(ProbeKind kind);
  // Constant 1, the facts are labels: condense_model_info{architecture,backend,device} and
  // condense_kv_config_info{block_tokens,arena_bytes}. A second call replaces the first.
  void SetModelInfo(const std::string& architecture, const std::string& backend,
                    const std::string& device);
  void SetKvConfig(int32_t block_tokens, int64_t arena_bytes);

  Counter requests_accepted;           // condense_requests_accepted_total
  Counter prompt_tokens;               // condense_prompt_tokens_total: prompt tokens computed
  Counter generated_tokens;            // condense_generated_tokens_total
  Counter preemptions;                 // condense_preemptions_total
  Counter steps;                       // condense_steps_total
  Histogram ttft_seconds;              // condense_ttft_seconds
  Histogram inter_token_seconds;       // condense_inter_token_seconds
  Histogram request_seconds;           // condense_request_seconds
  Histogram queue_seconds;             // condense_queue_seconds
  Histogram prefill_seconds;           // condense_prefill_seconds: first scheduled to first token
  Histogram decode_seconds;            // condense_decode_seconds: first token until finished
  Histogram step_tokens;               // condense_step_tokens
  Histogram step_batch_size;           // condense_step_batch_size: sequences in a step
  Histogram request_prompt_tokens;     // condense_request_prompt_tokens
  Histogram request_generated_tokens;  // condense_request_generated_tokens
  Histogram request_kv_ratio;          // condense_request_kv_ratio: of compacted ones, at the end
  Gauge running;                       // condense_requests_running
  Gauge queued;                        // condense_requests_queued
  Gauge queued_tokens;                 // condense_queued_tokens
  // condense_kv_bytes{state=used|staging|slack|free}: blocks of sequences, blocks under
  // construction, the rest of what pools hold, the rest of the arena.
  Gauge kv_bytes_used, kv_bytes_staging, kv_bytes_slack, kv_bytes_free;
  Gauge kv_pool_capacity_bytes;  // condense_kv_pool_capacity_bytes: over all head pools
  Counter kv_pool_growths;       // condense_kv_pool_growths_total
  Gauge kv_ratio;  // condense_kv_ratio: bytes in 16 bits / bytes held, over live sequences
  Gauge kv_tokens_logical, kv_tokens_physical;  // condense_kv_tokens{state=logical|physical}
  // condense_kv_held_samples_total, _mib_total, _mib_squares_total: bytes held, step by step.
  Counter kv_held_samples, kv_held_mib, kv_held_mib_squares;
  // condense_compaction_log_mass_error: per validated unit.
  Histogram compaction_log_mass_error;
  Gauge compaction_jobs_out;          // condense_compaction_jobs_out
  Counter compaction_no_reserve;      // condense_compaction_no_reserve_total
  Counter compaction_worker_seconds;  // condense_compaction_worker_seconds_total: CPU time
  Histogram compaction_hit_ratio;     // condense_compaction_hit_ratio: per validated unit
  Histogram compaction_output_error;  // condense_compaction_output_error: per validated unit
  Histogram step_added_seconds;       // condense_step_added_seconds: per step, by compaction
  Counter preemptions_avoided;        // condense_preemptions_avoided_total
  Counter rebuilds;                   // condense_rebuilds_total
  Gauge drift_floor;                  // condense_drift_floor_ratio
  Gauge probes_pending;               // condense_probes_pending
  Counter probe_tokens;               // condense_probe_tokens_total
  Counter probe_seconds;              // condense_probe_seconds_total: by estimate
  Counter canary_facts_asked;         // condense_canary_facts_asked_total
  Counter canary_facts_found;         // condense_canary_facts_found_total
  Gauge last_step_timestamp;          // condense_engine_last_step_timestamp_seconds: Unix time
  Gauge draining;                     // condense_draining: 0 or 1

  std::shared_ptr<prometheus::Registry> registry() const;
  // The text that /metrics serves.
  std::string Serialize() const;

 private:
  struct Impl;
  void AddRequestMetrics();
  void AddStepMetrics();
  void AddKvMetrics();
  void AddCompactionMetrics();
  void AddGuardMetrics();
  void AddProbeMetrics();

  std::unique_ptr<Impl> impl_;
};

}  // namespace condense

#endif  // CONDENSE_METRICS_METRICS_H_
