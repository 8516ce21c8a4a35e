#ifndef CONDENSE_ENGINE_TOKEN_STREAM_H_
#define CONDENSE_ENGINE_TOKEN_STREAM_H_

// Door 2, engine -> client: the events of one request. Bounded, closable, cancellable.

#include <atomic>
#include <deque>
#include <optional>
#include <string>

#include "absl/time/time.h"
#include "engine/request.h"
#include "kernels/base/mutex.h"

namespace condense {

// Threads: thread-safe. The engine holds one end, the consumer the other, by shared_ptr; either may
// outlive the other.
class TokenStream {
 public:
  // `capacity_tokens` undelivered tokens are kept; past that the engine ends the request with
  // RESOURCE_EXHAUSTED.
  TokenStream(std::string request_id, int32_t capacity_tokens);

  // Consumer side.
  // The next event, or nothing if there is none now. After kFinished there is never another.
  std::optional<TokenEvent> TryNext();
  // Waits for the next event; nothing after kFinished was delivered, or when `timeout` passed.
  std::optional<TokenEvent> Next(absl::Duration timeout = absl::InfiniteDuration());
  // The client is gone or lost interest: the engine ends the request within one step. Idempotent.
  void Cancel() { cancelled_.store(true, std::memory_order_release); }
  bool has_events() const { return has_events_.load(std::memory_order_acquire); }

  // Engine side.
  // False if the tokens of `event` did not fit; the stream is then unchanged. kFinished and
  // kAccepted always fit.
  [[nodiscard]] bool TryPush(TokenEvent event);
  bool cancelled() const { return cancelled_.load(std::memory_order_acquire); }

  const std::string& request_id() const { return request_id_; }

 private:
  std::optional<TokenEvent> PopLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string request_id_;
  const int32_t capacity_tokens_;

  std::atomic<bool> cancelled_{false};
  std::atomic<bool> has_events_{false};

  Mutex mutex_;  // a leaf: nothing is called while it is held
  CondVar ready_;
  std::deque<TokenEvent> events_ ABSL_GUARDED_BY(mutex_);
  int32_t pending_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;   // kFinished was pushed
  bool delivered_ ABSL_GUARDED_BY(mutex_) = false;  // kFinished was taken
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_TOKEN_STREAM_H_
