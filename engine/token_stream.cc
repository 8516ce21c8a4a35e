#include "engine/token_stream.h"

#include <utility>

#include "kernels/base/check.h"

namespace condense {

TokenStream::TokenStream(std::string request_id, int32_t capacity_tokens)
    : request_id_(std::move(request_id)), capacity_tokens_(capacity_tokens) {}

std::optional<TokenEvent> TokenStream::PopLocked() {
  if (events_.empty()) return std::nullopt;
  TokenEvent event = std::move(events_.front());
  events_.pop_front();
  pending_tokens_ -= static_cast<int32_t>(event.tokens.size());
  if (event.kind == TokenEvent::Kind::kFinished) delivered_ = true;
  has_events_.store(!events_.empty(), std::memory_order_release);
  return event;
}

std::optional<TokenEvent> TokenStream::TryNext() {
  MutexLock lock(&mutex_);
  return PopLocked();
}

std::optional<TokenEvent> TokenStream::Next(absl::Duration timeout) {
  const bool forever = timeout == absl::InfiniteDuration();
  const auto until = std::chrono::steady_clock::now() +
                     (forever ? std::chrono::nanoseconds(0) : absl::ToChronoNanoseconds(timeout));
  MutexLock lock(&mutex_);
  while (events_.empty() && !delivered_) {
    if (forever) {
      ready_.Wait(&mutex_);
      continue;
    }
    const auto left = until - std::chrono::steady_clock::now();
    if (left <= std::chrono::nanoseconds(0)) return std::nullopt;
    ready_.WaitFor(&mutex_, left);
  }
  return PopLocked();
}

bool TokenStream::TryPush(TokenEvent event) {
  MutexLock lock(&mutex_);
  CHECK(!finished_);
  const int32_t tokens = static_cast<int32_t>(event.tokens.size());
  if (event.kind == TokenEvent::Kind::kTokens && pending_tokens_ + tokens > capacity_tokens_)
    return false;
  finished_ = event.kind == TokenEvent::Kind::kFinished;
  pending_tokens_ += tokens;
  events_.push_back(std::move(event));
  has_events_.store(true, std::memory_order_release);
  ready_.Signal();
  return true;
}

}  // namespace condense
