#ifndef CONDENSE_CACHE_HEAD_POOL_H_
#define CONDENSE_CACHE_HEAD_POOL_H_

// The memory account of one unit (layer, KV head), all sequences together: how much it was given,
// how far it may grow, where it must stop.

#include <cstdint>

#include "absl/status/status.h"

namespace condense {

struct HeadPoolOptions {
  double preallocate = 0.60;             // of the estimated maximum: the capacity at the start
  double grow_at = 0.80;                 // filled so far, the capacity grows ...
  double grow_by = 0.20;                 // ... by this share of the capacity at the start
  int64_t cap_bytes = int64_t{2} << 30;  // never beyond; 0: no cap but the arena

  // INVALID_ARGUMENT naming the field, its value and its limits.
  absl::Status Validate() const;
};

// An account, not memory: blocks of all units come from shared slabs, so that a unit with little in
// it does not hold a slab of its own (90 units of half empty slabs would outweigh a compacted
// sequence). Threads: thread-compatible, owner is the engine thread.
class HeadPool {
 public:
  // `estimate_bytes`: what the unit would hold if all memory were in use.
  HeadPool(const HeadPoolOptions& options, int64_t estimate_bytes);

  bool CanTake(int64_t bytes) const { return used_bytes_ + bytes <= cap_bytes_; }
  // Counts bytes in and lets the capacity grow ahead of need. A swap may pass the cap for as long
  // as front and back both live.
  void Take(int64_t bytes);
  void Give(int64_t bytes);

  int64_t used_bytes() const { return used_bytes_; }
  int64_t capacity_bytes() const { return capacity_bytes_; }
  int64_t cap_bytes() const { return cap_bytes_; }
  // How often the capacity grew; one growth may be of several steps.
  int64_t num_growths() const { return num_growths_; }
  // Of the most it may ever hold.
  double fill() const { return static_cast<double>(used_bytes_) / static_cast<double>(cap_bytes_); }

 private:
  double grow_at_;
  int64_t step_bytes_;
  int64_t cap_bytes_;
  int64_t capacity_bytes_;
  int64_t used_bytes_ = 0;
  int64_t num_growths_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_HEAD_POOL_H_
