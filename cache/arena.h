#ifndef CONDENSE_CACHE_ARENA_H_
#define CONDENSE_CACHE_ARENA_H_

// The one piece of backend memory that holds all keys and values, cut into slabs of equal size.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "kernels/backend.h"

namespace condense {

// Owns: the buffer. Slabs are named by their byte offset in it.
// Threads: thread-compatible, owner is the engine thread.
// Cost: both operations O(1), no allocation after construction.
class Arena {
 public:
  // REQUIRES: the buffer holds at least one slab.
  // The backend is the buffer's.
  Arena(Backend* backend, Buffer buffer, int64_t slab_bytes);

  // A slab that nobody holds, its contents unspecified; nothing when all are out. A slab that was
  // returned is handed out again before one that was never used, so that pages never needed are
  // never touched.
  [[nodiscard]] std::optional<int64_t> TryTake();
  // REQUIRES: `slab` came from TryTake and was not returned since.
  void Return(int64_t slab);
  // Lets the machine have the pages of up to `at_most` returned slabs, those first that were
  // returned first; `keep` of the latest stay warm.
  void Discard(int64_t keep, int64_t at_most);

  std::byte* data() const { return buffer_.data(); }
  int64_t slab_bytes() const { return slab_bytes_; }
  int64_t num_slabs() const { return num_slabs_; }
  int64_t free_slabs() const { return num_slabs_ - num_fresh_used_ + num_returned(); }
  // What the arena occupies: every slab, held or not.
  int64_t size_bytes() const { return num_slabs_ * slab_bytes_; }

 private:
  int64_t num_returned() const { return static_cast<int64_t>(returned_.size()); }

  Backend* const backend_;
  const int64_t slab_bytes_;
  const int64_t num_slabs_;
  Buffer buffer_;
  int64_t num_fresh_used_ = 0;     // slabs below this index were handed out at least once
  std::vector<int64_t> returned_;  // the newest last
  int64_t num_discarded_ = 0;      // of the oldest of them
};

}  // namespace condense

#endif  // CONDENSE_CACHE_ARENA_H_
