#include "engine/request_queue.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace condense {

RequestQueue::RequestQueue(int32_t max_requests, int64_t max_tokens, int32_t stream_buffer_tokens)
    : max_requests_(max_requests),
      max_tokens_(max_tokens),
      stream_buffer_tokens_(stream_buffer_tokens) {}

absl::StatusOr<std::shared_ptr<TokenStream>> RequestQueue::TryPush(Request request,
                                                                   absl::Time now) {
  MutexLock lock(&mutex_);
  if (closed_) return absl::UnavailableError("the server is draining and takes no new requests");
  const auto same_id = live_.find(request.id);
  if (same_id != live_.end() && !same_id->second->cancelled()) {
    return absl::AlreadyExistsError(
        absl::StrFormat("request_id '%s' belongs to a live request", request.id));
  }
  const int64_t tokens = static_cast<int64_t>(request.prompt.size());
  if (waiting_requests_ >= max_requests_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the queue is full: %d requests wait, the limit is %d", waiting_requests_, max_requests_));
  }
  // A single request larger than the limit may pass when nothing else waits: it would never fit
  // otherwise.
  if (waiting_tokens_ > 0 && waiting_tokens_ + tokens > max_tokens_) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "the queue is full: %d prompt tokens wait, %d more were submitted, the limit is %d",
        waiting_tokens_, tokens, max_tokens_));
  }
  auto stream = std::make_shared<TokenStream>(request.id, stream_buffer_tokens_);
  TokenEvent accepted;
  accepted.kind = TokenEvent::Kind::kAccepted;
  accepted.queue_position = waiting_requests_;
  static_cast<void>(stream->TryPush(std::move(accepted)));
  live_[request.id] = stream;
  ++num_live_;
  ++waiting_requests_;
  waiting_tokens_ += tokens;
  submitted_.push_back({std::move(request), stream, now});
  work_.Signal();
  return stream;
}

bool RequestQueue::Cancel(const std::string& request_id) {
  MutexLock lock(&mutex_);
  const auto it = live_.find(request_id);
  if (it == live_.end()) return false;
  it->second->Cancel();
  return true;
}

void RequestQueue::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
}

bool RequestQueue::closed() const {
  MutexLock lock(&mutex_);
  return closed_;
}

void RequestQueue::Take(std::vector<Submission>* out) {
  MutexLock lock(&mutex_);
  for (Submission& submission : submitted_) out->push_back(std::move(submission));
  submitted_.clear();
}

void RequestQueue::WaitForWork(absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout;
  MutexLock lock(&mutex_);
  while (submitted_.empty() && !woken_) {
    if (timeout == absl::InfiniteDuration()) {
      work_.Wait(&mutex_);
      continue;
    }
    const absl::Duration left = until - absl::Now();
    if (left <= absl::ZeroDuration()) return;
    work_.WaitFor(&mutex_, absl::ToChronoNanoseconds(left));
  }
  woken_ = false;
}

void RequestQueue::Wake() {
  MutexLock lock(&mutex_);
  woken_ = true;
  work_.Signal();
}

void RequestQueue::Started(int64_t tokens) {
  MutexLock lock(&mutex_);
  --waiting_requests_;
  waiting_tokens_ -= tokens;
}

void RequestQueue::Ended(const TokenStream& stream, bool waiting, int64_t tokens) {
  MutexLock lock(&mutex_);
  // A cancelled request's id may belong to a later request already.
  const auto it = live_.find(stream.request_id());
  if (it != live_.end() && it->second.get() == &stream) live_.erase(it);
  --num_live_;
  if (!waiting) return;
  --waiting_requests_;
  waiting_tokens_ -= tokens;
}

int32_t RequestQueue::waiting_requests() const {
  MutexLock lock(&mutex_);
  return waiting_requests_;
}

int64_t RequestQueue::waiting_tokens() const {
  MutexLock lock(&mutex_);
  return waiting_tokens_;
}

int32_t RequestQueue::live_requests() const {
  MutexLock lock(&mutex_);
  return num_live_;
}

}  // namespace condense
