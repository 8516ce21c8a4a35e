#include "engine/quality/added_time.h"

#include <algorithm>

namespace condense {

std::optional<absl::Duration> AddedTime::Observe(const AddedStep& step) {
  thread_time_ += step.thread_time;
  owed_ = std::min(owed_, step.owed);
  ++steps_;
  if (!step.cycle_end) return std::nullopt;
  const absl::Duration overdraft = std::max(owed_ - owed_before_, absl::ZeroDuration());
  const absl::Duration added = (thread_time_ + overdraft) / steps_;
  owed_before_ = owed_;
  owed_ = absl::InfiniteDuration();
  thread_time_ = absl::ZeroDuration();
  steps_ = 0;
  return added;
}

}  // namespace condense
