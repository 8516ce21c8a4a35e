#include "server/convert_response.h"

#include <numeric>
#include <optional>

#include "server/convert_compression.h"
#include "server/convert_status.h"

namespace condense {
namespace {

void FillReceipt(const Receipt& receipt, v1::CompactionReceipt* message) {
  message->set_logical_tokens(receipt.logical_tokens);
  message->set_entries_held(receipt.entries_held);
  message->set_bytes_held(receipt.bytes_held);
  message->set_bytes_16bit(receipt.bytes_16bit);
  message->set_ratio(receipt.ratio);
  message->set_preset(receipt.preset);
  message->set_policy(receipt.policy);
  message->set_mode(receipt.mode);
  message->set_swaps_accepted(receipt.swaps_accepted);
  message->set_swaps_refused(receipt.swaps_refused);
  message->set_min_hit_ratio(receipt.min_hit_ratio);
  message->set_max_output_error(receipt.max_output_error);
  message->set_hit_ratio(receipt.hit_ratio);
  if (receipt.drift.has_value()) message->set_drift(*receipt.drift);
}

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::FINISH_REASON_STOP;
    case FinishReason::kLength:
      return v1::FINISH_REASON_LENGTH;
    case FinishReason::kCancelled:
    case FinishReason::kDeadline:
    case FinishReason::kError:
      break;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

// Finished and GenerateResponse have these fields in common.
template <typename Message>
void FillEnd(const TokenEvent& event, Message* message) {
  if (event.stop_token.has_value()) message->set_stop_token_id(*event.stop_token);
  if (!event.stop_string.empty()) message->set_stop_string(event.stop_string);
  FillUsage(event.usage, message->mutable_usage());
  FillReceipt(event.receipt, message->mutable_receipt());
}

void FillTokenInfo(const TokenOutput& output, const TokenFormat& format, v1::TokenInfo* message) {
  message->set_token_id(output.token);
  if (!format.logprobs) return;
  message->set_logprob(output.logprob);
  for (const TokenLogprob& alternative : output.top) {
    v1::TokenLogprob* top = message->add_top();
    top->set_token_id(alternative.token);
    top->set_logprob(alternative.logprob);
    top->set_token_bytes(format.tokenizer->TokenBytes(alternative.token, /*special=*/true));
  }
}

}  // namespace

void AppendTokens(const TokenEvent& event, const TokenFormat& format, std::string* text,
                  google::protobuf::RepeatedPtrField<v1::TokenInfo>* tokens) {
  if (format.output.text) text->append(event.text);
  if (!format.output.tokens) return;
  for (const TokenOutput& output : event.tokens) FillTokenInfo(output, format, tokens->Add());
}

void FillFinished(const TokenEvent& event, v1::GenerateEvent::Finished* message) {
  message->set_reason(ToProto(event.reason));
  FillEnd(event, message);
}

void FillFinished(const TokenEvent& event, v1::GenerateResponse* message) {
  message->set_finish_reason(ToProto(event.reason));
  FillEnd(event, message);
}

void FillError(const TokenEvent& event, v1::GenerateEvent::Error* message) {
  message->set_code(static_cast<int32_t>(event.status.code()));
  message->set_message(std::string(event.status.message()));
  const std::optional<absl::Duration> retry_after = RetryAfter(event.status);
  message->set_retryable(retry_after.has_value() || absl::IsUnavailable(event.status) ||
                         IsTransient(event.status));
  if (retry_after.has_value()) {
    message->set_retry_after_seconds(absl::ToDoubleSeconds(*retry_after));
  }
}

void FillUsage(const Usage& usage, v1::Usage* message) {
  message->set_prompt_tokens(usage.prompt_tokens);
  message->set_completion_tokens(usage.completion_tokens);
  message->set_queue_seconds(absl::ToDoubleSeconds(usage.queue_time));
  message->set_time_to_first_token_seconds(absl::ToDoubleSeconds(usage.time_to_first_token));
  message->set_total_seconds(absl::ToDoubleSeconds(usage.total_time));
  message->set_preemptions(usage.preemptions);
}

void FillScore(const TokenEvent& event, v1::ScoreResponse* message) {
  const std::vector<float>& logprobs = event.prompt_logprobs;
  message->mutable_logprobs()->Add(logprobs.begin(), logprobs.end());
  if (!logprobs.empty()) {
    const double sum = std::accumulate(logprobs.begin(), logprobs.end(), 0.0);
    message->set_mean_nll(-sum / static_cast<double>(logprobs.size()));
  }
  FillUsage(event.usage, message->mutable_usage());
  FillReceipt(event.receipt, message->mutable_receipt());
}

void FillModelInfo(const ServedModel& model, v1::GetModelInfoResponse* message) {
  const ModelInfo& info = model.info;
  message->set_name(info.name);
  message->set_architecture(info.architecture);
  message->set_parameters(info.parameters);
  message->set_vocab_size(info.vocab_size);
  message->set_max_context(info.max_context);
  message->set_num_layers(info.num_layers);
  message->set_num_heads(info.num_heads);
  message->set_num_kv_heads(info.num_kv_heads);
  message->set_head_dim(info.head_dim);
  if (model.tokenizer.bos().has_value()) message->set_bos_token_id(*model.tokenizer.bos());
  const std::vector<TokenId>& ends = model.tokenizer.end_tokens();
  message->mutable_end_token_ids()->Add(ends.begin(), ends.end());
  message->set_chat_template_family(model.chat_template.family());
  message->set_kv_bytes_per_token_16bit(info.kv_bytes_per_token_16bit);
  message->set_weight_bytes(info.weight_bytes);
}

void FillLoad(const EngineLoad& load, absl::Time now, v1::GetLoadResponse* message) {
  message->set_running(load.running);
  message->set_queued(load.queued);
  message->set_queued_tokens(load.queued_tokens);
  message->set_kv_bytes_used(load.kv_bytes_used);
  message->set_kv_bytes_total(load.kv_bytes_total);
  message->set_logical_tokens(load.logical_tokens);
  message->set_steps(load.steps);
  message->set_tokens_per_second(load.tokens_per_second);
  message->set_preemptions(load.preemptions);
  if (load.has_work && load.last_step != absl::InfinitePast()) {
    message->set_seconds_since_last_step(absl::ToDoubleSeconds(now - load.last_step));
  }
  message->set_kv_bytes_staging(load.staging_bytes);
  message->set_kv_bytes_slack(load.slack_bytes);
  message->set_kv_bytes_16bit(load.kv_bytes_16bit);
  message->set_kv_ratio(HeldRatio(load));
  message->set_compaction_jobs_out(load.jobs_out);
  FillSwaps(load.swaps, message->mutable_swaps());
}

}  // namespace condense
