#include "cache/head_pool.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr int64_t kMaxBlocksPerSlab =
    64;  // width of a slab's mask; the smallest 16-bit block needs all

}  // namespace

HeadPool::HeadPool(Arena* arena, KvFormat format, int64_t block_bytes)
    : arena_(arena),
      format_(format),
      block_bytes_(block_bytes),
      blocks_per_slab_(std::min(arena->slab_bytes() / block_bytes, kMaxBlocksPerSlab)),
      all_free_(~uint64_t{0} >> (kMaxBlocksPerSlab - blocks_per_slab_)) {
  CHECK_EQ(block_bytes % 64, 0);
  CHECK_GE(blocks_per_slab_, 1);
}

bool HeadPool::TryGrow() {
  const std::optional<int64_t> offset = arena_->TryTake();
  if (!offset) return false;
  partial_.push_front({*offset, all_free_});
  slabs_.emplace(*offset, partial_.begin());
  return true;
}

std::optional<KvBlockRef> HeadPool::TryAllocate() {
  if (partial_.empty() && !TryGrow()) return std::nullopt;
  Slab& slab = partial_.front();
  const int index = std::countr_zero(slab.free_blocks);
  slab.free_blocks &= slab.free_blocks - 1;
  if (slab.free_blocks == 0) full_.splice(full_.begin(), partial_, partial_.begin());
  ++used_blocks_;
  const int64_t offset = slab.offset + index * block_bytes_;
  return KvBlockRef{.offset_64 = static_cast<uint32_t>(offset / 64), .format = format_};
}

void HeadPool::Free(KvBlockRef block) {
  const int64_t offset = int64_t{block.offset_64} * 64;
  const int64_t in_slab = offset % arena_->slab_bytes();
  const auto found = slabs_.find(offset - in_slab);
  CHECK(found != slabs_.end());
  CHECK_EQ(in_slab % block_bytes_, 0);
  const SlabList::iterator slab = found->second;
  const uint64_t bit = uint64_t{1} << (in_slab / block_bytes_);
  CHECK((slab->free_blocks & bit) == 0);
  if (slab->free_blocks == 0) partial_.splice(partial_.begin(), full_, slab);
  slab->free_blocks |= bit;
  --used_blocks_;
  if (slab->free_blocks != all_free_) return;
  arena_->Return(slab->offset);
  partial_.erase(slab);
  slabs_.erase(found);
}

int64_t HeadPool::SlabsFor(int64_t blocks) const {
  const int64_t short_by = blocks - (num_slabs() * blocks_per_slab_ - used_blocks_);
  if (short_by <= 0) return 0;
  return (short_by + blocks_per_slab_ - 1) / blocks_per_slab_;
}

}  // namespace condense
