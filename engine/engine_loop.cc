#include "engine/engine_loop.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"
#include "metrics/log.h"

namespace condense {
namespace {

constexpr absl::Duration kRateWindow = absl::Seconds(10);
// Steps that fail one after another until the device counts as lost.
constexpr int kFailingAfter = 3;
constexpr absl::Duration kLongestWaitInBackground = absl::Seconds(30);

SchedulerOptions MakeSchedulerOptions(const EngineConfig& config) {
  return {.step_tokens = config.step_tokens,
          // So that prompts always have a share of the budget.
          .max_sequences = std::min(config.max_sequences, std::max(1, config.step_tokens / 2)),
          .decode_reserve_tokens = config.decode_reserve_tokens,
          .max_running_per_tenant = config.max_running_per_tenant,
          // It must not be why compaction is hurried or memory warns.
          .background_starts_below = 0.5,
          .background_leaves_above = 0.7};
}

std::vector<TokenId> StopTokens(const Request& request, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = request.stop.stop_ids;
  if (!request.stop.ignore_eos) {
    tokens.insert(tokens.end(), tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  }
  std::sort(tokens.begin(), tokens.end());
  tokens.erase(std::unique(tokens.begin(), tokens.end()), tokens.end());
  return tokens;
}

RequestOutcome Outcome(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return RequestOutcome::kStop;
    case FinishReason::kLength:
      return RequestOutcome::kLength;
    case FinishReason::kCancelled:
      return RequestOutcome::kCancelled;
    case FinishReason::kDeadline:
      return RequestOutcome::kDeadline;
    case FinishReason::kError:
      break;
  }
  return RequestOutcome::kError;
}

}  // namespace

EngineLoop::EngineLoop(const EngineConfig& config, Parts parts)
    : config_(config),
      parts_(parts),
      compaction_({.compactor = parts.compactor,
                   .pace = parts.pace,
                   .cache = parts.cache,
                   .control = parts.compression,
                   .guard = parts.guard,
                   .metrics = parts.metrics},
                  config.compaction.hard_limit),
      scheduler_(MakeSchedulerOptions(config), parts.cache,
                 [this] { return compaction_.relief_coming(); }) {
  PublishLoad(absl::InfinitePast());
}

void EngineLoop::Run() {
  while (!stop_.load(std::memory_order_acquire)) {
    if (Step() || !scheduler_.empty()) continue;
    if (compaction_.relief_coming()) {
      AwaitJobs();
    } else {
      compaction_.Rest();
      parts_.cache->Trim(/*idle=*/true);
      parts_.queue->WaitForWork(parts_.prober == nullptr ? absl::InfiniteDuration()
                                                         : parts_.prober->UntilNext());
    }
  }
  const absl::Time now = absl::Now();
  DrainCommands();
  for (Sequence* sequence : scheduler_.All()) {
    End(sequence, FinishReason::kCancelled, absl::CancelledError("the server is shutting down"),
        now);
  }
  if (scheduler_.background() != nullptr) scheduler_.Remove(scheduler_.background());
  PublishLoad(now);
  if (config_.on_published) config_.on_published();
}

void EngineLoop::Stop() {
  stop_.store(true, std::memory_order_release);
  parts_.queue->Wake();
}

EngineLoad EngineLoop::load() const {
  EngineLoad load;
  {
    MutexLock lock(&mutex_);
    load = load_;
    const absl::Time since = absl::Now() - kRateWindow;
    int64_t generated = 0;
    for (const auto& [step_end, tokens] : generated_) generated += step_end >= since ? tokens : 0;
    load.tokens_per_second = static_cast<double>(generated) / absl::ToDoubleSeconds(kRateWindow);
  }
  load.queued = parts_.queue->waiting_requests();
  load.queued_tokens = parts_.queue->waiting_tokens();
  load.has_work = parts_.queue->live_requests() > 0;
  return load;
}

bool EngineLoop::Step() {
  const absl::Time begin = absl::Now();
  published_ = false;
  DrainCommands();
  EndFromOutside(begin);
  compaction_.Collect();
  Probe(begin);
  Rebuild();
  const StepPlan plan = scheduler_.Schedule(
      begin, parts_.prober == nullptr ? BackgroundTokens() : parts_.prober->Allowed());
  for (Sequence* sequence : plan.started) {
    parts_.queue->Started(sequence->prompt_size());
    if (parts_.prober != nullptr) parts_.prober->Started(sequence);
  }
  preemptions_ += plan.preempted;
  if (parts_.metrics != nullptr) {
    parts_.metrics->preemptions.Increment(plan.preempted);
    parts_.metrics->preemptions_avoided.Increment(plan.preemptions_avoided);
  }

  PublishQueue();

  absl::Time step_end = absl::InfinitePast();
  if (plan.unfit != nullptr) EndUnfit(plan.unfit, begin);
  if (!plan.items.empty()) {
    if (RunStep(plan, begin)) step_end = absl::Now();
  } else if (plan.deferred > 0) {
    compaction_.End(plan, scheduler_.All(), scheduler_.background(), absl::ZeroDuration());
    AwaitJobs();
  } else if (scheduler_.running() == 0 && scheduler_.waiting() > 0 && plan.preempted == 0) {
    // Nothing runs and the next one does not fit into a cache that is empty, but for what jobs of
    // sequences that ended still hold.
    if (compaction_.relief_coming()) {
      AwaitJobs();
    } else {
      EndUnfit(scheduler_.All().front(), begin);
    }
  }
  // Alone, and without room that is still to come: it never starts.
  if (scheduler_.empty() && plan.items.empty() && scheduler_.background() != nullptr &&
      !compaction_.relief_coming()) {
    EndBackground();
  }
  // Ends settle jobs too, whether or not a step ran.
  compaction_.Settled();
  PublishLoad(step_end);
  if (published_ && config_.on_published) config_.on_published();
  return !plan.items.empty();
}

void EngineLoop::Probe(absl::Time now) {
  if (parts_.prober == nullptr) return;
  const Sequence* background = scheduler_.background();
  // What it has generated so far is not recorded any more; and one that finds no room is not to be
  // in the way of others.
  const bool late = background != nullptr && !background->ever_started() &&
                    now - background->submitted() > kLongestWaitInBackground;
  if (late || (background != nullptr && background->preemptions() > 0)) EndBackground();
  if (scheduler_.background() != nullptr) return;
  if (std::unique_ptr<Sequence> next = parts_.prober->Next()) {
    scheduler_.SetBackground(std::move(next));
  }
}

void EngineLoop::Rebuild() {
  for (Sequence* sequence : compaction_.ToRebuild(scheduler_.All())) {
    if (!scheduler_.Rebuild(sequence)) continue;
    LogInfo("request %s is computed anew, uncompressed: %d tokens", sequence->request().id,
            sequence->known());
    if (parts_.metrics != nullptr) parts_.metrics->rebuilds.Increment();
    return;
  }
}

void EngineLoop::EndBackground() {
  // Finish takes what it has cached and compacted; how that went is asked before.
  parts_.prober->Finished(*scheduler_.background());
  scheduler_.Remove(scheduler_.background());
}

bool EngineLoop::RunStep(const StepPlan& plan, absl::Time begin) {
  const absl::Time scheduled = absl::Now();
  compaction_.Begin(plan);
  const absl::Status status = Compute(plan);
  const absl::Time computed = absl::Now();
  if (!status.ok()) {
    ++failed_in_a_row_;
    LogError("the step after %d good ones failed: %s", steps_, status.ToString());
    absl::Status failed = absl::InternalError(std::string(status.message()));
    if (failed_in_a_row_ < kFailingAfter) SetTransient(&failed);
    for (const StepPlan::Item& item : plan.items) {
      if (item.background) {
        EndBackground();
      } else {
        End(item.sequence, FinishReason::kError, failed, computed);
      }
    }
    return false;
  }
  failed_in_a_row_ = 0;
  ++steps_;
  Advance(plan, computed);
  Publish(plan, computed);
  compaction_.End(plan, scheduler_.All(), scheduler_.background(), parts_.model->attention_time());
  parts_.cache->Trim(/*idle=*/false);
  if (parts_.prober != nullptr) parts_.prober->StepTook(computed - begin, plan);
  if (parts_.metrics == nullptr) return true;
  Metrics& metrics = *parts_.metrics;
  const auto observe = [&](StepPhase phase, absl::Duration duration) {
    metrics.step_seconds(phase).Observe(absl::ToDoubleSeconds(duration));
  };
  metrics.steps.Increment();
  metrics.step_tokens.Observe(plan.num_tokens);
  metrics.step_batch_size.Observe(
      static_cast<double>(plan.items.size() - (plan.HasBackground() ? 1 : 0)));
  observe(StepPhase::kSchedule, scheduled - begin);
  observe(StepPhase::kForward, forward_end_ - scheduled);
  observe(StepPhase::kSample, computed - forward_end_);
  observe(StepPhase::kPublish, absl::Now() - computed);
  return true;
}

void EngineLoop::EndUnfit(Sequence* sequence, absl::Time now) {
  // Never wait for what cannot come.
  End(sequence, FinishReason::kError,
      absl::ResourceExhaustedError("the request does not fit into the KV memory"), now);
}

void EngineLoop::DrainCommands() {
  submissions_.clear();
  parts_.queue->Take(&submissions_);
  for (Submission& submission : submissions_) {
    const Request& request = submission.request;
    // A limit past what the context holds was refused at the door; none given means all that is
    // left.
    const int64_t left = parts_.max_request_tokens - static_cast<int64_t>(request.prompt.size());
    const bool none_given = request.stop.max_tokens == 0 && !request.score;
    const int32_t max_tokens = none_given ? static_cast<int32_t>(left) : request.stop.max_tokens;
    std::vector<TokenId> stop_tokens = StopTokens(request, *parts_.tokenizer);
    scheduler_.Add(
        std::make_unique<Sequence>(std::move(submission), max_tokens, std::move(stop_tokens)));
  }
}

void EngineLoop::EndFromOutside(absl::Time now) {
  for (Sequence* sequence : scheduler_.All()) {
    if (sequence->stream()->cancelled()) {
      End(sequence, FinishReason::kCancelled, absl::CancelledError("the request was cancelled"),
          now);
    } else if (sequence->request().deadline <= now) {
      End(sequence, FinishReason::kDeadline,
          absl::DeadlineExceededError(
              absl::StrFormat("the deadline passed %s after the request was submitted",
                              absl::FormatDuration(now - sequence->submitted()))),
          now);
    }
  }
}

absl::Status EngineLoop::Compute(const StepPlan& plan) {
  batch_.Build(plan);
  parts_.model->Forward(&batch_, parts_.cache);
  forward_end_ = absl::Now();
  const int32_t rows = static_cast<int32_t>(batch_.logit_rows.size());
  sample_rows_.clear();
  for (const LogitRow& row : batch_.logit_rows)
    sample_rows_.push_back(row.sequence->RowFor(row.position));
  results_.assign(rows, SampleResult{});
  for (int32_t first = 0; first < rows; first += Model::kLogitRows) {
    const int32_t count = std::min(rows - first, Model::kLogitRows);
    parts_.backend->Sample({.logits = parts_.model->Logits(batch_, first, count),
                            .rows = count,
                            .vocab = parts_.model->config().vocab,
                            .params = &sample_rows_[first],
                            .results = &results_[first]});
  }
  return parts_.backend->Synchronize();
}

void EngineLoop::Advance(const StepPlan& plan, absl::Time now) {
  int64_t prompt_tokens = 0;
  for (const StepPlan::Item& item : plan.items) {
    parts_.cache->Commit(item.sequence->kv(), item.num_tokens);
    const int64_t prompt_left = item.sequence->prompt_size() - item.sequence->computed();
    if (!item.background) prompt_tokens += std::clamp<int64_t>(prompt_left, 0, item.num_tokens);
    item.sequence->Computed(item.num_tokens);
  }
  int64_t generated = 0;
  for (size_t i = 0; i < results_.size(); ++i) {
    Sequence& sequence = *batch_.logit_rows[i].sequence;
    const absl::Time last_token = sequence.last_token();
    const int32_t before = sequence.generated();
    sequence.Take(batch_.logit_rows[i].position, results_[i], *parts_.tokenizer, now);
    if (sequence.generated() == before || &sequence == scheduler_.background()) continue;
    ++generated;
    ObserveToken(sequence, last_token, now);
  }
  {
    MutexLock lock(&mutex_);
    generated_.emplace_back(now, generated);
    while (generated_.front().first < now - kRateWindow) generated_.pop_front();
  }
  if (parts_.metrics == nullptr) return;
  parts_.metrics->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  parts_.metrics->generated_tokens.Increment(static_cast<double>(generated));
}

void EngineLoop::ObserveToken(const Sequence& sequence, absl::Time last_token, absl::Time now) {
  if (last_token == absl::InfinitePast()) {
    compaction_.FirstToken(sequence, now);
  } else {
    compaction_.NextToken(now - last_token);
  }
  if (parts_.metrics == nullptr) return;
  if (last_token != absl::InfinitePast()) {
    parts_.metrics->inter_token_seconds.Observe(absl::ToDoubleSeconds(now - last_token));
  } else {
    parts_.metrics->ttft_seconds.Observe(absl::ToDoubleSeconds(now - sequence.submitted()));
    parts_.metrics->prefill_seconds.Observe(absl::ToDoubleSeconds(now - sequence.first_started()));
  }
}

void EngineLoop::Publish(const StepPlan& plan, absl::Time now) {
  for (const StepPlan::Item& item : plan.items) {
    Sequence* sequence = item.sequence;
    if (item.background) {
      if (sequence->broken() || sequence->ended()) EndBackground();
      continue;
    }
    if (parts_.prober != nullptr) parts_.prober->Stepped(sequence);
    if (sequence->broken()) {
      End(sequence, FinishReason::kError,
          absl::InternalError("the model's output was not a number"), now);
      continue;
    }
    TokenEvent event;
    if (sequence->Collect(&event)) {
      if (!sequence->stream()->TryPush(std::move(event))) {
        End(sequence, FinishReason::kError,
            absl::ResourceExhaustedError(
                absl::StrFormat("the reader is too slow: more than %d tokens were not collected",
                                config_.stream_buffer_tokens)),
            now);
        continue;
      }
      published_ = true;
    }
    if (sequence->ended()) End(sequence, sequence->reason(), absl::OkStatus(), now);
  }
}

void EngineLoop::AwaitJobs() {
  compaction_.Await();
  PublishLoad(absl::InfinitePast());
}

Receipt EngineLoop::MakeReceipt(const Sequence& sequence) const {
  Receipt receipt;
  if (parts_.compression != nullptr) receipt.mode = parts_.compression->mode();
  if (const std::optional<Compression>& compression = sequence.request().compression) {
    receipt.preset = compression->preset;
    receipt.policy = compression->policy;
  }
  if (sequence.kv() == nullptr || sequence.kv()->committed_tokens == 0) return receipt;
  const KvHolding held = parts_.cache->Held(*sequence.kv());
  receipt.logical_tokens = sequence.kv()->committed_tokens;
  receipt.entries_held = held.entries;
  receipt.bytes_held = held.bytes;
  receipt.bytes_16bit = held.bytes_16bit;
  receipt.ratio = static_cast<double>(held.bytes_16bit) / static_cast<double>(held.bytes);
  if (const SequenceCompaction* compaction = sequence.compaction()) {
    receipt.swaps_accepted = compaction->swaps_accepted();
    receipt.swaps_refused = compaction->swaps_refused();
    receipt.min_hit_ratio = compaction->min_hit_ratio();
    receipt.hit_ratio = compaction->hit_ratio();
    receipt.max_output_error = compaction->max_output_error();
  }
  const TokenRecord* record = sequence.record();
  if (record != nullptr && record->drift().has_value()) {
    receipt.drift = std::expm1(*record->drift());
  }
  return receipt;
}

void EngineLoop::End(Sequence* sequence, FinishReason reason, absl::Status status, absl::Time now) {
  const Receipt receipt = MakeReceipt(*sequence);
  if (parts_.prober != nullptr) parts_.prober->Ended(*sequence);
  if (parts_.metrics != nullptr && sequence->compaction() != nullptr && receipt.bytes_held > 0) {
    parts_.metrics->request_kv_ratio.Observe(receipt.ratio);
  }
  const std::unique_ptr<Sequence> removed = scheduler_.Remove(sequence);
  // The last event comes last: who has read it finds the books closed and the id free.
  Observe(*removed, reason, now);
  parts_.queue->Ended(*removed->stream(), !removed->ever_started(), removed->prompt_size());
  static_cast<void>(
      removed->stream()->TryPush(removed->FinalEvent(reason, std::move(status), now, receipt)));
  published_ = true;
}

void EngineLoop::Observe(const Sequence& sequence, FinishReason reason, absl::Time now) {
  if (parts_.metrics == nullptr) return;
  Metrics& metrics = *parts_.metrics;
  metrics.requests(Outcome(reason)).Increment();
  metrics.request_seconds.Observe(absl::ToDoubleSeconds(now - sequence.submitted()));
  metrics.request_prompt_tokens.Observe(static_cast<double>(sequence.prompt_size()));
  metrics.request_generated_tokens.Observe(sequence.generated());
  if (sequence.ever_started()) {
    metrics.queue_seconds.Observe(
        absl::ToDoubleSeconds(sequence.first_started() - sequence.submitted()));
  }
  if (sequence.first_token() != absl::InfinitePast()) {
    metrics.decode_seconds.Observe(absl::ToDoubleSeconds(now - sequence.first_token()));
  }
}

void EngineLoop::PublishQueue() {
  {
    MutexLock lock(&mutex_);
    load_.running = scheduler_.running();
  }
  if (parts_.metrics == nullptr) return;
  Metrics& metrics = *parts_.metrics;
  metrics.running.Set(scheduler_.running());
  metrics.queued.Set(parts_.queue->waiting_requests());
  metrics.queued_tokens.Set(static_cast<double>(parts_.queue->waiting_tokens()));
}

void EngineLoop::PublishLoad(absl::Time step_end) {
  PublishQueue();
  const KvCacheStats cache = parts_.cache->Stats();
  const int64_t bytes_16bit = parts_.cache->Bytes16Bit();
  {
    MutexLock lock(&mutex_);
    load_.kv_bytes_used = cache.used_bytes;
    load_.kv_bytes_total = cache.arena_bytes;
    load_.slack_bytes = cache.slack_bytes;
    load_.staging_bytes = cache.staging_bytes;
    load_.jobs_out = compaction_.jobs_out();
    load_.swaps = compaction_.totals();
    load_.kv_bytes_16bit = bytes_16bit;
    load_.logical_tokens = cache.logical_tokens;
    load_.steps = steps_;
    load_.preemptions = preemptions_;
    load_.failing = failed_in_a_row_ >= kFailingAfter;
    if (step_end != absl::InfinitePast()) load_.last_step = step_end;
  }
  if (parts_.metrics == nullptr) return;
  PublishCache(cache, bytes_16bit);
  if (step_end == absl::InfinitePast()) return;
  ObserveHeld(cache);
  parts_.metrics->last_step_timestamp.Set(absl::ToDoubleSeconds(step_end - absl::UnixEpoch()));
}

void EngineLoop::PublishCache(const KvCacheStats& cache, int64_t bytes_16bit) {
  Metrics& metrics = *parts_.metrics;
  metrics.kv_bytes_used.Set(static_cast<double>(cache.used_bytes));
  metrics.kv_bytes_staging.Set(static_cast<double>(cache.staging_bytes));
  metrics.kv_ratio.Set(cache.used_bytes == 0 ? 1.0
                                             : static_cast<double>(bytes_16bit) /
                                                   static_cast<double>(cache.used_bytes));
  metrics.compaction_jobs_out.Set(compaction_.jobs_out());
  metrics.kv_pool_capacity_bytes.Set(static_cast<double>(cache.pool_capacity_bytes));
  const int64_t growths = cache.pool_growths - std::exchange(pool_growths_, cache.pool_growths);
  metrics.kv_pool_growths.Increment(static_cast<double>(growths));
  metrics.kv_bytes_slack.Set(static_cast<double>(cache.slack_bytes));
  metrics.kv_bytes_free.Set(static_cast<double>(cache.arena_bytes - cache.slab_bytes));
  metrics.kv_tokens_logical.Set(static_cast<double>(cache.logical_tokens));
  metrics.kv_tokens_physical.Set(static_cast<double>(cache.entries) /
                                 parts_.cache->layout().num_units());
}

void EngineLoop::ObserveHeld(const KvCacheStats& cache) {
  const double mib = static_cast<double>(cache.used_bytes + cache.staging_bytes) / (1 << 20);
  Metrics& metrics = *parts_.metrics;
  metrics.kv_held_samples.Increment();
  metrics.kv_held_mib.Increment(mib);
  metrics.kv_held_mib_squares.Increment(mib * mib);
}

}  // namespace condense
