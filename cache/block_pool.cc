#include "cache/block_pool.h"

#include <algorithm>
#include <bit>

#include "kernels/base/check.h"

namespace condense {

BlockPool::BlockPool(Arena* arena, int64_t block_bytes)
    : arena_(arena),
      block_bytes_(block_bytes),
      blocks_per_slab_(static_cast<int32_t>(
          std::min<int64_t>(arena->slab_bytes() / block_bytes, 64 * kMaskWords))) {
  CHECK_EQ(block_bytes % 64, 0);
  CHECK_GE(blocks_per_slab_, 1);
}

bool BlockPool::TryGrow() {
  const std::optional<int64_t> offset = arena_->TryTake();
  if (!offset) return false;
  Slab slab{.offset = *offset, .num_free = blocks_per_slab_};
  for (int32_t i = 0; i < blocks_per_slab_; ++i) slab.free_blocks[i / 64] |= uint64_t{1} << i % 64;
  partial_.push_front(slab);
  slabs_.emplace(*offset, partial_.begin());
  return true;
}

std::optional<int64_t> BlockPool::TryAllocate() {
  if (partial_.empty() && !TryGrow()) return std::nullopt;
  Slab& slab = partial_.front();
  int32_t word = 0;
  while (slab.free_blocks[word] == 0) ++word;
  const int64_t index = 64 * word + std::countr_zero(slab.free_blocks[word]);
  slab.free_blocks[word] &= slab.free_blocks[word] - 1;
  ++used_blocks_;
  const int64_t offset = slab.offset + index * block_bytes_;
  if (--slab.num_free == 0) full_.splice(full_.begin(), partial_, partial_.begin());
  return offset;
}

void BlockPool::Free(int64_t offset) {
  const int64_t in_slab = offset % arena_->slab_bytes();
  const auto found = slabs_.find(offset - in_slab);
  CHECK(found != slabs_.end());
  CHECK_EQ(in_slab % block_bytes_, 0);
  const SlabList::iterator slab = found->second;
  const int64_t index = in_slab / block_bytes_;
  const uint64_t bit = uint64_t{1} << index % 64;
  CHECK_LT(index, blocks_per_slab_);
  CHECK((slab->free_blocks[index / 64] & bit) == 0);
  if (slab->num_free == 0) partial_.splice(partial_.begin(), full_, slab);
  slab->free_blocks[index / 64] |= bit;
  --used_blocks_;
  if (++slab->num_free < blocks_per_slab_) return;
  arena_->Return(slab->offset);
  partial_.erase(slab);
  slabs_.erase(found);
}

int64_t BlockPool::SlabsFor(int64_t blocks) const {
  const int64_t short_by = blocks - (num_slabs() * blocks_per_slab_ - used_blocks_);
  if (short_by <= 0) return 0;
  return (short_by + blocks_per_slab_ - 1) / blocks_per_slab_;
}

}  // namespace condense
