#ifndef CONDENSE_TESTS_SUPPORT_KV_LISTS_H_
#define CONDENSE_TESTS_SUPPORT_KV_LISTS_H_

// A KV arena with random entries and the block lists over it, as inputs of the KV ops.

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "kernels/backend.h"

namespace condense {

struct KvBlockKind {
  KvFormat format = KvFormat::kK16V16;
  KvBlockFlags flags = 0;
  // Where a block holds distances, entry e is at a random one in [gap * e, gap * e + gap).
  uint32_t gap = 3;
};

// One sequence: how many entries each block of its lists holds, and how many of the newest are this
// step's rows.
struct KvSequenceSpec {
  std::vector<int> block_counts;
  int num_tokens = 1;
  // Block i is of kind i modulo their number; none: k16v16 without side arrays.
  std::vector<KvBlockKind> kinds;
};

// Full blocks and a last one that is filling, `num_entries` in all.
std::vector<int> BlockCounts(int num_entries, int block_tokens);

// Rows of the sequences follow each other in the order of the specs. Blocks of all lists are
// scattered over the arena. Slots that hold no entry are NaN or have a NaN scale, so that whoever
// reads one shows it. Narrow blocks hold random codes.
class KvLists {
 public:
  KvLists(const KvBlockShape& shape, int num_kv_heads, const std::vector<KvSequenceSpec>& specs,
          uint32_t seed);
  KvLists(const KvLists&) = delete;
  KvLists& operator=(const KvLists&) = delete;

  const KvBlockShape& shape() const { return shape_; }
  int num_kv_heads() const { return num_kv_heads_; }
  int num_sequences() const { return static_cast<int>(sequences_.size()); }
  int num_rows() const { return num_rows_; }
  // Positions of the entries of blocks that have them are below this.
  static constexpr int kNumPositions = 2048;
  // The bytes of the arena, to be copied to a backend.
  const std::vector<std::byte>& image() const { return image_; }
  const KvSequenceArgs* sequences() const { return sequences_.data(); }
  const KvSequenceArgs& sequence(int s) const { return sequences_[s]; }
  // Where the evidence of each (sequence, KV head) starts, and the floats of all.
  const std::vector<int64_t>& evidence_offset() const { return evidence_offset_; }
  int64_t evidence_size() const { return evidence_size_; }

 private:
  void FillBlock(const KvBlockRef& block, uint32_t gap, uint32_t seed);
  void FillSideArrays(const KvBlockRef& block, uint32_t gap, std::mt19937* random);

  const KvBlockShape shape_;
  const int num_kv_heads_;
  int num_rows_ = 0;
  std::vector<std::byte> image_;
  std::vector<std::vector<KvBlockRef>> blocks_;  // [S * G]
  std::vector<std::vector<KvList>> lists_;       // [S][G]
  std::vector<KvSequenceArgs> sequences_;
  std::vector<int64_t> evidence_offset_;
  int64_t evidence_size_ = 0;
};

// The first `num_entries` entries of a list: what an earlier step saw. Keeps the blocks that the
// list points to.
class KvListPrefix {
 public:
  KvListPrefix(const KvSequenceArgs& sequence, int num_kv_heads, int num_entries, int first_row,
               int num_tokens);
  KvListPrefix(const KvListPrefix&) = delete;
  KvListPrefix& operator=(const KvListPrefix&) = delete;

  const KvSequenceArgs& sequence() const { return sequence_; }

 private:
  std::vector<std::vector<KvBlockRef>> blocks_;
  std::vector<KvList> lists_;
  KvSequenceArgs sequence_;
};

}  // namespace condense

#endif  // CONDENSE_TESTS_SUPPORT_KV_LISTS_H_
