#ifndef CONDENSE_CACHE_COMPACTION_MAILBOX_H_
#define CONDENSE_CACHE_COMPACTION_MAILBOX_H_

// The door between the engine thread and the compaction worker: jobs in, results out.

#include <cstdint>
#include <deque>
#include <optional>

#include "absl/time/time.h"
#include "cache/compaction_job.h"
#include "kernels/base/mutex.h"

namespace condense {

// Threads: thread-safe; the engine posts and collects, the worker takes and returns. Bounded by
// `capacity` jobs that are out (posted, not yet collected). Its lock is a leaf.
class CompactionMailbox {
 public:
  explicit CompactionMailbox(int32_t capacity) : capacity_(capacity) {}

  // Engine. False, the job untouched, if as many are out as may be, or after Close.
  [[nodiscard]] bool TryPost(CompactionJob&& job);
  int32_t capacity() const { return capacity_; }
  int32_t free_places() const;
  // The oldest result, if there is one.
  std::optional<CompactionResult> TryCollect();
  // Waits until a result is there, no job is out, or `timeout` has passed. True: a result is there.
  bool WaitForResult(absl::Duration timeout);
  // Takes back a job that the worker has not taken yet. False if it has.
  bool TryRecall(KvTicket ticket);
  int32_t jobs_out() const;
  // Take() ends; jobs that were not taken come back as results kFailed (CANCELLED), so that each
  // posted job still yields exactly one result.
  void Close();

  // Worker. Waits for a job; nothing after Close.
  std::optional<CompactionJob> Take();
  void Return(CompactionResult result);

 private:
  const int32_t capacity_;
  mutable Mutex mutex_;
  CondVar changed_;
  std::deque<CompactionJob> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<CompactionResult> results_ ABSL_GUARDED_BY(mutex_);
  int32_t jobs_out_ ABSL_GUARDED_BY(mutex_) = 0;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_COMPACTION_MAILBOX_H_
