#include "engine/engine_loop.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "metrics/log.h"

namespace condense {
namespace {

constexpr absl::Duration kRateWindow = absl::Seconds(10);

SchedulerOptions MakeSchedulerOptions(const EngineConfig& config) {
  return {.step_tokens = config.step_tokens,
          .max_sequences = config.max_sequences,
          .decode_reserve_tokens = config.decode_reserve_tokens,
          .max_running_per_tenant = config.max_running_per_tenant};
}

std::vector<TokenId> StopTokens(const Request& request, const Tokenizer& tokenizer) {
  std::vector<TokenId> tokens = request.stop.stop_ids;
  if (!request.stop.ignore_eos) {
    tokens.insert(tokens.end(), tokenizer.end_tokens().begin(), tokenizer.end_tokens().end());
  }
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
    : config_(config), parts_(parts), scheduler_(MakeSchedulerOptions(config), parts.cache) {
  PublishLoad(absl::InfinitePast());
}

void EngineLoop::Run() {
  while (!stop_.load(std::memory_order_acquire)) {
    if (!Step() && scheduler_.empty()) parts_.queue->WaitForWork();
  }
  const absl::Time now = absl::Now();
  DrainCommands();
  for (Sequence* sequence : scheduler_.All()) {
    End(sequence, FinishReason::kCancelled, absl::CancelledError("the server is shutting down"),
        now);
  }
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
  const StepPlan plan = scheduler_.Schedule(begin);
  for (Sequence* sequence : plan.started) parts_.queue->Started(sequence->prompt_size());
  preemptions_ += plan.preempted;

  const absl::Time scheduled = absl::Now();
  absl::Time computed = scheduled;
  if (!plan.items.empty()) {
    const absl::Status status = Compute(plan);
    computed = absl::Now();
    if (status.ok()) {
      Advance(plan, computed);
      Publish(plan, computed);
    } else {
      LogError("step %d failed: %s", steps_, status.ToString());
      for (const StepPlan::Item& item : plan.items) {
        End(item.sequence, FinishReason::kError, absl::InternalError(std::string(status.message())),
            computed);
      }
    }
    ++steps_;
  } else if (scheduler_.running() == 0 && scheduler_.waiting() > 0) {
    // Nothing runs and the next one does not fit into an empty cache: never wait for what cannot
    // come.
    End(scheduler_.All().front(), FinishReason::kError,
        absl::ResourceExhaustedError("the request does not fit into the KV memory"), begin);
  }
  if (parts_.metrics != nullptr && !plan.items.empty()) {
    Metrics& metrics = *parts_.metrics;
    metrics.steps.Increment();
    metrics.preemptions.Increment(plan.preempted);
    metrics.step_tokens.Observe(plan.num_tokens);
    metrics.step_batch_size.Observe(static_cast<double>(plan.items.size()));
    metrics.step_seconds(StepPhase::kSchedule).Observe(absl::ToDoubleSeconds(scheduled - begin));
    metrics.step_seconds(StepPhase::kForward)
        .Observe(absl::ToDoubleSeconds(forward_end_ - scheduled));
    metrics.step_seconds(StepPhase::kSample)
        .Observe(absl::ToDoubleSeconds(computed - forward_end_));
    metrics.step_seconds(StepPhase::kPublish)
        .Observe(absl::ToDoubleSeconds(absl::Now() - computed));
  }
  PublishLoad(plan.items.empty() ? absl::InfinitePast() : computed);
  if (published_ && config_.on_published) config_.on_published();
  return !plan.items.empty();
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
    prompt_tokens += std::clamp<int64_t>(item.sequence->prompt_size() - item.sequence->computed(),
                                         0, item.num_tokens);
    item.sequence->Computed(item.num_tokens);
  }
  int64_t generated = 0;
  for (size_t i = 0; i < results_.size(); ++i) {
    Sequence& sequence = *batch_.logit_rows[i].sequence;
    const absl::Time last_token = sequence.last_token();
    const int32_t before = sequence.generated();
    sequence.Take(batch_.logit_rows[i].position, results_[i], *parts_.tokenizer, now);
    if (sequence.generated() == before) continue;
    ++generated;
    if (parts_.metrics == nullptr) continue;
    if (last_token != absl::InfinitePast()) {
      parts_.metrics->inter_token_seconds.Observe(absl::ToDoubleSeconds(now - last_token));
    } else {
      parts_.metrics->ttft_seconds.Observe(absl::ToDoubleSeconds(now - sequence.submitted()));
      parts_.metrics->prefill_seconds.Observe(
          absl::ToDoubleSeconds(now - sequence.first_started()));
    }
  }
  generated_.emplace_back(now, generated);
  generated_in_window_ += generated;
  if (parts_.metrics == nullptr) return;
  parts_.metrics->prompt_tokens.Increment(static_cast<double>(prompt_tokens));
  parts_.metrics->generated_tokens.Increment(static_cast<double>(generated));
}

void EngineLoop::Publish(const StepPlan& plan, absl::Time now) {
  for (const StepPlan::Item& item : plan.items) {
    Sequence* sequence = item.sequence;
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

Receipt EngineLoop::MakeReceipt(const Sequence& sequence) const {
  Receipt receipt;
  if (sequence.kv() == nullptr) return receipt;
  const KvLayout& layout = parts_.cache->layout();
  receipt.logical_tokens = sequence.kv()->committed_tokens;
  receipt.entries_held = receipt.logical_tokens * layout.num_units();
  receipt.bytes_16bit = receipt.logical_tokens * layout.bytes_per_token_16bit();
  receipt.bytes_held = receipt.bytes_16bit;
  return receipt;
}

void EngineLoop::End(Sequence* sequence, FinishReason reason, absl::Status status, absl::Time now) {
  const Receipt receipt = MakeReceipt(*sequence);
  const std::unique_ptr<Sequence> removed = scheduler_.Remove(sequence);
  // The last event comes last: who has read it finds the books closed and the id free.
  Observe(*removed, reason, now);
  parts_.queue->Ended(removed->request().id, !removed->ever_started(), removed->prompt_size());
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

void EngineLoop::PublishLoad(absl::Time step_end) {
  const KvCacheStats cache = parts_.cache->Stats();
  const absl::Time now = absl::Now();
  while (!generated_.empty() && generated_.front().first < now - kRateWindow) {
    generated_in_window_ -= generated_.front().second;
    generated_.pop_front();
  }
  const int32_t running = scheduler_.running();
  {
    MutexLock lock(&mutex_);
    load_.running = running;
    load_.kv_bytes_used = cache.used_bytes;
    load_.kv_bytes_total = cache.arena_bytes;
    load_.logical_tokens = cache.logical_tokens;
    load_.steps = steps_;
    load_.tokens_per_second =
        static_cast<double>(generated_in_window_) / absl::ToDoubleSeconds(kRateWindow);
    load_.preemptions = preemptions_;
    if (step_end != absl::InfinitePast()) load_.last_step = step_end;
  }
  if (parts_.metrics == nullptr) return;
  Metrics& metrics = *parts_.metrics;
  metrics.running.Set(running);
  metrics.queued.Set(parts_.queue->waiting_requests());
  metrics.queued_tokens.Set(static_cast<double>(parts_.queue->waiting_tokens()));
  metrics.kv_bytes_used.Set(static_cast<double>(cache.used_bytes));
  metrics.kv_bytes_free.Set(static_cast<double>(cache.arena_bytes - cache.used_bytes));
  metrics.kv_tokens_logical.Set(static_cast<double>(cache.logical_tokens));
  if (step_end != absl::InfinitePast())
    metrics.last_step_timestamp.Set(absl::ToDoubleSeconds(step_end - absl::UnixEpoch()));
}

}  // namespace condense
