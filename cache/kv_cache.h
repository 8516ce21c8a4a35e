#ifndef CONDENSE_CACHE_KV_CACHE_H_
#define CONDENSE_CACHE_KV_CACHE_H_

// The KV cache as the engine sees it: reserve room, read lists, commit, release.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "cache/arena.h"
#include "cache/block_pool.h"
#include "cache/block_table.h"
#include "cache/compaction_job.h"
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
  // Of the arena, kept free for the backs of compaction jobs: neither TryReserve nor Fits takes it.
  int64_t staging_bytes = 0;
  HeadPoolOptions pool;
  // For tests: blocks that nobody holds are full of NaN, so that whoever reads one shows it.
  bool poison_freed = false;
};

// Bytes, all from the arena's own books.
struct KvCacheStats {
  int64_t arena_bytes = 0;
  int64_t slab_bytes = 0;      // taken by block pools
  int64_t used_bytes = 0;      // blocks held by sequences
  int64_t staging_bytes = 0;   // blocks held by compaction jobs alone
  int64_t slack_bytes = 0;     // slab_bytes - used_bytes - staging_bytes
  int64_t logical_tokens = 0;  // tokens whose keys and values are represented
  int64_t entries = 0;         // committed, of all units: num_units of them are a token's
  int64_t sequences = 0;       // that hold tokens or room for them
  // Over all head pools. Capacity is an account of what units were given, not memory that is held.
  int64_t pool_capacity_bytes = 0;
  int64_t pool_growths = 0;  // times that a pool's capacity grew, since the start
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
  std::vector<KvTicket> tickets;   // [L * G]: of the job that a unit's blocks are pinned for, or 0
  int64_t committed_tokens = 0;    // tokens whose entries are written
};

// The blocks that a compaction job writes.
struct KvStage {
  KvTicket ticket = 0;
  std::vector<KvBlockRef> blocks;  // counts 0
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
  // Returns every block; those of units with a job out when the job's ticket is settled. The
  // sequence is empty afterwards and may be filled again.
  // REQUIRES: no submitted step reads them.
  void Release(KvSequence* sequence);

  // `num_staged` blocks from the staging reserve for a back that is to replace the sealed blocks
  // [first_block, first_block + num_blocks) of a unit, which are pinned from now on. Nothing if the
  // reserve has no room. Each ticket is settled once, by Swap or Unstage.
  // REQUIRES: no job of this unit is out; its layer sees everything (blocks of a sliding-window
  // layer leave at the front by themselves).
  std::optional<KvStage> TryStage(KvSequence* sequence, int32_t unit, int32_t first_block,
                                  int32_t num_blocks, KvFormat format, KvBlockFlags flags,
                                  int32_t num_staged);
  // The back is good: `back`, staged blocks with counts, in order, takes the place of the range;
  // the range and unused staged blocks are freed. False if the sequence was released meanwhile: all
  // is freed.
  bool Swap(KvTicket ticket, std::span<const KvBlockRef> back);
  // The back is not wanted: the front stays as it is.
  void Unstage(KvTicket ticket);
  // The most blocks of this kind that TryStage could hand out now.
  int64_t StageableBlocks(KvFormat format, KvBlockFlags flags) const;

  // Fills an empty sequence with a copy of what `from` has committed. False if there is no room.
  // REQUIRES: no job of `from` is out.
  [[nodiscard]] bool TryCopy(const KvSequence& from, KvSequence* to);

  // Whether a new sequence of `tokens` tokens would fit into what is free now, leaving room for
  // `reserve_tokens` more in whichever sequences. Without windows and reserve exactly what
  // TryReserve would say. A sliding-window layer counts with its largest need over all cuts into
  // steps of up to step_tokens; the reserve counts in whole blocks of its own, at most one per unit
  // too many.
  bool Fits(int64_t tokens, int64_t reserve_tokens) const;
  // The longest sequence that an empty cache can hold however it is cut into steps of up to
  // step_tokens. At most 2^31 - 1, which only a cache of nothing but sliding-window layers reaches.
  int64_t max_sequence_tokens() const { return max_sequence_tokens_; }

  // Gives pages that nobody uses back to the machine: a little at each step, all but a warm rest
  // when the engine is idle.
  void Trim(bool idle);

  KvHolding Held(const KvSequence& sequence) const;
  int64_t BlockBytes(const KvBlockRef& block) const {
    return KvBlockBytes(block.format, layout_.block, block.flags);
  }
  const HeadPool& pool(int32_t unit) const { return pools_[unit]; }
  KvCacheStats Stats() const;
  // Of all live sequences: the sum of KvHolding::bytes_16bit.
  int64_t Bytes16Bit() const;
  const KvLayout& layout() const { return layout_; }
  std::byte* arena() const { return arena_.data(); }

 private:
  // A compaction job's blocks while it is out.
  struct Stage {
    KvSequence* sequence = nullptr;  // null: released meanwhile
    int32_t unit = 0;
    int32_t first_block = 0;
    int32_t num_blocks = 0;
    std::vector<KvBlockRef> back;     // all that were staged
    std::vector<KvBlockRef> orphans;  // the released sequence's blocks of this unit
  };

  KvCache(Backend* backend, KvLayout layout, const KvCacheOptions& options, Buffer buffer);

  BlockPool* PoolOf(int64_t block_bytes);
  std::optional<KvBlockRef> TryAllocate(KvFormat format, KvBlockFlags flags);
  void Free(const KvBlockRef& block);
  // Appends copies of a sequence's blocks to `copies`. False if there is no room: what was taken is
  // there too.
  bool TryCopyBlocks(int32_t unit, std::span<const KvBlockRef> blocks,
                     std::vector<KvBlockRef>* copies);
  // Frees a block that a sequence held in `unit`.
  void FreeOf(int32_t unit, const KvBlockRef& block);
  // Slabs that sequences may take: what is free but for the unused part of the staging reserve.
  int64_t OpenSlabs() const;
  // Blocks that one unit of `layer` holds at most while a sequence of `tokens` tokens grows.
  int64_t PeakBlocks(int32_t layer, int64_t tokens) const;
  // Whether a new sequence of `tokens` tokens and `reserve_tokens` more fit into `open_slabs` and
  // under the caps, beside what is `used` now or in an empty cache.
  bool FitsInto(int64_t tokens, int64_t reserve_tokens, bool empty_cache) const;
  int64_t LongestSequence() const;
  int64_t WholeBlocks(int64_t tokens) const;
  void ReturnFront(int32_t unit, BlockTable* table, int32_t num_blocks);
  Stage TakeStage(KvTicket ticket);

  Backend* const backend_;
  const KvLayout layout_;
  const int32_t step_tokens_;
  const int64_t block_bytes_16bit_;
  Arena arena_;
  const int64_t staging_slabs_;                          // the reserve
  std::vector<std::unique_ptr<BlockPool>> block_pools_;  // by block size; the first is for 16 bits
  std::vector<HeadPool> pools_;                          // [L * G]
  absl::flat_hash_map<KvTicket, Stage> stages_;
  KvTicket last_ticket_ = 0;
  int64_t staged_bytes_ = 0;  // of backs that are not swapped in, and orphans
  int64_t back_bytes_ = 0;    // of backs alone
  int64_t max_sequence_tokens_ = 0;
  std::vector<std::byte> poison_;  // of a slab; empty: freed blocks keep their contents
  int64_t num_sequences_ = 0;      // not empty
  int64_t logical_tokens_ = 0;
  int64_t entries_ = 0;       // committed, over all tables
  int64_t whole_blocks_ = 0;  // that the committed tokens of all sequences fill, per unit
};

}  // namespace condense

#endif  // CONDENSE_CACHE_KV_CACHE_H_
