#include "cache/block_table.h"

#include <algorithm>

#include "kernels/base/check.h"

namespace condense {

int32_t BlockTable::num_unsealed() const {
  return static_cast<int32_t>(blocks_.size()) - num_sealed_;
}

int64_t BlockTable::BlocksFor(int64_t tokens) const {
  const int64_t needed = (open_entries_ + tokens + block_tokens_ - 1) / block_tokens_;
  return std::max<int64_t>(0, needed - num_unsealed());
}

void BlockTable::Append(KvBlockRef block) {
  blocks_.push_back(block);
  first_positions_.push_back(next_position_);
  next_position_ += block_tokens_;
}

KvList BlockTable::List(int32_t tokens) {
  DCHECK_EQ(BlocksFor(tokens), 0);
  int32_t num_blocks = num_sealed_;
  for (int32_t left = open_entries_ + tokens; left > 0; left -= block_tokens_) {
    blocks_[num_blocks++].count = static_cast<uint16_t>(std::min(left, block_tokens_));
  }
  return {blocks_.data(), num_blocks, sealed_entries_ + open_entries_ + tokens};
}

void BlockTable::Commit(int32_t tokens) {
  CHECK_EQ(BlocksFor(tokens), 0);
  open_entries_ += tokens;
  for (; open_entries_ >= block_tokens_; open_entries_ -= block_tokens_) {
    blocks_[num_sealed_++].count = static_cast<uint16_t>(block_tokens_);
    sealed_entries_ += block_tokens_;
  }
}

int32_t BlockTable::NumDroppable(int32_t tokens) const {
  int32_t left = sealed_entries_ + open_entries_;
  int32_t num_blocks = 0;
  while (num_blocks < num_sealed_ && left - blocks_[num_blocks].count >= tokens) {
    left -= blocks_[num_blocks++].count;
  }
  return num_blocks;
}

void BlockTable::DropFront(int32_t num_blocks) {
  CHECK_LE(num_blocks, num_sealed_);
  for (int32_t i = 0; i < num_blocks; ++i) sealed_entries_ -= blocks_[i].count;
  blocks_.erase(blocks_.begin(), blocks_.begin() + num_blocks);
  first_positions_.erase(first_positions_.begin(), first_positions_.begin() + num_blocks);
  num_sealed_ -= num_blocks;
}

void BlockTable::Replace(int32_t first, int32_t num_blocks, std::span<const KvBlockRef> back) {
  CHECK_GE(first, 0);
  CHECK_LE(first + num_blocks, num_sealed_);
  CHECK_GE(num_blocks, 1);
  for (int32_t i = first; i < first + num_blocks; ++i) sealed_entries_ -= blocks_[i].count;
  for (const KvBlockRef& block : back) sealed_entries_ += block.count;
  const int32_t position = first_positions_[first];
  blocks_.erase(blocks_.begin() + first, blocks_.begin() + first + num_blocks);
  blocks_.insert(blocks_.begin() + first, back.begin(), back.end());
  first_positions_.erase(first_positions_.begin() + first,
                         first_positions_.begin() + first + num_blocks);
  first_positions_.insert(first_positions_.begin() + first, back.size(), position);
  num_sealed_ += static_cast<int32_t>(back.size()) - num_blocks;
}

void BlockTable::SetBlocks(std::span<const KvBlockRef> blocks) {
  CHECK_EQ(blocks.size(), blocks_.size());
  blocks_.assign(blocks.begin(), blocks.end());
}

void BlockTable::Clear() {
  blocks_.clear();
  first_positions_.clear();
  next_position_ = 0;
  num_sealed_ = 0;
  sealed_entries_ = 0;
  open_entries_ = 0;
}

}  // namespace condense
