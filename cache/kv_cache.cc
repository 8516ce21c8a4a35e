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

// Two of them are a NaN, as an element and as a scale.
constexpr std::byte kPoison{0x7e};

// Positions are int32_t.
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();

// Of returned memory: what stays warm, and what is given back in one step at most. A step must not
// wait for the kernel, and prompts come in waves.
constexpr int64_t kWarmBytes = 16 << 20;
constexpr int64_t kTrimBytes = 1 << 20;

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

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
  RETURN_IF_ERROR(options.pool.Validate());
  if (options.staging_bytes < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("KV cache: staging_bytes is %d, must be 0 or more", options.staging_bytes));
  }
  const int64_t round = layout.num_units() * KvBlockBytes(KvFormat::kK16V16, layout.block);
  const int64_t least =
      RoundUp(round, layout.slab_bytes()) + RoundUp(options.staging_bytes, layout.slab_bytes());
  if (options.arena_bytes < least) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "KV cache: arena_bytes is %d, this model needs at least %d: one block for each of %d "
        "layers x %d KV heads and the staging reserve of %d bytes, in slabs of %d bytes",
        options.arena_bytes, least, layout.num_layers, layout.num_kv_heads, options.staging_bytes,
        layout.slab_bytes()));
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
      new KvCache(backend, std::move(layout), options, std::move(buffer)));
}

KvCache::KvCache(Backend* backend, KvLayout layout, const KvCacheOptions& options, Buffer buffer)
    : backend_(backend),
      layout_(std::move(layout)),
      step_tokens_(options.step_tokens),
      block_bytes_16bit_(KvBlockBytes(KvFormat::kK16V16, layout_.block)),
      arena_(backend, std::move(buffer), layout_.slab_bytes()),
      staging_slabs_(RoundUp(options.staging_bytes, layout_.slab_bytes()) / layout_.slab_bytes()),
      pools_(layout_.num_units(),
             HeadPool(options.pool, arena_.size_bytes() / layout_.num_units())) {
  block_pools_.push_back(std::make_unique<BlockPool>(&arena_, block_bytes_16bit_));
  max_sequence_tokens_ = LongestSequence();
  if (!options.poison_freed) return;
  poison_.assign(layout_.slab_bytes(), kPoison);
  for (int64_t at = 0; at < arena_.size_bytes(); at += layout_.slab_bytes()) {
    backend_->CopyToDevice(arena() + at, poison_.data(), layout_.slab_bytes());
  }
}

BlockPool* KvCache::PoolOf(int64_t block_bytes) {
  for (const auto& pool : block_pools_) {
    if (pool->block_bytes() == block_bytes) return pool.get();
  }
  block_pools_.push_back(std::make_unique<BlockPool>(&arena_, block_bytes));
  return block_pools_.back().get();
}

std::optional<KvBlockRef> KvCache::TryAllocate(KvFormat format, KvBlockFlags flags) {
  const std::optional<int64_t> offset =
      PoolOf(KvBlockBytes(format, layout_.block, flags))->TryAllocate();
  if (!offset.has_value()) return std::nullopt;
  return KvBlockRef{
      .offset_64 = static_cast<uint32_t>(*offset / 64), .format = format, .flags = flags};
}

void KvCache::Free(const KvBlockRef& block) {
  const int64_t offset = int64_t{block.offset_64} * 64;
  if (!poison_.empty()) {
    backend_->CopyToDevice(arena() + offset, poison_.data(), BlockBytes(block));
  }
  PoolOf(BlockBytes(block))->Free(offset);
}

void KvCache::FreeOf(int32_t unit, const KvBlockRef& block) {
  pools_[unit].Give(BlockBytes(block));
  Free(block);
}

int64_t KvCache::OpenSlabs() const {
  const int64_t out = RoundUp(back_bytes_, layout_.slab_bytes()) / layout_.slab_bytes();
  return arena_.free_slabs() - std::max<int64_t>(0, staging_slabs_ - out);
}

std::unique_ptr<KvSequence> KvCache::Open() {
  auto sequence = std::make_unique<KvSequence>();
  sequence->tables.assign(layout_.num_units(), BlockTable(layout_.block.block_tokens));
  sequence->tickets.assign(layout_.num_units(), 0);
  return sequence;
}

bool KvCache::TryReserve(KvSequence* sequence, int32_t tokens) {
  // Counting before taking makes it all or nothing: no failure is left for the second loop.
  int64_t blocks = 0;
  int64_t most = 0;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const int64_t needed = sequence->tables[unit].BlocksFor(tokens);
    if (needed > 0 && !pools_[unit].CanTake(needed * block_bytes_16bit_)) return false;
    blocks += needed;
    most = std::max(most, needed);
  }
  if (blocks == 0) return true;
  if (block_pools_.front()->SlabsFor(blocks) > std::max<int64_t>(0, OpenSlabs())) return false;
  const bool was_empty = sequence->empty();
  // By age, not by unit: blocks that are compacted at the same time lie in the same slabs.
  for (int64_t age = 0; age < most; ++age) {
    for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
      BlockTable& table = sequence->tables[unit];
      if (table.BlocksFor(tokens) == 0) continue;
      const std::optional<KvBlockRef> block = TryAllocate(KvFormat::kK16V16, 0);
      CHECK(block.has_value());
      pools_[unit].Take(block_bytes_16bit_);
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
      entries_ += tokens;
      if (window == 0) continue;
      // The next row sees itself and window - 1 entries before it. Whole attention parts leave, so
      // that parts begin at the same positions however the sequence was cut into steps: results
      // stay the same to the bit.
      const int32_t blocks_per_part = kAttentionPart / layout_.block.block_tokens;
      const int32_t droppable = table.NumDroppable(window - 1);
      ReturnFront(unit, &table, droppable / blocks_per_part * blocks_per_part);
    }
  }
  whole_blocks_ +=
      WholeBlocks(sequence->committed_tokens + tokens) - WholeBlocks(sequence->committed_tokens);
  sequence->committed_tokens += tokens;
  logical_tokens_ += tokens;
}

void KvCache::ReturnFront(int32_t unit, BlockTable* table, int32_t num_blocks) {
  for (const KvBlockRef& block : table->blocks().first(num_blocks)) FreeOf(unit, block);
  entries_ -= table->committed_entries();
  table->DropFront(num_blocks);
  entries_ += table->committed_entries();
}

void KvCache::Release(KvSequence* sequence) {
  if (sequence->empty()) return;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    BlockTable& table = sequence->tables[unit];
    if (const KvTicket ticket = std::exchange(sequence->tickets[unit], 0); ticket != 0) {
      // The job still reads them.
      Stage& stage = stages_.at(ticket);
      stage.sequence = nullptr;
      stage.orphans.assign(table.blocks().begin(), table.blocks().end());
      for (const KvBlockRef& block : stage.orphans) {
        pools_[unit].Give(BlockBytes(block));
        staged_bytes_ += BlockBytes(block);
      }
    } else {
      for (const KvBlockRef& block : table.blocks()) FreeOf(unit, block);
    }
    entries_ -= table.committed_entries();
    table.Clear();
  }
  logical_tokens_ -= sequence->committed_tokens;
  whole_blocks_ -= WholeBlocks(sequence->committed_tokens);
  sequence->committed_tokens = 0;
  --num_sequences_;
}

int64_t KvCache::StageableBlocks(KvFormat format, KvBlockFlags flags) const {
  const int64_t left = staging_slabs_ * layout_.slab_bytes() - back_bytes_;
  return std::max<int64_t>(0, left / KvBlockBytes(format, layout_.block, flags));
}

std::optional<KvStage> KvCache::TryStage(KvSequence* sequence, int32_t unit, int32_t first_block,
                                         int32_t num_blocks, KvFormat format, KvBlockFlags flags,
                                         int32_t num_staged) {
  CHECK_EQ(sequence->tickets[unit], 0);
  CHECK_EQ(layout_.window_of_unit(unit), 0);
  CHECK_LE(first_block + num_blocks, sequence->tables[unit].num_sealed());
  const int64_t block_bytes = KvBlockBytes(format, layout_.block, flags);
  if (StageableBlocks(format, flags) < num_staged) return std::nullopt;
  if (PoolOf(block_bytes)->SlabsFor(num_staged) > arena_.free_slabs()) return std::nullopt;
  KvStage result{.ticket = ++last_ticket_};
  for (int32_t i = 0; i < num_staged; ++i) {
    result.blocks.push_back(TryAllocate(format, flags).value());
  }
  back_bytes_ += num_staged * block_bytes;
  staged_bytes_ += num_staged * block_bytes;
  sequence->tickets[unit] = result.ticket;
  stages_[result.ticket] = {.sequence = sequence,
                            .unit = unit,
                            .first_block = first_block,
                            .num_blocks = num_blocks,
                            .back = result.blocks};
  return result;
}

KvCache::Stage KvCache::TakeStage(KvTicket ticket) {
  const auto found = stages_.find(ticket);
  CHECK(found != stages_.end());
  Stage stage = std::move(found->second);
  stages_.erase(found);
  for (const KvBlockRef& block : stage.back) {
    back_bytes_ -= BlockBytes(block);
    staged_bytes_ -= BlockBytes(block);
  }
  for (const KvBlockRef& block : stage.orphans) {
    staged_bytes_ -= BlockBytes(block);
    Free(block);
  }
  if (stage.sequence != nullptr) stage.sequence->tickets[stage.unit] = 0;
  return stage;
}

bool KvCache::Swap(KvTicket ticket, std::span<const KvBlockRef> back) {
  const Stage stage = TakeStage(ticket);
  const size_t used = stage.sequence == nullptr ? 0 : back.size();
  CHECK_LE(used, stage.back.size());
  for (size_t i = 0; i < stage.back.size(); ++i) {
    if (i >= used) {
      Free(stage.back[i]);
      continue;
    }
    CHECK_EQ(back[i].offset_64, stage.back[i].offset_64);
    pools_[stage.unit].Take(BlockBytes(back[i]));
  }
  if (stage.sequence == nullptr) return false;
  BlockTable& table = stage.sequence->tables[stage.unit];
  for (const KvBlockRef& block : table.blocks().subspan(stage.first_block, stage.num_blocks)) {
    FreeOf(stage.unit, block);
  }
  entries_ -= table.committed_entries();
  table.Replace(stage.first_block, stage.num_blocks, back);
  entries_ += table.committed_entries();
  return true;
}

void KvCache::Unstage(KvTicket ticket) {
  for (const KvBlockRef& block : TakeStage(ticket).back) Free(block);
}

bool KvCache::TryCopyBlocks(int32_t unit, std::span<const KvBlockRef> blocks,
                            std::vector<KvBlockRef>* copies) {
  std::vector<std::byte> bytes;
  for (const KvBlockRef& block : blocks) {
    const int64_t size = BlockBytes(block);
    if (!pools_[unit].CanTake(size)) return false;
    std::optional<KvBlockRef> copy = TryAllocate(block.format, block.flags);
    if (!copy.has_value()) return false;
    copy->count = block.count;
    pools_[unit].Take(size);
    copies->push_back(*copy);
    if (OpenSlabs() < 0) return false;
    bytes.resize(size);
    backend_->CopyToHost(bytes.data(), arena() + int64_t{block.offset_64} * 64, size);
    static_cast<void>(backend_->Synchronize());
    backend_->CopyToDevice(arena() + int64_t{copy->offset_64} * 64, bytes.data(), size);
  }
  return true;
}

bool KvCache::TryCopy(const KvSequence& from, KvSequence* to) {
  CHECK(to->empty());
  std::vector<std::vector<KvBlockRef>> copies(layout_.num_units());
  bool done = true;
  for (int32_t unit = 0; done && unit < layout_.num_units(); ++unit) {
    CHECK_EQ(from.tickets[unit], 0);
    done = TryCopyBlocks(unit, from.tables[unit].blocks(), &copies[unit]);
  }
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    if (done) {
      to->tables[unit] = from.tables[unit];
      to->tables[unit].SetBlocks(copies[unit]);
      entries_ += from.tables[unit].committed_entries();
      continue;
    }
    for (const KvBlockRef& block : copies[unit]) FreeOf(unit, block);
  }
  if (!done) return false;
  to->committed_tokens = from.committed_tokens;
  logical_tokens_ += from.committed_tokens;
  whole_blocks_ += WholeBlocks(from.committed_tokens);
  if (!from.empty()) ++num_sequences_;
  return true;
}

int64_t KvCache::PeakBlocks(int32_t layer, int64_t tokens) const {
  const int64_t block_tokens = layout_.block.block_tokens;
  const int64_t whole = WholeBlocks(tokens);
  const int64_t window = layout_.window(layer);
  if (window == 0) return whole;
  // After a Commit less than window - 1 and a part stay; the next step adds its own behind them.
  const int64_t most_entries = window - 2 + kAttentionPart + step_tokens_;
  return std::min(whole, (most_entries + block_tokens - 1) / block_tokens);
}

bool KvCache::FitsInto(int64_t tokens, int64_t reserve_tokens, bool empty_cache) const {
  const int64_t reserve_blocks = WholeBlocks(reserve_tokens);
  int64_t blocks = 0;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const int64_t needed = PeakBlocks(unit / layout_.num_kv_heads, tokens) + reserve_blocks;
    const int64_t used = empty_cache ? 0 : pools_[unit].used_bytes();
    if (needed * block_bytes_16bit_ + used > pools_[unit].cap_bytes()) return false;
    blocks += needed;
  }
  if (!empty_cache) {
    return block_pools_.front()->SlabsFor(blocks) <= std::max<int64_t>(0, OpenSlabs());
  }
  const int64_t per_slab = layout_.slab_bytes() / block_bytes_16bit_;
  return blocks <= (arena_.num_slabs() - staging_slabs_) * per_slab;
}

bool KvCache::Fits(int64_t tokens, int64_t reserve_tokens) const {
  if (std::max(tokens, reserve_tokens) > kMaxTokens) return false;
  return FitsInto(tokens, reserve_tokens, /*empty_cache=*/false);
}

int64_t KvCache::LongestSequence() const {
  int64_t fits = 0;
  int64_t too_long = kMaxTokens + 1;
  while (too_long - fits > 1) {
    const int64_t tokens = fits + (too_long - fits) / 2;
    (FitsInto(tokens, 0, /*empty_cache=*/true) ? fits : too_long) = tokens;
  }
  return fits;
}

void KvCache::Trim(bool idle) {
  arena_.Discard(kWarmBytes / layout_.slab_bytes(),
                 idle ? arena_.num_slabs() : kTrimBytes / layout_.slab_bytes());
}

KvHolding KvCache::Held(const KvSequence& sequence) const {
  const int64_t whole_blocks = WholeBlocks(sequence.committed_tokens);
  KvHolding held;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const BlockTable& table = sequence.tables[unit];
    int64_t bytes = 0;
    for (const KvBlockRef& block : table.blocks()) bytes += BlockBytes(block);
    const bool windowed = layout_.window_of_unit(unit) > 0;
    held.entries += table.committed_entries();
    held.bytes += bytes;
    held.bytes_16bit += windowed ? bytes : whole_blocks * block_bytes_16bit_;
  }
  return held;
}

int64_t KvCache::WholeBlocks(int64_t tokens) const {
  return (tokens + layout_.block.block_tokens - 1) / layout_.block.block_tokens;
}

int64_t KvCache::Bytes16Bit() const {
  int64_t bytes = 0;
  for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
    const bool windowed = layout_.window_of_unit(unit) > 0;
    bytes += windowed ? pools_[unit].used_bytes() : whole_blocks_ * block_bytes_16bit_;
  }
  return bytes;
}

KvCacheStats KvCache::Stats() const {
  KvCacheStats stats;
  stats.arena_bytes = arena_.size_bytes();
  for (const auto& pool : block_pools_) stats.slab_bytes += pool->slab_bytes();
  for (const HeadPool& pool : pools_) {
    stats.used_bytes += pool.used_bytes();
    stats.pool_capacity_bytes += pool.capacity_bytes();
    stats.pool_growths += pool.num_growths();
  }
  stats.staging_bytes = staged_bytes_;
  stats.slack_bytes = stats.slab_bytes - stats.used_bytes - stats.staging_bytes;
  stats.logical_tokens = logical_tokens_;
  stats.entries = entries_;
  stats.sequences = num_sequences_;
  return stats;
}

}  // namespace condense
