#include "tests/support/kv_lists.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/base/check.h"

namespace condense {
namespace {

constexpr Half kNaN = {0x7e00};

}  // namespace

std::vector<int> BlockCounts(int num_entries, int block_tokens) {
  std::vector<int> counts(num_entries / block_tokens, block_tokens);
  if (num_entries % block_tokens != 0) counts.push_back(num_entries % block_tokens);
  return counts;
}

KvLists::KvLists(const KvBlockShape& shape, int num_kv_heads,
                 const std::vector<KvSequenceSpec>& specs, uint32_t seed)
    : shape_(shape), num_kv_heads_(num_kv_heads) {
  size_t num_blocks = 0;
  for (const KvSequenceSpec& spec : specs) num_blocks += spec.block_counts.size() * num_kv_heads;
  const int64_t block_bytes = KvBlockBytes(KvFormat::kK16V16, shape);
  image_.resize(num_blocks * block_bytes);
  std::fill_n(reinterpret_cast<Half*>(image_.data()), image_.size() / sizeof(Half), kNaN);
  std::vector<uint32_t> order(num_blocks);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937(seed));

  size_t next_block = 0;
  for (const KvSequenceSpec& spec : specs) {
    std::vector<KvList>& lists = lists_.emplace_back();
    for (int g = 0; g < num_kv_heads; ++g) {
      std::vector<KvBlockRef>& blocks = blocks_.emplace_back();
      for (const int count : spec.block_counts) {
        const uint32_t offset_64 = static_cast<uint32_t>(order[next_block++] * block_bytes / 64);
        blocks.push_back({offset_64, KvFormat::kK16V16, 0, static_cast<uint16_t>(count)});
        FillBlock(blocks.back(), seed + static_cast<uint32_t>(next_block));
      }
      const int entries = std::accumulate(spec.block_counts.begin(), spec.block_counts.end(), 0);
      lists.push_back({blocks.data(), static_cast<int32_t>(blocks.size()), entries});
      evidence_offset_.push_back(evidence_size_);
      evidence_size_ += entries;
    }
    sequences_.push_back({num_rows_, spec.num_tokens, lists.data()});
    num_rows_ += spec.num_tokens;
  }
}

void KvLists::FillBlock(const KvBlockRef& block, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::byte* data = image_.data() + int64_t{block.offset_64} * 64;
  Half* keys = reinterpret_cast<Half*>(data);
  Half* values = reinterpret_cast<Half*>(data + KvValuesOffset(block.format, shape_));
  for (int e = 0; e < block.count; ++e) {
    for (int d = 0; d < shape_.head_dim; ++d) {
      keys[int64_t{d} * shape_.block_tokens + e] = ToHalf(normal(random));
      values[int64_t{e} * shape_.head_dim + d] = ToHalf(normal(random));
    }
  }
}

KvListPrefix::KvListPrefix(const KvSequenceArgs& sequence, int num_kv_heads, int num_entries,
                           int first_row, int num_tokens) {
  for (int g = 0; g < num_kv_heads; ++g) {
    const KvList& list = sequence.lists[g];
    CHECK_LE(num_entries, list.num_entries);
    std::vector<KvBlockRef>& blocks = blocks_.emplace_back();
    for (int left = num_entries; left > 0; left -= blocks.back().count) {
      blocks.push_back(list.blocks[blocks.size()]);
      blocks.back().count = static_cast<uint16_t>(std::min<int>(left, blocks.back().count));
    }
    lists_.push_back({blocks.data(), static_cast<int32_t>(blocks.size()), num_entries});
  }
  sequence_ = {first_row, num_tokens, lists_.data()};
}

}  // namespace condense
