#ifndef CONDENSE_ENGINE_REQUEST_QUEUE_H_
#define CONDENSE_ENGINE_REQUEST_QUEUE_H_

// Door 1, server -> engine: submitted requests. Bounded by requests and by tokens, closable.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "engine/request.h"
#include "engine/token_stream.h"
#include "kernels/base/mutex.h"

namespace condense {

struct Submission {
  Request request;
  std::shared_ptr<TokenStream> stream;
  absl::Time submitted;
};

// What waits is counted from TryPush until Started or Ended, wherever it waits: here or in the
// scheduler. Threads: thread-safe.
class RequestQueue {
 public:
  RequestQueue(int32_t max_requests, int64_t max_tokens, int32_t stream_buffer_tokens);

  // Any thread. The stream holds kAccepted already. RESOURCE_EXHAUSTED with counts and limits when
  // full, UNAVAILABLE after Close, ALREADY_EXISTS for the id of a live request that was not
  // cancelled.
  absl::StatusOr<std::shared_ptr<TokenStream>> TryPush(Request request, absl::Time now);
  // Marks the stream of a live request cancelled. False if no live request has this id.
  bool Cancel(const std::string& request_id);
  // No request is taken any more.
  void Close();
  bool closed() const;

  // Engine thread. Moves out everything submitted since the last call.
  void Take(std::vector<Submission>* out);
  // Waits until something was submitted, or Wake() was called since the last wait, or `timeout`
  // passed.
  void WaitForWork(absl::Duration timeout = absl::InfiniteDuration());
  void Wake();
  // A request of `tokens` prompt tokens no longer waits: it was scheduled for the first time.
  void Started(int64_t tokens);
  // The request of `stream` is over; its id may be used again. `waiting`: it was never started.
  void Ended(const TokenStream& stream, bool waiting, int64_t tokens);

  int32_t waiting_requests() const;
  int64_t waiting_tokens() const;
  int32_t live_requests() const;

 private:
  const int32_t max_requests_;
  const int64_t max_tokens_;
  const int32_t stream_buffer_tokens_;

  mutable Mutex mutex_;  // a leaf
  CondVar work_;
  std::vector<Submission> submitted_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<std::string, std::shared_ptr<TokenStream>> live_ ABSL_GUARDED_BY(mutex_);
  int32_t num_live_ ABSL_GUARDED_BY(mutex_) = 0;
  int32_t waiting_requests_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_REQUEST_QUEUE_H_
