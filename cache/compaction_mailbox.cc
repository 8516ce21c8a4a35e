#include "cache/compaction_mailbox.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/status/status.h"
#include "kernels/base/check.h"

namespace condense {

bool CompactionMailbox::TryPost(CompactionJob&& job) {
  MutexLock lock(&mutex_);
  if (closed_ || jobs_out_ >= capacity_) return false;
  jobs_.push_back(std::move(job));
  ++jobs_out_;
  changed_.SignalAll();
  return true;
}

int32_t CompactionMailbox::free_places() const {
  MutexLock lock(&mutex_);
  return closed_ ? 0 : std::max(capacity_ - jobs_out_, 0);
}

std::optional<CompactionResult> CompactionMailbox::TryCollect() {
  MutexLock lock(&mutex_);
  if (results_.empty()) return std::nullopt;
  CompactionResult result = std::move(results_.front());
  results_.pop_front();
  --jobs_out_;
  changed_.SignalAll();
  return result;
}

bool CompactionMailbox::WaitForResult(absl::Duration timeout) {
  // A wait has to end in a time that the clock can count.
  const auto bounded =
      absl::ToChronoNanoseconds(std::clamp(timeout, absl::ZeroDuration(), absl::Hours(24 * 365)));
  const auto deadline = std::chrono::steady_clock::now() + bounded;
  MutexLock lock(&mutex_);
  while (results_.empty() && jobs_out_ > 0) {
    const auto left = deadline - std::chrono::steady_clock::now();
    if (left <= left.zero()) break;
    changed_.WaitFor(&mutex_, left);
  }
  return !results_.empty();
}

bool CompactionMailbox::TryRecall(KvTicket ticket) {
  MutexLock lock(&mutex_);
  const auto found = std::find_if(jobs_.begin(), jobs_.end(),
                                  [&](const CompactionJob& job) { return job.ticket == ticket; });
  if (found == jobs_.end()) return false;
  jobs_.erase(found);
  --jobs_out_;
  changed_.SignalAll();
  return true;
}

int32_t CompactionMailbox::jobs_out() const {
  MutexLock lock(&mutex_);
  return jobs_out_;
}

void CompactionMailbox::Close() {
  MutexLock lock(&mutex_);
  closed_ = true;
  for (const CompactionJob& job : jobs_) {
    CompactionResult result;
    result.ticket = job.ticket;
    result.status = absl::CancelledError("compaction has ended before this job was taken");
    results_.push_back(std::move(result));
  }
  jobs_.clear();
  changed_.SignalAll();
}

std::optional<CompactionJob> CompactionMailbox::Take() {
  MutexLock lock(&mutex_);
  while (jobs_.empty() && !closed_) changed_.Wait(&mutex_);
  if (jobs_.empty()) return std::nullopt;
  CompactionJob job = std::move(jobs_.front());
  jobs_.pop_front();
  return job;
}

void CompactionMailbox::Return(CompactionResult result) {
  MutexLock lock(&mutex_);
  const int64_t taken = jobs_out_ - static_cast<int64_t>(jobs_.size() + results_.size());
  CHECK_GT(taken, 0);
  results_.push_back(std::move(result));
  changed_.SignalAll();
}

}  // namespace condense
