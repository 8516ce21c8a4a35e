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

// Owns: the registry. Threads: thread-safe. Every series carries the label `model` and exists, at
// zero, from construction; only model_info and kv_config_info appear when they are set.
class Metrics {
 public:
  explicit Metrics(const std::string& model_name);
  ~Metrics();

  Counter& requests(RequestOutcome outcome);    // condense_requests_total{outcome}
  Counter& rejections(RejectionReason reason);  // condense_rejections_total{reason}
  Histogram& step_seconds(StepPhase phase);     // condense_step_seconds{phase}
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
  Gauge running;                       // condense_requests_running
  Gauge queued;                        // condense_requests_queued
  Gauge queued_tokens;                 // condense_queued_tokens
  Gauge kv_bytes_used, kv_bytes_free;  // condense_kv_bytes{state=used|free}
  Gauge kv_tokens_logical;             // condense_kv_tokens{state=logical}
  Gauge last_step_timestamp;           // condense_engine_last_step_timestamp_seconds: Unix time
  Gauge draining;                      // condense_draining: 0 or 1

  std::shared_ptr<prometheus::Registry> registry() const;
  // The text that /metrics serves.
  std::string Serialize() const;

 private:
  struct Impl;
  void AddRequestMetrics();
  void AddStepMetrics();
  void AddKvMetrics();

  std::unique_ptr<Impl> impl_;
};

}  // namespace condense

#endif  // CONDENSE_METRICS_METRICS_H_
