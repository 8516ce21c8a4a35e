#include "engine/token_stream.h"

#include <algorithm>
#include <utility>

#include "kernels/base/check.h"

namespace condense {

namespace {

// Past this a wait is for ever: a year from now is still a time that the clock can tell.
constexpr absl::Duration kLongestWait = absl::Hours(24 * 365);

}  // namespace

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
  const bool forever = timeout > kLongestWait;
  const auto until =
      std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(std::min(timeout, kLongestWait));
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
  // One event may carry more than the bound, tokens held back for a stop string; a reader that has
  // taken everything before it is not slow.
  if (event.kind == TokenEvent::Kind::kTokens && pending_tokens_ > 0 &&
      pending_tokens_ + tokens > capacity_tokens_)
    return false;
  finished_ = event.kind == TokenEvent::Kind::kFinished;
  pending_tokens_ += tokens;
  events_.push_back(std::move(event));
  has_events_.store(true, std::memory_order_release);
  ready_.Signal();
  return true;
}

}  // namespace condense
