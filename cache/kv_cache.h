#ifndef CONDENSE_CACHE_KV_CACHE_H_
#define CONDENSE_CACHE_KV_CACHE_H_

// The KV cache as the engine sees it: reserve room, read lists, commit, release.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "cache/arena.h"
#include "cache/block_table.h"
#include "cache/head_pool.h"
#include "cache/kv_layout.h"
#include "kernels/backend.h"

namespace condense {

// KvBlockRef::offset_64 has 32 bits.
inline constexpr int64_t kMaxKvArenaBytes = int64_t{64} << 32;

struct KvCacheOptions {
  int64_t arena_bytes = 0;  // reserved at start, never grown
  // The most tokens that one step adds to a sequence. Bounds what a sliding-window layer holds, so
  // Fits() and max_sequence_tokens() count with it; TryReserve takes more if there is room.
  int32_t step_tokens = 512;
};

// Bytes, all from the arena's own books.
struct KvCacheStats {
  int64_t arena_bytes = 0;
  int64_t slab_bytes = 0;      // taken by head pools
  int64_t used_bytes = 0;      // blocks held by sequences
  int64_t slack_bytes = 0;     // slab_bytes - used_bytes
  int64_t logical_tokens = 0;  // tokens whose keys and values are represented
  int64_t sequences = 0;       // that hold tokens or room for them
};

// What one sequence occupies.
struct KvHolding {
  int64_t entries = 0;  // over all units
  int64_t bytes = 0;    // of whole blocks, reserved ones included
  // Of the same tokens in whole 16-bit blocks. Sliding-window layers count as they are on both
  // sides.
  int64_t bytes_16bit = 0;
};

// One sequence's block tables, one per unit. Created by KvCache::Open; Release it before it dies.
struct KvSequence {
  bool empty() const { return committed_tokens == 0 && tables.front().blocks().empty(); }

  std::vector<BlockTable> tables;  // [L * G]
  int64_t committed_tokens = 0;    // tokens whose entries are written
};

// Threads: thread-compatible, owner is the engine thread.
class KvCache {
 public:
  // RESOURCE_EXHAUSTED if the arena cannot be had or holds less than one slab per unit;
  // INVALID_ARGUMENT for a bad layout or option. The backend must outlive the cache.
  static absl::StatusOr<std::unique_ptr<KvCache>> Make(Backend* backend, KvLayout layout,
                                                       KvCacheOptions options);
  KvCache(const KvCache&) = delete;
  KvCache& operator=(const KvCache&) = delete;

  std::unique_ptr<KvSequence> Open();
  // Room for `tokens` entries after the committed ones in every unit, or nothing at all and false.
  // Idempotent: room that is already there counts. Reserved entries appear in Lists().
  [[nodiscard]] bool TryReserve(KvSequence* sequence, int32_t tokens);
  // Fills lists[G] with the unit lists of `layer` that end with `new_tokens` entries after the
  // committed ones: what a step at this layer writes and reads. Pointers hold until the next call
  // that changes the sequence, counts until the next Lists() of this layer.
  // REQUIRES: new_tokens entries are reserved.
  void Lists(KvSequence* sequence, int32_t layer, int32_t new_tokens, KvList* lists);
  // The step that wrote `tokens` entries is done. Sliding-window layers return blocks that no later
  // row can see.
  // REQUIRES: `tokens` entries are reserved.
  void Commit(KvSequence* sequence, int32_t tokens);
  // Returns every block. The sequence is empty afterwards and may be filled again.
  // REQUIRES: no submitted step reads them.
  void Release(KvSequence* sequence);

  // Whether a new sequence of `tokens` tokens would fit into what is free now, leaving room for
  // `reserve_tokens` more in whichever sequences. Without windows and reserve exactly what
  // TryReserve would say. A sliding-window layer counts with its largest need over all cuts into
  // steps of up to step_tokens; the reserve counts in whole blocks of its own, at most one per unit
  // too many.
  bool Fits(int64_t tokens, int64_t reserve_tokens) const;
  // The longest sequence that an empty cache can hold however it is cut into steps of up to
  // step_tokens. At most 2^31 - 1, which only a cache of nothing but sliding-window layers reaches.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

  KvHolding Held(const KvSequence& sequence) const;
  KvCacheStats Stats() const;
  const KvLayout& layout() const { return layout_; }
  std::byte* arena() const { return arena_.data(); }

 private:
  KvCache(KvLayout layout, int32_t step_tokens, Buffer buffer);

  // Blocks that one unit of `layer` holds at most while a sequence of `tokens` tokens grows.
  int64_t PeakBlocks(int32_t layer, int64_t tokens) const;
  // Slabs that must be free for a new sequence of `tokens` tokens and `reserve_tokens` more.
  int64_t SlabsToFit(int64_t tokens, int64_t reserve_tokens) const;
  int64_t LongestSequence() const;
  void ReturnFront(BlockTable* table, HeadPool* pool, int32_t num_blocks);

  const KvLayout layout_;
  const int32_t step_tokens_;
  Arena arena_;
  std::vector<HeadPool> pools_;  // [L * G]
  int64_t max_sequence_tokens_ = 0;
  int64_t num_sequences_ = 0;  // not empty
  int64_t logical_tokens_ = 0;
};

}  // namespace condense

#endif  // CONDENSE_CACHE_KV_CACHE_H_
