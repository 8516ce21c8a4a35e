#ifndef CONDENSE_ENGINE_QUALITY_BUCKET_RING_H_
#define CONDENSE_ENGINE_QUALITY_BUCKET_RING_H_

// A sliding time window as a ring of buckets, each with what was added in its slice of time.

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "kernels/base/check.h"

namespace condense {

// The window ends in the slice of "now" and is `num_buckets` slices long, that one included: it
// reaches back by at least window - window / num_buckets. Nothing is ever subtracted, so no
// rounding error builds up. Times come from one steady clock; the ring has none. Threads:
// thread-compatible. Cost: At is O(1) amortized, ForEach O(num_buckets), memory is fixed.
template <typename Bucket>
class BucketRing {
 public:
  // REQUIRES: num_buckets >= 1, window of at least num_buckets nanoseconds.
  BucketRing(absl::Duration window, int32_t num_buckets, Bucket empty)
      : slice_ns_(absl::ToInt64Nanoseconds(window) / std::max(num_buckets, 1)),
        empty_(std::move(empty)),
        buckets_(static_cast<size_t>(std::max(num_buckets, 1)), empty_) {
    CHECK_GE(num_buckets, 1);
    CHECK_GE(slice_ns_, 1);
  }

  // Null if `time` is before the window that ends at the latest time seen.
  Bucket* At(absl::Time time) {
    const int64_t slice = SliceOf(time);
    if (slice > newest_) Advance(slice);
    return slice > newest_ - size() ? &buckets_[Slot(slice)] : nullptr;
  }

  // Calls `visit` with every bucket inside the window that ends at `now`, oldest first.
  template <typename Visit>
  void ForEach(absl::Time now, Visit visit) const {
    const int64_t end = SliceOf(now);
    const int64_t first = std::max(end, newest_) - size() + 1;
    for (int64_t slice = first; slice <= std::min(end, newest_); ++slice) {
      visit(buckets_[Slot(slice)]);
    }
  }

  void Clear() { std::fill(buckets_.begin(), buckets_.end(), empty_); }

 private:
  int64_t size() const { return static_cast<int64_t>(buckets_.size()); }
  int64_t SliceOf(absl::Time time) const {
    const int64_t ns = absl::ToUnixNanos(time);
    return ns / slice_ns_ - (ns % slice_ns_ < 0 ? 1 : 0);
  }
  size_t Slot(int64_t slice) const {
    return static_cast<size_t>(((slice % size()) + size()) % size());
  }
  void Advance(int64_t slice) {
    for (int64_t s = std::max(newest_ + 1, slice - size() + 1); s <= slice; ++s) {
      buckets_[Slot(s)] = empty_;
    }
    newest_ = slice;
  }

  const int64_t slice_ns_;
  const Bucket empty_;
  std::vector<Bucket> buckets_;  // slice s is at s modulo size
  // Latest slice seen. Far enough from the edges of the type that sizes can be subtracted.
  int64_t newest_ = INT64_MIN / 2;
};

}  // namespace condense

#endif  // CONDENSE_ENGINE_QUALITY_BUCKET_RING_H_
