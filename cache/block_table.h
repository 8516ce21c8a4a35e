#ifndef CONDENSE_CACHE_BLOCK_TABLE_H_
#define CONDENSE_CACHE_BLOCK_TABLE_H_

// The ordered blocks of one unit of one sequence: sealed blocks, the open block, reserved blocks.

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/kv_block.h"

namespace condense {

// Blocks stand in logical order: positions ascend. Sealed blocks come first and never change; the
// open block holds the newest entries, fewer than B; blocks behind it are room for entries to come.
// Owns: the order and the counts. The memory belongs to the cache's pools: who clears a table frees
// its blocks. Threads: thread-compatible, owner is the engine thread.
class BlockTable {
 public:
  explicit BlockTable(int32_t block_tokens) : block_tokens_(block_tokens) {}

  // Blocks to append before `tokens` entries fit behind the committed ones.
  int64_t BlocksFor(int64_t tokens) const;
  // Room for B more entries.
  void Append(KvBlockRef block);
  // The committed entries and `tokens` new ones, counts filled in. Valid until the next call.
  // REQUIRES: BlocksFor(tokens) == 0.
  KvList List(int32_t tokens);
  // The next `tokens` entries are written. REQUIRES: BlocksFor(tokens) == 0.
  void Commit(int32_t tokens);

  // How many sealed blocks at the front can go while at least `tokens` committed entries stay.
  int32_t NumDroppable(int32_t tokens) const;
  // REQUIRES: that many blocks are sealed.
  void DropFront(int32_t num_blocks);
  // `back`, with counts, takes the place of the sealed blocks [first, first + num_blocks).
  // REQUIRES: they are sealed.
  void Replace(int32_t first, int32_t num_blocks, std::span<const KvBlockRef> back);
  void Clear();
  // The same table over other blocks, one for one. REQUIRES: as many as there are.
  void SetBlocks(std::span<const KvBlockRef> blocks);

  std::span<const KvBlockRef> blocks() const { return blocks_; }
  int32_t num_sealed() const { return num_sealed_; }
  // Position of the first entry of a block; for one that Replace brought in, of the range it stands
  // for.
  int32_t first_position(int32_t block) const { return first_positions_[block]; }
  int32_t committed_entries() const { return sealed_entries_ + open_entries_; }

 private:
  int32_t num_unsealed() const;

  int32_t block_tokens_;  // B
  std::vector<KvBlockRef> blocks_;
  std::vector<int32_t> first_positions_;  // of blocks_
  int32_t next_position_ = 0;             // of the next block to be appended
  int32_t num_sealed_ = 0;
  int32_t sealed_entries_ = 0;  // sum of their counts
  int32_t open_entries_ = 0;    // committed entries of the open block, in [0, B)
};

}  // namespace condense

#endif  // CONDENSE_CACHE_BLOCK_TABLE_H_
