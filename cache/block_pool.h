#ifndef CONDENSE_CACHE_BLOCK_POOL_H_
#define CONDENSE_CACHE_BLOCK_POOL_H_

// The blocks of one size, of all units and sequences together: slabs from the arena, carved up.

#include <array>
#include <cstdint>
#include <list>
#include <optional>

#include "absl/container/flat_hash_map.h"
#include "cache/arena.h"

namespace condense {

// Owns: the slabs it holds; a slab goes back to the arena with its last block.
// Threads: thread-compatible, owner is the engine thread.
// Cost: allocate and free O(1) amortised.
class BlockPool {
 public:
  // The arena outlives the pool.
  BlockPool(Arena* arena, int64_t block_bytes);

  // The arena offset of a block, its contents unspecified; nothing when the pool has no free block
  // and the arena no free slab.
  [[nodiscard]] std::optional<int64_t> TryAllocate();
  // REQUIRES: the block came from this pool and was not freed since.
  void Free(int64_t offset);

  // Slabs that the arena must give before `blocks` more blocks can be allocated.
  int64_t SlabsFor(int64_t blocks) const;
  int64_t block_bytes() const { return block_bytes_; }
  int64_t used_blocks() const { return used_blocks_; }
  int64_t used_bytes() const { return used_blocks_ * block_bytes_; }
  int64_t slab_bytes() const { return num_slabs() * arena_->slab_bytes(); }

 private:
  // Which blocks of a slab are free; bit i of word i / 64.
  static constexpr int kMaskWords = 4;
  struct Slab {
    int64_t offset = 0;  // in the arena
    int32_t num_free = 0;
    std::array<uint64_t, kMaskWords> free_blocks = {};
  };
  using SlabList = std::list<Slab>;

  int64_t num_slabs() const { return static_cast<int64_t>(slabs_.size()); }
  bool TryGrow();

  Arena* arena_;
  int64_t block_bytes_;
  int32_t blocks_per_slab_;
  int64_t used_blocks_ = 0;
  // The front slab is filled first. A full slab that gets a block back moves to the front: the
  // fuller are filled up while the emptier get their chance to drain.
  SlabList partial_;
  SlabList full_;
  absl::flat_hash_map<int64_t, SlabList::iterator> slabs_;  // by offset
};

}  // namespace condense

#endif  // CONDENSE_CACHE_BLOCK_POOL_H_
