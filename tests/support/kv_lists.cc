#include "tests/support/kv_lists.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/base/check.h"
#include "kernels/kv_codes.h"

namespace condense {
namespace {

constexpr Half kNaN = {0x7e00};

// Scales that give random codes about the size of normal vectors.
void FillScales(std::byte* scales, int bits, int used, std::mt19937* random) {
  const float largest = static_cast<float>((1 << (bits == 8 ? 7 : bits)) - 1);
  for (int e = 0; e < used; ++e) {
    const Half scale = ToHalf((1.0f + static_cast<float>((*random)() % 200) / 100.0f) / largest);
    std::memcpy(scales + 2 * e, &scale, sizeof(scale));
  }
}
uint8_t RandomCode(int bits, std::mt19937* random) {
  // -128 is no code.
  return static_cast<uint8_t>(bits == 8 ? (*random)() % 255 - 127 : (*random)() % (1u << bits));
}

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
  int64_t block_bytes = 0;
  for (const KvSequenceSpec& spec : specs) {
    if (spec.kinds.empty()) {
      block_bytes = std::max(block_bytes, KvBlockBytes(KvFormat::kK16V16, shape));
    }
    for (const KvBlockKind& kind : spec.kinds) {
      block_bytes = std::max(block_bytes, KvBlockBytes(kind.format, shape, kind.flags));
    }
  }
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
        const KvBlockKind kind =
            spec.kinds.empty() ? KvBlockKind{} : spec.kinds[blocks.size() % spec.kinds.size()];
        blocks.push_back({offset_64, kind.format, kind.flags, static_cast<uint16_t>(count)});
        FillBlock(blocks.back(), kind.gap, seed + static_cast<uint32_t>(next_block));
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

void KvLists::FillBlock(const KvBlockRef& block, uint32_t gap, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::byte* data = image_.data() + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape_);
  const int key_bits = KvKeyBits(block.format);
  const int value_bits = KvValueBits(block.format);
  const int head_dim = shape_.head_dim;
  const int block_tokens = shape_.block_tokens;
  Half* keys = reinterpret_cast<Half*>(data + pieces.keys);
  Half* values = reinterpret_cast<Half*>(data + pieces.values);
  const KvCodePlanes key_codes = {data + pieces.keys, data + pieces.key_upper};
  const KvCodePlanes value_codes = {data + pieces.values, data + pieces.value_upper};
  for (int e = 0; e < block.count; ++e) {
    for (int d = 0; d < head_dim; ++d) {
      if (key_bits == 16) {
        keys[int64_t{d} * block_tokens + e] = ToHalf(normal(random));
      } else {
        KvWriteCode(key_codes, key_bits, block_tokens, d, e, RandomCode(key_bits, &random));
      }
      if (value_bits == 16) {
        values[int64_t{e} * head_dim + d] = ToHalf(normal(random));
      } else {
        KvWriteCode(value_codes, value_bits, head_dim, e, d, RandomCode(value_bits, &random));
      }
    }
  }
  if (key_bits < 16) FillScales(data + pieces.key_scales, key_bits, block.count, &random);
  if (value_bits < 16) FillScales(data + pieces.value_scales, value_bits, block.count, &random);
  FillSideArrays(block, gap, &random);
}

void KvLists::FillSideArrays(const KvBlockRef& block, uint32_t gap, std::mt19937* random) {
  std::byte* data = image_.data() + int64_t{block.offset_64} * 64;
  const KvBlockPieces pieces = KvPieces(block.format, block.flags, shape_);
  const uint32_t base = (*random)() % (kNumPositions / 4);
  if ((block.flags & (kKvPosition | kKvRun)) != 0) {
    std::memcpy(data + pieces.base, &base, sizeof(base));
  }
  for (int e = 0; e < block.count; ++e) {
    if ((block.flags & kKvBias) != 0) {
      const Half bias = ToHalf(static_cast<float>((*random)() % 400) / 100.0f - 2.0f);
      std::memcpy(data + pieces.bias + 2 * e, &bias, sizeof(bias));
    }
    if ((block.flags & kKvPosition) != 0) {
      const uint16_t distance = static_cast<uint16_t>(gap * e + (*random)() % gap);
      std::memcpy(data + pieces.distances + 2 * e, &distance, sizeof(distance));
    }
    if ((block.flags & kKvCount) != 0) data[pieces.counts + e] = std::byte{3};
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
