#include "engine/sequence.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "kernels/base/check.h"

namespace condense {

const char* FinishReasonName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
    case FinishReason::kDeadline:
      return "deadline";
    case FinishReason::kError:
      return "error";
  }
  return "unknown";
}

namespace {
constexpr char kTransientPayload[] = "condense/transient";
}  // namespace

void SetTransient(absl::Status* status) { status->SetPayload(kTransientPayload, absl::Cord()); }
bool IsTransient(const absl::Status& status) {
  return status.GetPayload(kTransientPayload).has_value();
}

Sequence::Sequence(Submission submission, int32_t max_tokens, std::vector<TokenId> stop_tokens)
    : request_(std::move(submission.request)),
      stream_(std::move(submission.stream)),
      submitted_(submission.submitted),
      max_tokens_(max_tokens),
      stop_tokens_(std::move(stop_tokens)),
      tokens_(request_.prompt),
      sampler_(request_, stop_tokens_),
      cutter_(request_.stop.stop_strings) {}

bool Sequence::NeedsLogits(int64_t position) const {
  const bool scores = request_.score && position + 1 < prompt_size() &&
                      position >= static_cast<int64_t>(prompt_logprobs_.size());
  return scores || position + 1 == known();
}

SampleRow Sequence::RowFor(int64_t position) {
  if (position + 1 < known()) return sampler_.ScoreRow(tokens_[position + 1]);
  return sampler_.Row();
}

void Sequence::Start(absl::Time now, std::unique_ptr<KvSequence> kv) {
  CHECK(state_ == State::kWaiting);
  state_ = State::kRunning;
  kv_ = std::move(kv);
  if (!ever_started()) first_started_ = now;
}

std::unique_ptr<KvSequence> Sequence::Preempt() {
  CHECK(state_ == State::kRunning);
  state_ = State::kWaiting;
  computed_ = 0;
  ++preemptions_;
  compaction_.reset();
  if (record_ != nullptr) record_->Clear();
  return std::move(kv_);
}

std::unique_ptr<KvSequence> Sequence::Finish() {
  CHECK(state_ != State::kFinished);
  state_ = State::kFinished;
  compaction_.reset();
  return std::move(kv_);
}

void Sequence::Take(int64_t position, const SampleResult& result, const Tokenizer& tokenizer,
                    absl::Time now) {
  if (!result.finite) {
    broken_ = true;
    return;
  }
  if (position + 1 < known()) {
    prompt_logprobs_.push_back(result.logprob);
    return;
  }
  if (max_tokens_ == 0) return End(FinishReason::kLength, std::nullopt, -1);

  if (first_token_ == absl::InfinitePast()) first_token_ = now;
  last_token_ = now;
  sampler_.Accept(result.token);
  if (record_ != nullptr) record_->Add(result);
  const bool is_stop =
      std::find(stop_tokens_.begin(), stop_tokens_.end(), result.token) != stop_tokens_.end();
  if (is_stop && sampler_.generated() > request_.stop.min_tokens) {
    return End(FinishReason::kStop, result.token, -1);
  }
  tokens_.push_back(result.token);
  TokenOutput output{.token = result.token,
                     .logprob = request_.num_logprobs >= 0 ? result.logprob : 0.0f};
  output.top.assign(result.top, result.top + std::max(0, request_.num_logprobs));
  Append(std::move(output), tokenizer);
  if (!ended_ && sampler_.generated() == max_tokens_) End(FinishReason::kLength, std::nullopt, -1);
}

void Sequence::Append(TokenOutput output, const Tokenizer& tokenizer) {
  const std::string bytes = tokenizer.TokenBytes(output.token, /*special=*/false);
  undelivered_.push_back(std::move(output));
  const TextCut cut = cutter_.Append(bytes, sampler_.generated() > request_.stop.min_tokens);
  Deliver(cut);
  if (cut.stop_index >= 0) End(FinishReason::kStop, std::nullopt, cut.stop_index);
}

void Sequence::Deliver(const TextCut& cut) {
  ready_.text += cut.text;
  for (int32_t i = 0; i < cut.released_tokens; ++i) {
    ready_.tokens.push_back(std::move(undelivered_.front()));
    undelivered_.pop_front();
  }
}

void Sequence::End(FinishReason reason, std::optional<TokenId> stop_token, int32_t stop_index) {
  ended_ = true;
  reason_ = reason;
  stop_token_ = stop_token;
  if (stop_index >= 0) {
    stop_string_ = request_.stop.stop_strings[stop_index];
    undelivered_.clear();
  } else {
    Deliver(cutter_.Flush());
  }
}

bool Sequence::Collect(TokenEvent* event) {
  if (ready_.tokens.empty() && ready_.text.empty()) return false;
  delivered_tokens_ += static_cast<int32_t>(ready_.tokens.size());
  *event = std::exchange(ready_, TokenEvent{});
  return true;
}

TokenEvent Sequence::FinalEvent(FinishReason reason, absl::Status status, absl::Time now,
                                Receipt receipt) {
  TokenEvent event;
  event.kind = TokenEvent::Kind::kFinished;
  event.reason = reason;
  event.status = std::move(status);
  event.stop_token = stop_token_;
  event.stop_string = stop_string_;
  event.usage = {.prompt_tokens = static_cast<int32_t>(prompt_size()),
                 .completion_tokens = delivered_tokens_,
                 .queue_time = (ever_started() ? first_started_ : now) - submitted_,
                 .time_to_first_token = first_token_ == absl::InfinitePast()
                                            ? absl::ZeroDuration()
                                            : first_token_ - submitted_,
                 .total_time = now - submitted_,
                 .preemptions = preemptions_};
  event.receipt = std::move(receipt);
  event.prompt_logprobs = std::move(prompt_logprobs_);
  return event;
}

}  // namespace condense
