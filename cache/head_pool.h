#ifndef CONDENSE_CACHE_HEAD_POOL_H_
#define CONDENSE_CACHE_HEAD_POOL_H_

// The memory of one unit (layer, KV head), all sequences together: slabs from the arena, carved
// into blocks.

#include <cstdint>
#include <list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "cache/arena.h"
#include "kernels/kv_block.h"

namespace condense {

// Owns: the slabs it holds; a slab goes back to the arena with its last block.
// Threads: thread-compatible, owner is the engine thread.
// Cost: allocate and free O(1) amortised.
class HeadPool {
 public:
  // The arena outlives the pool. A slab holds blocks of one format.
  HeadPool(Arena* arena, KvFormat format, int64_t block_bytes);

  // A block with count 0, its contents unspecified; nothing when the pool has no free block and the
  // arena no free slab.
  [[nodiscard]] std::optional<KvBlockRef> TryAllocate();
  // REQUIRES: the block came from this pool and was not freed since.
  void Free(KvBlockRef block);

  // Slabs that the arena must give before `blocks` more blocks can be allocated.
  int64_t SlabsFor(int64_t blocks) const;
  int64_t used_bytes() const { return used_blocks_ * block_bytes_; }
  int64_t slab_bytes() const { return num_slabs() * arena_->slab_bytes(); }

 private:
  struct Slab {
    int64_t offset = 0;        // in the arena
    uint64_t free_blocks = 0;  // bit i: block i is free
  };
  using SlabList = std::list<Slab>;

  int64_t num_slabs() const { return static_cast<int64_t>(slabs_.size()); }
  bool TryGrow();

  Arena* arena_;
  KvFormat format_;
  int64_t block_bytes_;
  int64_t blocks_per_slab_;
  uint64_t all_free_;  // mask of a slab without a used block
  int64_t used_blocks_ = 0;
  // The front slab is filled first. A full slab that gets a block back moves to the front: the
  // fuller are filled up while the emptier get their chance to drain.
  SlabList partial_;
  SlabList full_;
  absl::flat_hash_map<int64_t, SlabList::iterator> slabs_;  // by offset
};

}  // namespace condense

#endif  // CONDENSE_CACHE_HEAD_POOL_H_
