#include "cache/query_log.h"

#include <algorithm>

namespace condense {

QueryLog::QueryLog(const KvLayout& layout, int32_t group, int64_t prompt_tokens)
    : num_layers_(layout.num_layers),
      row_size_(layout.num_kv_heads * group * layout.block.head_dim),
      unit_size_(group * layout.block.head_dim),
      prompt_tokens_(prompt_tokens),
      positions_(kEven + kRecent, -1),
      rows_(int64_t{kEven + kRecent} * num_layers_ * row_size_) {}

int32_t QueryLog::SlotFor(int64_t position) {
  int32_t slot = -1;
  const int64_t even_tokens = prompt_tokens_ - kRecent;
  if (position >= even_tokens) {
    slot = kEven + static_cast<int32_t>(position % kRecent);
  } else if (even_tokens >= kEven &&
             (position + 1) * kEven / even_tokens != position * kEven / even_tokens) {
    slot = static_cast<int32_t>(position * kEven / even_tokens);
  }
  if (slot >= 0) positions_[slot] = position;
  return slot;
}

void QueryLog::Add(int32_t slot, int32_t layer, int32_t kv_head, int32_t visible,
                   QuerySamples* to) const {
  const float* row = rows_.data() + (int64_t{slot} * num_layers_ + layer) * row_size_ +
                     int64_t{kv_head} * unit_size_;
  to->q.insert(to->q.end(), row, row + unit_size_);
  to->visible.push_back(visible);
}

void QueryLog::Gather(int32_t layer, int32_t kv_head, int32_t front_entries, int32_t first_entry,
                      bool plain_front, QuerySamples* evidence, QuerySamples* held_out) const {
  for (int32_t slot = 0; plain_front && slot < kEven; ++slot) {
    // A query near the range's start has seen too little of it.
    if (positions_[slot] < first_entry) continue;
    const auto visible = static_cast<int32_t>(positions_[slot] + 1);
    if (visible <= front_entries) Add(slot, layer, kv_head, visible, evidence);
  }
  const std::vector<int32_t> recent = RecentSlots();
  for (size_t i = 0; i < recent.size(); ++i) {
    Add(recent[i], layer, kv_head, front_entries, IsHeldOut(i) ? held_out : evidence);
  }
}

std::vector<int64_t> QueryLog::RecentPositions(bool held_out) const {
  const std::vector<int32_t> recent = RecentSlots();
  std::vector<int64_t> positions;
  for (size_t i = 0; i < recent.size(); ++i) {
    if (IsHeldOut(i) == held_out) positions.push_back(positions_[recent[i]]);
  }
  return positions;
}

std::vector<int32_t> QueryLog::RecentSlots() const {
  std::vector<int32_t> recent;
  for (int32_t slot = kEven; slot < kEven + kRecent; ++slot) {
    if (positions_[slot] >= 0) recent.push_back(slot);
  }
  std::sort(recent.begin(), recent.end(),
            [&](int32_t a, int32_t b) { return positions_[a] < positions_[b]; });
  return recent;
}

}  // namespace condense
