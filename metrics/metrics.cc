#include "metrics/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <array>
#include <cstddef>
#include <mutex>
#include <vector>

namespace condense {
namespace {

using Labels = prometheus::Labels;
using Buckets = std::vector<double>;

constexpr std::array<const char*, 6> kOutcomeNames = {"stop",     "length",   "cancelled",
                                                      "deadline", "rejected", "error"};
constexpr std::array<const char*, 4> kReasonNames = {"queue_full", "too_long", "draining",
                                                     "invalid"};
constexpr std::array<const char*, 4> kPhaseNames = {"schedule", "forward", "sample", "publish"};
constexpr std::array<const char*, 5> kCompactionOutcomeNames = {"accepted", "refused", "useless",
                                                                "failed", "dropped"};
constexpr std::array<const char*, 3> kCompactionPhaseNames = {"plan", "build", "validate"};
constexpr std::array<const char*, 4> kGuardModeNames = {"compacting", "holding", "uncompressed",
                                                        "probation"};
constexpr std::array<const char*, 10> kGuardNames = {
    "hit_ratio",   "hit_ratio_tail", "merge_latency", "memory_fluctuation", "drift", "canary",
    "first_token", "memory",         "ttft",          "inter_token"};
constexpr std::array<const char*, 3> kProbeKindNames = {"drift", "floor", "canary"};
constexpr size_t kNumDriftKinds = 2;  // the first ones
constexpr std::array<const char*, 3> kProbeOutcomeNames = {"done", "dropped", "unavailable"};
constexpr std::array<const char*, 6> kTransitionReasonNames = {
    "warning", "limit_broken", "recovered", "dwell_over", "probation_passed", "forced"};

// The limits that service levels are written for (0.45, 0.5, 1.5 and 2 s to the first token; 15,
// 30, 40, 80, 100 and 200 ms between tokens) are edges, so that an alert needs no interpolation.
Buckets FirstTokenBuckets() {
  return {.001, .005, .01, .02, .04, .06, .08, .1, .25, .45, .5,  .75, 1,
          1.5,  2,    2.5, 5,   7.5, 10,  20,  40, 80,  160, 640, 2560};
}
Buckets InterTokenBuckets() {
  return {.00025, .0005, .001, .002, .004, .006, .008, .01, .015, .02, .025, .03, .04,
          .05,    .075,  .08,  .1,   .15,  .2,   .3,   .5,  1,    2.5, 5,    10};
}
Buckets RequestBuckets() {
  return {.01, .02, .05, .1, .2, .3, .5, .8,  1,   1.5, 2,   2.5,  5,
          10,  15,  20,  30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
}
Buckets QueueBuckets() {
  return {.001, .002, .005, .01, .02, .05, .1, .2,  .5,  1,   2,    5,
          10,   15,   20,   30,  40,  50,  60, 120, 240, 480, 1920, 7680};
}
Buckets StepBuckets() {
  return {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10};
}
// The guardrail and its warning, 1% and 2%, are near edges.
Buckets DivergenceBuckets() {
  return {.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1};
}
Buckets DeltaBuckets() {
  return {-.5, -.2, -.1, -.05, -.02, -.01, -.005, -.002, 0, .002, .005, .01, .02, .05, .1, .2, .5};
}
Buckets BatchBuckets() { return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024}; }
Buckets TokenBuckets() {
  return {1,    2,    5,     10,    20,    50,     100,    200,    500,    1000,
          2000, 5000, 10000, 20000, 50000, 100000, 200000, 500000, 1000000};
}
// The guardrails (0.85; 0.05; 1 and 2 ms) are edges too.
Buckets HitRatioBuckets() { return {.5, .6, .7, .8, .85, .9, .93, .95, .97, .98, .99, 1}; }
Buckets ErrorBuckets() {
  return {.0005, .001, .002, .005, .01, .02, .03, .04, .05, .075, .1, .15, .2, .5, 1};
}
// Finest where presets aim: 1.9, 2.8, 4.35 and 8.
Buckets RatioBuckets() { return {1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 4.5, 5, 6, 7, 8, 10, 16}; }
// The limits that presets have for it (0.05, 0.1, 0.2) are edges.
Buckets LogMassErrorBuckets() {
  return {.001, .002, .005, .01, .02, .03, .04, .05, .075, .1, .15, .2, .5, 1};
}
Buckets AddedSecondsBuckets() {
  return {.00002, .00005, .0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1};
}

}  // namespace

struct Metrics::Impl {
  explicit Impl(const std::string& model_name)
      : registry(std::make_shared<prometheus::Registry>()), model({{"model", model_name}}) {}

  // A family named twice is one family: series that differ in a label are added one by one.
  Counter AddCounter(const std::string& name, const std::string& help, const Labels& labels = {}) {
    Counter counter;
    counter.handle_ = &prometheus::BuildCounter()
                           .Name("condense_" + name)
                           .Help(help)
                           .Labels(model)
                           .Register(*registry)
                           .Add(labels);
    return counter;
  }
  prometheus::Family<prometheus::Gauge>& GaugeFamily(const std::string& name,
                                                     const std::string& help) {
    return prometheus::BuildGauge()
        .Name("condense_" + name)
        .Help(help)
        .Labels(model)
        .Register(*registry);
  }
  Gauge AddGauge(const std::string& name, const std::string& help, const Labels& labels = {}) {
    Gauge gauge;
    gauge.handle_ = &GaugeFamily(name, help).Add(labels);
    return gauge;
  }
  Histogram AddHistogram(const std::string& name, const std::string& help, const Buckets& buckets,
                         const Labels& labels = {}) {
    Histogram histogram;
    histogram.handle_ = &prometheus::BuildHistogram()
                             .Name("condense_" + name)
                             .Help(help)
                             .Labels(model)
                             .Register(*registry)
                             .Add(labels, buckets);
    return histogram;
  }
  // An info metric has exactly one series: a new one takes the place of the one in `current`.
  void ReplaceInfo(const std::string& name, const std::string& help, const Labels& labels,
                   prometheus::Gauge** current) {
    std::lock_guard<std::mutex> lock(info_mutex);
    prometheus::Family<prometheus::Gauge>& family = GaugeFamily(name, help);
    if (*current != nullptr) family.Remove(*current);
    *current = &family.Add(labels, 1.0);
  }

  const std::shared_ptr<prometheus::Registry> registry;
  const Labels model;
  std::array<Counter, kOutcomeNames.size()> requests;
  std::array<Counter, kReasonNames.size()> rejections;
  std::array<Histogram, kPhaseNames.size()> step_seconds;
  std::array<Counter, kCompactionOutcomeNames.size()> compaction_swaps;
  std::array<Histogram, kCompactionPhaseNames.size()> compaction_seconds;
  std::array<Gauge, kGuardModeNames.size()> guard_modes;
  std::array<Gauge, kGuardNames.size()> guard_readings;
  std::array<Gauge, kGuardNames.size()> guard_samples;
  // [kind][outcome]
  std::array<std::array<Counter, kProbeOutcomeNames.size()>, kProbeKindNames.size()> probes;
  std::array<Histogram, kNumDriftKinds> quality_kl, quality_nll_delta;
  std::array<Counter, kNumDriftKinds> quality_tokens, quality_top1;
  // [to][reason]
  std::array<std::array<Counter, kTransitionReasonNames.size()>, kGuardModeNames.size()>
      guard_transitions;

  std::mutex info_mutex;  // guards the two below
  prometheus::Gauge* model_info = nullptr;
  prometheus::Gauge* kv_config_info = nullptr;
};

void Counter::Increment(double by) { handle_->Increment(by); }
double Counter::value() const { return handle_->Value(); }
void Gauge::Set(double value) { handle_->Set(value); }
double Gauge::value() const { return handle_->Value(); }
void Histogram::Observe(double value) { handle_->Observe(value); }

Metrics::Metrics(const std::string& model_name) : impl_(std::make_unique<Impl>(model_name)) {
  impl_->AddGauge("build_info", "The running version; always 1.", {{"version", CONDENSE_VERSION}})
      .Set(1);
  AddRequestMetrics();
  AddStepMetrics();
  AddKvMetrics();
  AddCompactionMetrics();
  AddGuardMetrics();
  AddProbeMetrics();
}

Metrics::~Metrics() = default;

void Metrics::AddRequestMetrics() {
  for (size_t i = 0; i < kOutcomeNames.size(); ++i) {
    impl_->requests[i] = impl_->AddCounter("requests_total", "Requests ended, by how they ended.",
                                           {{"outcome", kOutcomeNames[i]}});
  }
  for (size_t i = 0; i < kReasonNames.size(); ++i) {
    impl_->rejections[i] =
        impl_->AddCounter("rejections_total", "Requests refused at the door, by reason.",
                          {{"reason", kReasonNames[i]}});
  }
  requests_accepted =
      impl_->AddCounter("requests_accepted_total", "Requests taken into the queue.");
  prompt_tokens =
      impl_->AddCounter("prompt_tokens_total",
                        "Prompt tokens computed; those computed again after a preemption too.");
  generated_tokens = impl_->AddCounter("generated_tokens_total", "Tokens generated.");
  ttft_seconds = impl_->AddHistogram("ttft_seconds",
                                     "Time to first token: from submission until it is published.",
                                     FirstTokenBuckets());
  inter_token_seconds =
      impl_->AddHistogram("inter_token_seconds",
                          "Time between two consecutive tokens of a request.", InterTokenBuckets());
  request_seconds = impl_->AddHistogram(
      "request_seconds", "Time from submission of a request until its end.", RequestBuckets());
  queue_seconds = impl_->AddHistogram(
      "queue_seconds", "Time from submission of a request until it is first scheduled.",
      QueueBuckets());
  prefill_seconds = impl_->AddHistogram("prefill_seconds",
                                        "Time from first being scheduled until the first token.",
                                        FirstTokenBuckets());
  decode_seconds = impl_->AddHistogram(
      "decode_seconds", "Time from the first token of a request until its end.", RequestBuckets());
  request_prompt_tokens =
      impl_->AddHistogram("request_prompt_tokens", "Prompt tokens of a request.", TokenBuckets());
  request_generated_tokens = impl_->AddHistogram("request_generated_tokens",
                                                 "Tokens generated for a request.", TokenBuckets());
  request_kv_ratio = impl_->AddHistogram("request_kv_ratio",
                                         "Bytes of a request's cache in 16 bits by the bytes it "
                                         "held at its end; of requests that were "
                                         "to be compacted.",
                                         RatioBuckets());
  running = impl_->AddGauge("requests_running", "Requests being computed.");
  queued = impl_->AddGauge("requests_queued", "Requests waiting for their first step.");
  queued_tokens = impl_->AddGauge("queued_tokens", "Prompt tokens of the waiting requests.");
  draining =
      impl_->AddGauge("draining", "1 while new requests are refused for a shutdown, else 0.");
}

void Metrics::AddStepMetrics() {
  for (size_t i = 0; i < kPhaseNames.size(); ++i) {
    impl_->step_seconds[i] =
        impl_->AddHistogram("step_seconds", "Time of one phase of an engine step.", StepBuckets(),
                            {{"phase", kPhaseNames[i]}});
  }
  steps = impl_->AddCounter("steps_total", "Engine steps that computed at least one token.");
  step_tokens = impl_->AddHistogram("step_tokens", "Tokens computed in a step.", TokenBuckets());
  step_batch_size =
      impl_->AddHistogram("step_batch_size", "Requests that took part in a step.", BatchBuckets());
  preemptions = impl_->AddCounter(
      "preemptions_total", "Running requests put back to be recomputed, for want of memory.");
  last_step_timestamp = impl_->AddGauge("engine_last_step_timestamp_seconds",
                                        "Unix time at the end of the last step; 0 before it.");
}

void Metrics::AddKvMetrics() {
  const std::string bytes_help = "Bytes of the KV cache arena, by state.";
  kv_bytes_used = impl_->AddGauge("kv_bytes", bytes_help, {{"state", "used"}});
  kv_bytes_staging = impl_->AddGauge("kv_bytes", bytes_help, {{"state", "staging"}});
  kv_bytes_slack = impl_->AddGauge("kv_bytes", bytes_help, {{"state", "slack"}});
  kv_bytes_free = impl_->AddGauge("kv_bytes", bytes_help, {{"state", "free"}});
  kv_pool_capacity_bytes = impl_->AddGauge(
      "kv_pool_capacity_bytes",
      "What the pools of all heads were given of the KV cache; they grow ahead of need.");
  kv_pool_growths =
      impl_->AddCounter("kv_pool_growths_total", "Times that the pool of a head grew.");
  const std::string tokens_help =
      "Tokens of all requests in the KV cache: logical, that it stands for, and physical, its "
      "entries "
      "by those of an uncompacted token.";
  kv_tokens_logical = impl_->AddGauge("kv_tokens", tokens_help, {{"state", "logical"}});
  kv_tokens_physical = impl_->AddGauge("kv_tokens", tokens_help, {{"state", "physical"}});
  kv_held_samples =
      impl_->AddCounter("kv_held_samples_total",
                        "Steps after which the held bytes, used and staging, were added up.");
  kv_held_mib =
      impl_->AddCounter("kv_held_mib_total", "Sum of the held bytes after each step, in MiB.");
  kv_held_mib_squares =
      impl_->AddCounter("kv_held_mib_squares_total",
                        "Sum of the squares of the held bytes after each step, in MiB squared.");
  kv_ratio = impl_->AddGauge("kv_ratio",
                             "Bytes of all cached tokens in 16 bits, by the bytes that they take; "
                             "1 while there are none.");
  kv_ratio.Set(1);
}

void Metrics::AddCompactionMetrics() {
  for (size_t i = 0; i < kCompactionOutcomeNames.size(); ++i) {
    impl_->compaction_swaps[i] =
        impl_->AddCounter("compaction_swaps_total", "Compacted units that came back, by outcome.",
                          {{"outcome", kCompactionOutcomeNames[i]}});
  }
  for (size_t i = 0; i < kCompactionPhaseNames.size(); ++i) {
    impl_->compaction_seconds[i] = impl_->AddHistogram(
        "compaction_seconds", "Time of one phase of a unit's compaction, in the background.",
        StepBuckets(), {{"phase", kCompactionPhaseNames[i]}});
  }
  compaction_jobs_out = impl_->AddGauge("compaction_jobs_out",
                                        "Units that are being compacted or wait for their swap.");
  compaction_no_reserve =
      impl_->AddCounter("compaction_no_reserve_total",
                        "Units that were not compacted in a cycle for want of staging memory.");
  compaction_worker_seconds =
      impl_->AddCounter("compaction_worker_seconds_total",
                        "CPU time that the compaction worker has taken, of jobs that are back.");
  compaction_hit_ratio = impl_->AddHistogram(
      "compaction_hit_ratio",
      "Share of attention that lands where it landed before a swap; per validated unit.",
      HitRatioBuckets());
  compaction_output_error = impl_->AddHistogram(
      "compaction_output_error",
      "Relative error of attention outputs that a swap causes; per validated unit.",
      ErrorBuckets());
  compaction_log_mass_error = impl_->AddHistogram(
      "compaction_log_mass_error",
      "Mean difference of the log-sum-exp of attention that a swap causes; per validated unit.",
      LogMassErrorBuckets());
  step_added_seconds = impl_->AddHistogram(
      "step_added_seconds", "Time that compaction added to an engine step.", AddedSecondsBuckets());
  preemptions_avoided =
      impl_->AddCounter("preemptions_avoided_total",
                        "Times that compaction made room where a request was to be put back.");
}

void Metrics::AddGuardMetrics() {
  for (size_t to = 0; to < kGuardModeNames.size(); ++to) {
    impl_->guard_modes[to] =
        impl_->AddGauge("guard_mode", "1 for the mode that the guard is in; all 0 without a guard.",
                        {{"mode", kGuardModeNames[to]}});
    for (size_t reason = 0; reason < kTransitionReasonNames.size(); ++reason) {
      impl_->guard_transitions[to][reason] = impl_->AddCounter(
          "guard_transitions_total", "Changes of the guard's mode, by where they led and why.",
          {{"to", kGuardModeNames[to]}, {"reason", kTransitionReasonNames[reason]}});
    }
  }
  for (size_t i = 0; i < kGuardNames.size(); ++i) {
    impl_->guard_readings[i] = impl_->AddGauge(
        "guard_reading", "What a guardrail last read; see docs/guardrails.md for its unit.",
        {{"guard", kGuardNames[i]}});
    impl_->guard_samples[i] =
        impl_->AddGauge("guard_samples",
                        "Samples of the last evaluation window; 0: there was no reading, and "
                        "condense_guard_reading is older.",
                        {{"guard", kGuardNames[i]}});
  }
}

void Metrics::AddProbeMetrics() {
  for (size_t kind = 0; kind < kProbeKindNames.size(); ++kind) {
    for (size_t outcome = 0; outcome < kProbeOutcomeNames.size(); ++outcome) {
      impl_->probes[kind][outcome] = impl_->AddCounter(
          "probes_total", "Probes of quality, by kind and by what became of them.",
          {{"kind", kProbeKindNames[kind]}, {"outcome", kProbeOutcomeNames[outcome]}});
    }
  }
  for (size_t kind = 0; kind < kNumDriftKinds; ++kind) {
    const prometheus::Labels label = {{"kind", kProbeKindNames[kind]}};
    impl_->quality_kl[kind] = impl_->AddHistogram(
        "quality_kl_nats",
        "Divergence of the live distribution from the uncompressed one, nats per token; per probe.",
        DivergenceBuckets(), label);
    impl_->quality_nll_delta[kind] = impl_->AddHistogram(
        "quality_nll_delta_nats",
        "NLL of the generated tokens by the live cache less that by an uncompressed one, nats per "
        "token; per probe.",
        DeltaBuckets(), label);
    impl_->quality_tokens[kind] = impl_->AddCounter(
        "quality_probed_tokens_total", "Generated tokens that probes compared.", label);
    impl_->quality_top1[kind] =
        impl_->AddCounter("quality_top1_agreements_total",
                          "Compared tokens at which the likeliest one is the same in both.", label);
  }
  rebuilds = impl_->AddCounter(
      "rebuilds_total",
      "Running requests computed anew, uncompressed, because compaction had cost them too much.");
  drift_floor =
      impl_->AddGauge("drift_floor_ratio", "Drift that probes read where nothing is compacted.");
  probes_pending = impl_->AddGauge("probes_pending", "Requests that wait to be probed.");
  probe_tokens = impl_->AddCounter("probe_tokens_total", "Tokens computed for probes.");
  probe_seconds =
      impl_->AddCounter("probe_seconds_total", "Time of steps that probes took, by estimate.");
  canary_facts_asked = impl_->AddCounter(
      "canary_facts_asked_total", "Planted facts asked for that the uncompressed cache finds.");
  canary_facts_found =
      impl_->AddCounter("canary_facts_found_total", "Of those, found in the compacted cache.");
}

Counter& Metrics::probes(ProbeKind kind, ProbeOutcome outcome) {
  return impl_->probes[static_cast<size_t>(kind)][static_cast<size_t>(outcome)];
}
Histogram& Metrics::quality_kl(ProbeKind kind) {
  return impl_->quality_kl[static_cast<size_t>(kind)];
}
Histogram& Metrics::quality_nll_delta(ProbeKind kind) {
  return impl_->quality_nll_delta[static_cast<size_t>(kind)];
}
Counter& Metrics::quality_tokens(ProbeKind kind) {
  return impl_->quality_tokens[static_cast<size_t>(kind)];
}
Counter& Metrics::quality_top1(ProbeKind kind) {
  return impl_->quality_top1[static_cast<size_t>(kind)];
}
Counter& Metrics::requests(RequestOutcome outcome) {
  return impl_->requests[static_cast<size_t>(outcome)];
}
Counter& Metrics::rejections(RejectionReason reason) {
  return impl_->rejections[static_cast<size_t>(reason)];
}
Histogram& Metrics::step_seconds(StepPhase phase) {
  return impl_->step_seconds[static_cast<size_t>(phase)];
}
Counter& Metrics::compaction_swaps(CompactionOutcome outcome) {
  return impl_->compaction_swaps[static_cast<size_t>(outcome)];
}
Histogram& Metrics::compaction_seconds(CompactionPhase phase) {
  return impl_->compaction_seconds[static_cast<size_t>(phase)];
}

Counter& Metrics::guard_transitions(GuardMode to, TransitionReason reason) {
  return impl_->guard_transitions[static_cast<size_t>(to)][static_cast<size_t>(reason)];
}
Gauge& Metrics::guard_reading(GuardMetric guard) {
  return impl_->guard_readings[static_cast<size_t>(guard)];
}
Gauge& Metrics::guard_samples(GuardMetric guard) {
  return impl_->guard_samples[static_cast<size_t>(guard)];
}
void Metrics::SetGuardMode(GuardMode mode) {
  for (size_t i = 0; i < kGuardModeNames.size(); ++i) {
    impl_->guard_modes[i].Set(i == static_cast<size_t>(mode) ? 1 : 0);
  }
}

void Metrics::SetModelInfo(const std::string& architecture, const std::string& backend,
                           const std::string& device) {
  impl_->ReplaceInfo("model_info", "The loaded model and what computes it; always 1.",
                     {{"architecture", architecture}, {"backend", backend}, {"device", device}},
                     &impl_->model_info);
}

void Metrics::SetKvConfig(int32_t block_tokens, int64_t arena_bytes) {
  impl_->ReplaceInfo("kv_config_info", "How the KV cache is set up; always 1.",
                     {{"block_tokens", std::to_string(block_tokens)},
                      {"arena_bytes", std::to_string(arena_bytes)}},
                     &impl_->kv_config_info);
}

std::shared_ptr<prometheus::Registry> Metrics::registry() const { return impl_->registry; }

std::string Metrics::Serialize() const {
  return prometheus::TextSerializer().Serialize(impl_->registry->Collect());
}

}  // namespace condense
