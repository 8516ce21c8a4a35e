// Random operations on KvCache beside a naive model of what it must hold.

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "cache/kv_cache.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int kNobody = -1;

// What the model knows of one sequence. Blocks are counted, not named: which ones is the cache's
// affair.
struct ModelSequence {
  std::unique_ptr<KvSequence> real;
  int id = kNobody;                     // never used twice
  int64_t committed = 0;                // tokens
  int64_t room_end = 0;                 // first position without a reserved entry, a multiple of B
  std::vector<int64_t> first_position;  // [L] of the oldest entry kept, a multiple of B
};

struct ModelCase {
  std::string name;
  KvLayout layout;
  int64_t num_slabs = 0;
  int32_t step_tokens = 0;
  uint32_t seed = 0;
};

void PrintTo(const ModelCase& model_case, std::ostream* out) {
  *out << model_case.name << ", seed " << model_case.seed;
}

class KvCacheModelTest : public testing::TestWithParam<ModelCase> {
 protected:
  static constexpr int kSteps = 100000;
  static constexpr int kMaxSequences = 8;

  void SetUp() override {
    layout_ = GetParam().layout;
    block_tokens_ = layout_.block.block_tokens;
    block_bytes_ = KvBlockBytes(KvFormat::kK16V16, layout_.block);
    blocks_per_slab_ = layout_.slab_bytes() / block_bytes_;
    cache_ = KvCache::Make(&backend_, layout_,
                           {.arena_bytes = GetParam().num_slabs * layout_.slab_bytes(),
                            .step_tokens = GetParam().step_tokens})
                 .value();
    holder_.assign(GetParam().num_slabs * blocks_per_slab_, kNobody);
    slab_used_.assign(GetParam().num_slabs, 0);
    random_.seed(GetParam().seed);
  }

  int64_t Below(int64_t limit) { return static_cast<int64_t>(random_() % limit); }
  ModelSequence& AnySequence() {
    return sequences_[Below(static_cast<int64_t>(sequences_.size()))];
  }

  // --- The model's arithmetic ---

  int64_t RoundUp(int64_t tokens) const {
    return (tokens + block_tokens_ - 1) / block_tokens_ * block_tokens_;
  }
  int64_t HeldBlocks(const ModelSequence& sequence, int32_t layer) const {
    return (sequence.room_end - sequence.first_position[layer]) / block_tokens_;
  }
  bool CanTake(int64_t blocks) const {
    blocks *= layout_.num_units();
    const int64_t slabs =
        std::count_if(slab_used_.begin(), slab_used_.end(), [](int64_t used) { return used > 0; });
    int64_t spare = slabs * blocks_per_slab_;
    for (const int64_t used : slab_used_) spare -= used;
    const int64_t more = std::max<int64_t>(0, blocks - spare);
    return (more + blocks_per_slab_ - 1) / blocks_per_slab_ <= GetParam().num_slabs - slabs;
  }

  // --- Which block is whose ---

  int64_t BlockIndex(KvBlockRef block) const {
    const int64_t offset = int64_t{block.offset_64} * 64;
    const int64_t slab = offset / layout_.slab_bytes();
    return slab * blocks_per_slab_ + offset % layout_.slab_bytes() / block_bytes_;
  }
  // The cache changed what this sequence holds: forget the old blocks, claim the new ones.
  void ClaimAgain(const ModelSequence& sequence) {
    for (int64_t block : held_[sequence.id]) {
      holder_[block] = kNobody;
      --slab_used_[block / blocks_per_slab_];
    }
    held_[sequence.id].clear();
    for (int32_t unit = 0; unit < layout_.num_units(); ++unit) {
      const auto blocks = sequence.real->tables[unit].blocks();
      ASSERT_EQ(static_cast<int64_t>(blocks.size()),
                HeldBlocks(sequence, unit / layout_.num_kv_heads));
      for (const KvBlockRef& block : blocks) Claim(sequence.id, block);
    }
  }
  void Claim(int id, KvBlockRef block) {
    const int64_t offset = int64_t{block.offset_64} * 64;
    ASSERT_LE(offset + block_bytes_, cache_->Stats().arena_bytes);
    ASSERT_EQ(offset % layout_.slab_bytes() % block_bytes_, 0);
    const int64_t index = BlockIndex(block);
    ASSERT_EQ(holder_[index], kNobody) << "block handed out twice";
    holder_[index] = id;
    ++slab_used_[index / blocks_per_slab_];
    held_[id].push_back(index);
  }

  // --- Contents ---

  static uint16_t Signature(int id, int32_t unit, int64_t position, int32_t part) {
    uint64_t mix = static_cast<uint64_t>(id) * 1000003 + unit;
    mix = mix * 1000003 + static_cast<uint64_t>(position);
    mix = (mix * 4 + part) * 0x9e3779b97f4a7c15u;
    return static_cast<uint16_t>(mix >> 48);
  }
  // The 16-bit words that stand for an entry: first and last dimension of its key and of its value.
  uint16_t* Word(KvBlockRef block, int32_t slot, int32_t part) const {
    std::byte* data = cache_->arena() + int64_t{block.offset_64} * 64;
    const int32_t dim = part % 2 == 0 ? 0 : layout_.block.head_dim - 1;
    if (part >= 2) {
      data += KvValuesOffset(KvFormat::kK16V16, layout_.block);
      return reinterpret_cast<uint16_t*>(data) + slot * layout_.block.head_dim + dim;
    }
    return reinterpret_cast<uint16_t*>(data) + dim * block_tokens_ + slot;
  }
  void WriteNewest(const ModelSequence& sequence, int32_t unit, const KvList& list,
                   int32_t tokens) {
    for (int32_t i = list.num_entries - tokens; i < list.num_entries; ++i) {
      const int64_t position = sequence.first_position[unit / layout_.num_kv_heads] + i;
      for (int32_t part = 0; part < 4; ++part) {
        *Word(list.blocks[i / block_tokens_], i % block_tokens_, part) =
            Signature(sequence.id, unit, position, part);
      }
    }
  }
  void ExpectContents(const ModelSequence& sequence, int32_t layer) {
    std::vector<KvList> lists(layout_.num_kv_heads);
    cache_->Lists(sequence.real.get(), layer, 0, lists.data());
    const int64_t first = sequence.first_position[layer];
    for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
      const KvList& list = lists[head];
      ASSERT_EQ(list.num_entries, sequence.committed - first);
      int wrong = 0;
      for (int32_t i = 0; i < list.num_entries; ++i) {
        for (int32_t part = 0; part < 4; ++part) {
          const uint16_t want = Signature(sequence.id, layout_.unit(layer, head), first + i, part);
          wrong += *Word(list.blocks[i / block_tokens_], i % block_tokens_, part) != want;
        }
      }
      ASSERT_EQ(wrong, 0) << "layer " << layer << " head " << head;
    }
  }

  // --- Operations ---

  void Open() {
    ModelSequence sequence;
    sequence.real = cache_->Open();
    sequence.id = static_cast<int>(held_.size());
    sequence.first_position.assign(layout_.num_layers, 0);
    held_.emplace_back();
    sequences_.push_back(std::move(sequence));
  }

  bool Reserve(ModelSequence* sequence, int32_t tokens) {
    const int64_t room_end = std::max(sequence->room_end, RoundUp(sequence->committed + tokens));
    const bool expected = CanTake((room_end - sequence->room_end) / block_tokens_);
    const bool reserved = cache_->TryReserve(sequence->real.get(), tokens);
    EXPECT_EQ(reserved, expected);
    if (reserved) sequence->room_end = room_end;
    if (!reserved) ++refusals_;
    ClaimAgain(*sequence);
    return reserved;
  }

  // Writes up to `tokens` entries into reserved room, as a step does, and commits them.
  void Step(ModelSequence* sequence, int32_t tokens) {
    tokens =
        static_cast<int32_t>(std::min<int64_t>(tokens, sequence->room_end - sequence->committed));
    std::vector<KvList> lists(layout_.num_kv_heads);
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      cache_->Lists(sequence->real.get(), layer, tokens, lists.data());
      for (int32_t head = 0; head < layout_.num_kv_heads; ++head) {
        const KvList& list = lists[head];
        ASSERT_EQ(list.num_entries, sequence->committed + tokens - sequence->first_position[layer]);
        int32_t entries = 0;
        for (int32_t i = 0; i < list.num_blocks; ++i) entries += list.blocks[i].count;
        ASSERT_EQ(entries, list.num_entries);
        WriteNewest(*sequence, layout_.unit(layer, head), list, tokens);
      }
    }
    cache_->Commit(sequence->real.get(), tokens);
    sequence->committed += tokens;
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
      if (layout_.window(layer) == 0) continue;
      const int64_t oldest_seen = sequence->committed - (layout_.window(layer) - 1);
      int64_t& first = sequence->first_position[layer];
      first = std::max(first, oldest_seen / kAttentionPart * kAttentionPart);
    }
    ClaimAgain(*sequence);
  }

  void Release(size_t index) {
    ModelSequence& sequence = sequences_[index];
    for (int32_t layer = 0; layer < layout_.num_layers; ++layer) ExpectContents(sequence, layer);
    cache_->Release(sequence.real.get());
    ASSERT_TRUE(sequence.real->empty());
    sequence.committed = 0;
    sequence.room_end = 0;
    std::fill(sequence.first_position.begin(), sequence.first_position.end(), 0);
    ClaimAgain(sequence);
    if (Below(4) != 0) sequences_.erase(sequences_.begin() + index);
  }

  // What Fits promises can be done, in steps of any size.
  void AdmitAndFill() {
    const int64_t tokens = Below(2 * cache_->max_sequence_tokens() + 1) % 6000;
    const bool fits = cache_->Fits(tokens, 0);
    if (layout_.layer_window.empty()) {
      EXPECT_EQ(fits, CanTake(RoundUp(tokens) / block_tokens_));
    }
    if (!fits) return;
    ++admissions_;
    Open();
    ModelSequence& sequence = sequences_.back();
    while (sequence.committed < tokens && !HasFailure()) {
      const int64_t left = tokens - sequence.committed;
      const int32_t step =
          static_cast<int32_t>(std::min<int64_t>(left, 1 + Below(GetParam().step_tokens)));
      ASSERT_TRUE(Reserve(&sequence, step));
      Step(&sequence, step);
    }
  }

  void ExpectBooksBalance() {
    int64_t used = 0;
    int64_t logical = 0;
    int64_t not_empty = 0;
    for (const ModelSequence& sequence : sequences_) {
      logical += sequence.committed;
      not_empty += sequence.room_end > 0;
      for (int32_t layer = 0; layer < layout_.num_layers; ++layer) {
        used += HeldBlocks(sequence, layer) * layout_.num_kv_heads * block_bytes_;
      }
    }
    const int64_t slabs =
        GetParam().num_slabs - std::count(slab_used_.begin(), slab_used_.end(), 0);
    const KvCacheStats stats = cache_->Stats();
    ASSERT_EQ(stats.used_bytes, used);
    ASSERT_EQ(stats.slab_bytes, slabs * layout_.slab_bytes());
    ASSERT_EQ(stats.slack_bytes, stats.slab_bytes - used);
    ASSERT_EQ(stats.logical_tokens, logical);
    ASSERT_EQ(stats.sequences, not_empty);
  }

  void RandomOperation() {
    const int64_t dice = Below(100);
    if (sequences_.empty() || (dice < 3 && sequences_.size() < kMaxSequences)) return Open();
    if (dice < 4 && sequences_.size() < kMaxSequences) return AdmitAndFill();
    if (dice < 6) return Release(Below(static_cast<int64_t>(sequences_.size())));
    ModelSequence& sequence = AnySequence();
    if (dice < 12) return ExpectContents(sequence, static_cast<int32_t>(Below(layout_.num_layers)));
    // Mostly decode steps; now and then a prompt chunk, which may be reserved and not used up.
    const int32_t tokens =
        static_cast<int32_t>(dice < 90 ? 1 + Below(3) : Below(GetParam().step_tokens + 1));
    if (Reserve(&sequence, tokens) && dice % 8 != 0) Step(&sequence, tokens);
  }

  ReferenceBackend backend_;
  KvLayout layout_;
  int64_t block_tokens_ = 0;
  int64_t block_bytes_ = 0;
  int64_t blocks_per_slab_ = 0;
  std::unique_ptr<KvCache> cache_;
  std::vector<ModelSequence> sequences_;
  std::vector<std::vector<int64_t>> held_;  // block indices, by sequence id
  std::vector<int> holder_;                 // sequence id, by block index
  std::vector<int64_t> slab_used_;          // blocks held in a slab
  std::mt19937 random_;
  int refusals_ = 0;
  int admissions_ = 0;
};

TEST_P(KvCacheModelTest, RandomOperationsAgreeWithTheNaiveModel) {
  for (int step = 0; step < kSteps; ++step) {
    RandomOperation();
    if (!HasFailure()) ExpectBooksBalance();
    ASSERT_FALSE(HasFailure()) << "seed " << GetParam().seed << ", step " << step;
  }
  // The walk has been where it matters: exhausted now and then, not always.
  EXPECT_GT(refusals_, kSteps / 500);
  EXPECT_LT(refusals_, kSteps / 2);
  EXPECT_GT(admissions_, kSteps / 2000);
  while (!sequences_.empty()) Release(sequences_.size() - 1);
  const KvCacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.used_bytes, 0);
  EXPECT_EQ(stats.slab_bytes, 0);
  EXPECT_EQ(stats.logical_tokens, 0);
  EXPECT_EQ(stats.sequences, 0);
  EXPECT_TRUE(cache_->Fits(cache_->max_sequence_tokens(), 0));
}

KvLayout Layout(int32_t layers, int32_t heads, KvBlockShape block, std::vector<int32_t> windows) {
  return {.num_layers = layers,
          .num_kv_heads = heads,
          .block = block,
          .layer_window = std::move(windows)};
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, KvCacheModelTest,
    testing::Values(ModelCase{"FullAttention", Layout(2, 2, {64, 32}, {}), 19, 96, 1},
                    ModelCase{"Windows", Layout(3, 2, {64, 32}, {0, 40, 1}), 21, 96, 2},
                    ModelCase{"LongBlocks", Layout(2, 1, {8, 64}, {200, 0}), 5, 300, 3}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace condense
