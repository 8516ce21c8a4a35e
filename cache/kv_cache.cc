#include "cache/kv_cache.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/check.h"
#include "kernels/base/status_macros.h"
#include "kernels/op_args.h"

namespace condense {
namespace {

// Positions are int32_t.
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

absl::Status CheckOptions(const KvLayout& layout, const KvCacheOptions& options) {
  if (options.step_tokens < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV cache: step_tokens is %d, must be 1 or more", options.step_tokens));
  }
  if (options.arena_bytes > kMaxKvArenaBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV cache: arena_bytes is %d, must be at most %d (256 GiB)",
                        options.arena_bytes, kMaxKvArenaBytes));
  }
  const int64_t least = layout.num_units() * layout.slab_bytes();
  if (options.arena_bytes < least) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV cache: arena_bytes is %d, this model needs at least %d: one slab of %d bytes for each "
        "of "
        "%d layers x %d KV heads",
        options.arena_bytes, least, layout.slab_bytes(), layout.num_layers, layout.num_kv_heads));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Make(Backend* backend, KvLayout layout,
                                                       KvCacheOptions options) {
  RETURN_IF_ERROR(layout.Validate());
  RETURN_IF_ERROR(CheckOptions(layout, options));
  const int64_t whole_slabs = options.arena_bytes / layout.slab_bytes() * layout.slab_bytes();
  ASSIGN_OR_RETURN(Buffer buffer, backend->Allocate(whole_slabs));
  return std::unique_ptr<KvCache>(
      new KvCache(std::move(layout), options.step_tokens, std::move(buffer)));
}

KvCache::KvCache(KvLayout layout, int32_t step_tokens, Buffer buffer)
    : layout_(std::move(layout)),
      step_tokens_(step_tokens),
      arena_(std::move(buffer), layout_.slab_bytes()) {
  const int64_t block_bytes = KvBlockBytes(KvFormat::kK16V16, layout_.block);
  pools_.reserve(layout_.num_units());
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    pools_.emplace_back(&arena_, KvFormat::kK16V16, block_bytes);
  }
  max_sequence_tokens_ = LongestSequence();
}

std::unique_ptr<KvSequence> KvCache::Open() {
  auto sequence = std::make_unique<KvSequence>();
  sequence->tables.assign(layout_.num_units(), BlockTable(layout_.block.block_tokens));
  return sequence;
}

bool KvCache::TryReserve(KvSequence* sequence, int32_t tokens) {
  // Counting before taking makes it all or nothing: no failure is left for the second loop.
  int64_t slabs = 0;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    slabs += pools_[unit].SlabsFor(sequence->tables[unit].BlocksFor(tokens));
  }
  if (slabs > arena_.free_slabs()) return false;
  const bool was_empty = sequence->empty();
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    BlockTable& table = sequence->tables[unit];
    for (int64_t left = table.BlocksFor(tokens); left > 0; --left) {
      const std::optional<KvBlockRef> block = pools_[unit].TryAllocate();
      CHECK(block.has_value());
      table.Append(*block);
    }
  }
  if (was_empty && !sequence->empty()) ++num_sequences_;
  return true;
}

void KvCache::Lists(KvSequence* sequence, int32_t layer, int32_t new_tokens, KvList* lists) {
  for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
    lists[head] = sequence->tables[layout_.unit(layer, head)].List(new_tokens);
  }
}

void KvCache::Commit(KvSequence* sequence, int32_t tokens) {
  for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
    const int32_t window = layout_.window(layer);
    for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
      const int32_t unit = layout_.unit(layer, head);
      BlockTable& table = sequence->tables[unit];
      table.Commit(tokens);
      if (window == 0) continue;
      // The next row sees itself and window - 1 entries before it. Whole attention parts leave, so
      // that parts begin at the same positions however the sequence was cut into steps: results
      // stay the same to the bit.
      const int32_t blocks_per_part = kAttentionPart / layout_.block.block_tokens;
      const int32_t droppable = table.NumDroppable(window - 1);
      ReturnFront(&table, &pools_[unit], droppable / blocks_per_part * blocks_per_part);
    }
  }
  sequence->committed_tokens += tokens;
  logical_tokens_ += tokens;
}

void KvCache::ReturnFront(BlockTable* table, HeadPool* pool, int32_t num_blocks) {
  for (const KvBlockRef& block : table->blocks().first(num_blocks)) pool->Free(block);
  table->DropFront(num_blocks);
}

void KvCache::Release(KvSequence* sequence) {
  if (sequence->empty()) return;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    BlockTable& table = sequence->tables[unit];
    for (const KvBlockRef& block : table.blocks()) pools_[unit].Free(block);
    table.Clear();
  }
  logical_tokens_ -= sequence->committed_tokens;
  sequence->committed_tokens = 0;
  --num_sequences_;
}

int64_t KvCache::PeakBlocks(int32_t layer, int64_t tokens) const {
  const int64_t block_tokens = layout_.block.block_tokens;
  const int64_t whole = (tokens + block_tokens - 1) / block_tokens;
  const int64_t window = layout_.window(layer);
  if (window == 0) return whole;
  // After a Commit less than window - 1 and a part stay; the next step adds its own behind them.
  const int64_t most_entries = window - 2 + kAttentionPart + step_tokens_;
  return std::min(whole, (most_entries + block_tokens - 1) / block_tokens);
}

int64_t KvCache::SlabsToFit(int64_t tokens, int64_t reserve_tokens) const {
  const int64_t block_tokens = layout_.block.block_tokens;
  const int64_t reserve_blocks = (reserve_tokens + block_tokens - 1) / block_tokens;
  int64_t slabs = 0;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const int32_t layer = unit / layout_.num_kv_heads;
    slabs += pools_[unit].SlabsFor(PeakBlocks(layer, tokens) + reserve_blocks);
  }
  return slabs;
}

bool KvCache::Fits(int64_t tokens, int64_t reserve_tokens) const {
  if (std::max(tokens, reserve_tokens) > kMaxTokens) return false;
  return SlabsToFit(tokens, reserve_tokens) <= arena_.free_slabs();
}

int64_t KvCache::LongestSequence() const {
  int64_t fits = 0;
  int64_t too_long = kMaxTokens + 1;
  while (too_long - fits > 1) {
    const int64_t tokens = fits + (too_long - fits) / 2;
    (SlabsToFit(tokens, 0) <= arena_.num_slabs() ? fits : too_long) = tokens;
  }
  return fits;
}

KvHolding KvCache::Held(const KvSequence& sequence) const {
  const int64_t block_tokens = layout_.block.block_tokens;
  const int64_t whole_blocks = (sequence.committed_tokens + block_tokens - 1) / block_tokens;
  KvHolding held;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const BlockTable& table = sequence.tables[unit];
    int64_t bytes = 0;
    for (const KvBlockRef& block : table.blocks())
      bytes += KvBlockBytes(block.format, layout_.block);
    const bool windowed = layout_.window(unit / layout_.num_kv_heads) > 0;
    held.entries += table.committed_entries();
    held.bytes += bytes;
    held.bytes_16bit +=
        windowed ? bytes : whole_blocks * KvBlockBytes(KvFormat::kK16V16, layout_.block);
  }
  return held;
}

KvCacheStats KvCache::Stats() const {
  KvCacheStats stats;
  stats.arena_bytes = arena_.size_bytes();
  for (const HeadPool& pool : pools_) {
    stats.slab_bytes += pool.slab_bytes();
    stats.used_bytes += pool.used_bytes();
  }
  stats.slack_bytes = stats.slab_bytes - stats.used_bytes;
  stats.logical_tokens = logical_tokens_;
  stats.sequences = num_sequences_;
  return stats;
}

}  // namespace condense
