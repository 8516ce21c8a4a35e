#include "cache/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int64_t kBlockBytes = 8192;             // D 64, B 32
constexpr int64_t kSlabBytes = 16 * kBlockBytes;  // 512 tokens of one unit

KvLayout Layout(int32_t layers, int32_t heads, std::vector<int32_t> windows = {}) {
  return {.num_layers = layers,
          .num_kv_heads = heads,
          .block = {.head_dim = 64, .block_tokens = 32},
          .layer_window = std::move(windows)};
}

class KvCacheTest : public testing::Test {
 protected:
  std::unique_ptr<KvCache> MakeCache(KvLayout layout, int64_t slabs, int32_t step_tokens = 512) {
    return KvCache::Make(&backend_, std::move(layout),
                         {.arena_bytes = slabs * kSlabBytes, .step_tokens = step_tokens})
        .value();
  }
  static bool Append(KvCache* cache, KvSequence* sequence, int32_t tokens) {
    if (!cache->TryReserve(sequence, tokens)) return false;
    cache->Commit(sequence, tokens);
    return true;
  }
  static KvList ListOf(KvCache* cache, KvSequence* sequence, int32_t layer, int32_t new_tokens) {
    std::vector<KvList> lists(cache->layout().num_kv_heads);
    cache->Lists(sequence, layer, new_tokens, lists.data());
    return lists[0];
  }

  ReferenceBackend backend_;
};

TEST_F(KvCacheTest, OpenTakesNothing) {
  const auto cache = MakeCache(Layout(2, 3), 6);
  const auto sequence = cache->Open();
  EXPECT_EQ(sequence->tables.size(), 6u);
  EXPECT_TRUE(sequence->empty());
  const KvCacheStats stats = cache->Stats();
  EXPECT_EQ(stats.arena_bytes, 6 * kSlabBytes);
  EXPECT_EQ(stats.slab_bytes, 0);
  EXPECT_EQ(stats.sequences, 0);
}

TEST_F(KvCacheTest, ReserveMakesRoomInEveryUnit) {
  const auto cache = MakeCache(Layout(2, 3), 6);
  const auto sequence = cache->Open();
  ASSERT_TRUE(cache->TryReserve(sequence.get(), 33));
  for (const BlockTable& table : sequence->tables) EXPECT_EQ(table.blocks().size(), 2u);
  for (int32_t layer = 0; layer < 2; ++layer) {
    KvList lists[3];
    cache->Lists(sequence.get(), layer, 33, lists);
    for (const KvList& list : lists) {
      EXPECT_EQ(list.num_entries, 33);
      ASSERT_EQ(list.num_blocks, 2);
      EXPECT_EQ(list.blocks[0].count, 32);
      EXPECT_EQ(list.blocks[1].count, 1);
    }
  }
}

TEST_F(KvCacheTest, ListsAreThoseOfTheLayersOwnHeads) {
  const auto cache = MakeCache(Layout(2, 3), 6);
  const auto sequence = cache->Open();
  ASSERT_TRUE(cache->TryReserve(sequence.get(), 1));
  KvList lists[3];
  cache->Lists(sequence.get(), 1, 1, lists);
  for (int32_t head = 0; head < 3; ++head) {
    EXPECT_EQ(lists[head].blocks, sequence->tables[3 + head].blocks().data());
  }
}

TEST_F(KvCacheTest, ReserveCountsRoomThatIsThere) {
  const auto cache = MakeCache(Layout(1, 1), 1);
  const auto sequence = cache->Open();
  ASSERT_TRUE(cache->TryReserve(sequence.get(), 512));
  const int64_t used = cache->Stats().used_bytes;
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 512));
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 1));
  EXPECT_EQ(cache->Stats().used_bytes, used);
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 513));
  cache->Commit(sequence.get(), 500);
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 12));
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 13));
}

TEST_F(KvCacheTest, ReserveOfNothingTakesNothing) {
  const auto cache = MakeCache(Layout(1, 1), 1);
  const auto sequence = cache->Open();
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 0));
  EXPECT_TRUE(sequence->empty());
  EXPECT_EQ(cache->Stats().sequences, 0);
}

TEST_F(KvCacheTest, FailedReserveLeavesEverythingAsItWas) {
  // Three units of 16 blocks fill three slabs.
  const auto cache = MakeCache(Layout(1, 3), 3);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 500));
  const KvCacheStats before = cache->Stats();
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 13));
  const KvCacheStats after = cache->Stats();
  EXPECT_EQ(after.slab_bytes, before.slab_bytes);
  EXPECT_EQ(after.used_bytes, before.used_bytes);
  for (const BlockTable& table : sequence->tables) EXPECT_EQ(table.blocks().size(), 16u);
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 12));
}

TEST_F(KvCacheTest, FailedReserveOfANewSequenceIsNotCounted) {
  const auto cache = MakeCache(Layout(1, 1), 1);
  const auto sequence = cache->Open();
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 513));
  EXPECT_EQ(cache->Stats().sequences, 0);
  EXPECT_EQ(cache->Stats().slab_bytes, 0);
}

TEST_F(KvCacheTest, ReleaseGivesEverythingBackAndTheSequenceCanBeFilledAgain) {
  const auto cache = MakeCache(Layout(2, 1), 2);
  const auto first = cache->Open();
  const auto second = cache->Open();
  ASSERT_TRUE(Append(cache.get(), first.get(), 512));
  EXPECT_FALSE(cache->TryReserve(second.get(), 1));
  cache->Release(first.get());
  cache->Release(first.get());
  EXPECT_EQ(first->committed_tokens, 0);
  EXPECT_EQ(cache->Stats().slab_bytes, 0);
  EXPECT_EQ(cache->Stats().logical_tokens, 0);
  EXPECT_TRUE(Append(cache.get(), second.get(), 512));
  cache->Release(second.get());
  EXPECT_TRUE(Append(cache.get(), first.get(), 7));
  EXPECT_EQ(ListOf(cache.get(), first.get(), 0, 0).num_entries, 7);
}

TEST_F(KvCacheTest, BlocksThatWindowsReturnServeOtherUnits) {
  // 64 blocks, of which layer 1 gives back 16: room for 8 more in both layers.
  const auto cache = MakeCache(Layout(2, 1, {0, 32}), 4);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 1024));
  EXPECT_EQ(cache->Stats().used_bytes, 48 * kBlockBytes);
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 257));
  EXPECT_TRUE(Append(cache.get(), sequence.get(), 256));
  EXPECT_EQ(cache->Stats().slab_bytes, 4 * kSlabBytes);
}

TEST_F(KvCacheTest, WindowKeepsWhatTheNextRowSees) {
  for (int32_t window : {1, 2, 31, 32, 33, 64, 100}) {
    const auto cache = MakeCache(Layout(1, 1, {window}), 2);
    const auto sequence = cache->Open();
    for (int32_t committed = 1; committed <= 1300; ++committed) {
      ASSERT_TRUE(Append(cache.get(), sequence.get(), 1));
      const KvList list = ListOf(cache.get(), sequence.get(), 0, 0);
      ASSERT_GE(list.num_entries, std::min(committed, window - 1)) << window << " " << committed;
      ASSERT_LE(list.num_entries, window - 2 + kAttentionPart) << window << " " << committed;
      // Parts begin at the same positions as if nothing had been dropped.
      ASSERT_EQ((committed - list.num_entries) % kAttentionPart, 0) << window << " " << committed;
    }
  }
}

TEST_F(KvCacheTest, WindowedSequenceRunsForeverInBoundedMemory) {
  const auto cache = MakeCache(Layout(1, 1, {100}), 2, 256);
  EXPECT_EQ(cache->max_sequence_tokens(), (int64_t{1} << 31) - 1);
  const auto sequence = cache->Open();
  for (int i = 0; i < 400; ++i) ASSERT_TRUE(Append(cache.get(), sequence.get(), 256));
  EXPECT_EQ(sequence->committed_tokens, 400 * 256);
  EXPECT_LE(cache->Stats().used_bytes, 20 * kBlockBytes);
}

TEST_F(KvCacheTest, StatsAddUp) {
  const auto cache = MakeCache(Layout(2, 2), 12);
  const auto first = cache->Open();
  const auto second = cache->Open();
  ASSERT_TRUE(Append(cache.get(), first.get(), 100));
  ASSERT_TRUE(cache->TryReserve(second.get(), 10));
  const KvCacheStats stats = cache->Stats();
  EXPECT_EQ(stats.arena_bytes, 12 * kSlabBytes);
  EXPECT_EQ(stats.used_bytes, 4 * (4 + 1) * kBlockBytes);
  EXPECT_EQ(stats.slab_bytes, 2 * kSlabBytes);
  EXPECT_EQ(stats.slack_bytes, stats.slab_bytes - stats.used_bytes);
  EXPECT_EQ(stats.logical_tokens, 100);
  EXPECT_EQ(stats.sequences, 2);
}

TEST_F(KvCacheTest, FitsSaysWhatReserveWouldSay) {
  const auto cache = MakeCache(Layout(1, 2), 7);
  const auto resident = cache->Open();
  ASSERT_TRUE(Append(cache.get(), resident.get(), 700));
  for (int32_t tokens = 0; tokens < 1500; ++tokens) {
    const bool fits = cache->Fits(tokens, 0);
    const auto sequence = cache->Open();
    EXPECT_EQ(cache->TryReserve(sequence.get(), tokens), fits) << tokens;
    cache->Release(sequence.get());
  }
}

TEST_F(KvCacheTest, FitsLeavesRoomForTheReserve) {
  const auto cache = MakeCache(Layout(1, 1), 2);
  EXPECT_TRUE(cache->Fits(1024, 0));
  EXPECT_FALSE(cache->Fits(1024, 1));
  EXPECT_TRUE(cache->Fits(992, 32));
  EXPECT_FALSE(cache->Fits(992, 33));
  EXPECT_TRUE(cache->Fits(0, 1024));
}

TEST_F(KvCacheTest, FitsRefusesWhatNoPositionCanCount) {
  const auto cache = MakeCache(Layout(1, 1, {16}), 3);
  EXPECT_TRUE(cache->Fits((int64_t{1} << 31) - 1, 0));
  EXPECT_FALSE(cache->Fits(int64_t{1} << 31, 0));
  EXPECT_FALSE(cache->Fits(INT64_MAX, 0));
  EXPECT_FALSE(cache->Fits(1, INT64_MAX));
}

TEST_F(KvCacheTest, FitsCountsAWindowedLayerByItsWindowAndOneStep) {
  // Layer 1 never holds more than 22 of the 64 blocks; 42 are left for layer 0.
  const auto cache = MakeCache(Layout(2, 1, {0, 40}), 4, 128);
  EXPECT_TRUE(cache->Fits(1344, 0));
  EXPECT_FALSE(cache->Fits(1345, 0));
  const auto sequence = cache->Open();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(Append(cache.get(), sequence.get(), 128));
}

TEST_F(KvCacheTest, LongestSequenceFitsAnEmptyCacheAndOneTokenMoreDoesNot) {
  const std::vector<std::vector<int32_t>> window_sets = {{}, {0, 1, 40}, {0, 200, 700}, {0, 0, 33}};
  for (const auto& windows : window_sets) {
    for (int64_t slabs : {6, 7, 11, 20}) {
      const auto cache = MakeCache(Layout(3, 2, windows), slabs, 96);
      const int64_t longest = cache->max_sequence_tokens();
      EXPECT_TRUE(cache->Fits(longest, 0));
      EXPECT_FALSE(cache->Fits(longest + 1, 0));
      for (int32_t step : {1, 31, 33, 96}) {
        const auto sequence = cache->Open();
        for (int64_t left = longest; left > 0; left -= step) {
          ASSERT_TRUE(Append(cache.get(), sequence.get(), std::min<int64_t>(step, left)))
              << "slabs " << slabs << " step " << step << " left " << left << " of " << longest;
        }
        EXPECT_EQ(sequence->committed_tokens, longest);
        EXPECT_EQ(cache->max_sequence_tokens(), longest);
        cache->Release(sequence.get());
      }
    }
  }
}

TEST_F(KvCacheTest, WindowIsCountedByTheWorstCutAndNoMore) {
  // A window of w keeps up to w - 2 + 512 entries; a step of 480 behind them fills 32 blocks
  // exactly when w is 34.
  const int64_t unlimited = (int64_t{1} << 31) - 1;
  EXPECT_EQ(MakeCache(Layout(1, 1, {34}), 2, 480)->max_sequence_tokens(), unlimited);
  const auto cache = MakeCache(Layout(1, 1, {35}), 2, 480);
  EXPECT_EQ(cache->max_sequence_tokens(), 1024);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 480));
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 65));
  EXPECT_EQ(ListOf(cache.get(), sequence.get(), 0, 0).num_entries, 545);
  EXPECT_FALSE(cache->TryReserve(sequence.get(), 480));
  EXPECT_TRUE(cache->TryReserve(sequence.get(), 479));
}

TEST_F(KvCacheTest, HoldingCountsWholeBlocksOnBothSides) {
  const auto cache = MakeCache(Layout(2, 1, {0, 40}), 8, 512);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 33));
  const int64_t block_bytes = KvBlockBytes(KvFormat::kK16V16, cache->layout().block);
  KvHolding held = cache->Held(*sequence);
  EXPECT_EQ(held.entries, 66);
  EXPECT_EQ(held.bytes, 4 * block_bytes);
  EXPECT_EQ(held.bytes_16bit, held.bytes);
  EXPECT_EQ(held.bytes, cache->Stats().used_bytes);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Append(cache.get(), sequence.get(), 500));
  held = cache->Held(*sequence);
  EXPECT_EQ(held.bytes, cache->Stats().used_bytes);
  EXPECT_EQ(held.bytes_16bit, held.bytes);  // what a window dropped is no compaction
  EXPECT_LT(held.entries, 2 * 1533);
}

TEST_F(KvCacheTest, LongestSequenceWithoutWindowsUsesEveryWholeRoundOfBlocks) {
  EXPECT_EQ(MakeCache(Layout(3, 2), 6)->max_sequence_tokens(), 512);
  EXPECT_EQ(MakeCache(Layout(3, 2), 17)->max_sequence_tokens(), 1440);
  EXPECT_EQ(MakeCache(Layout(3, 2), 18)->max_sequence_tokens(), 1536);
}

TEST_F(KvCacheTest, TooSmallAnArenaIsRefusedWithTheNeed) {
  const auto cache = KvCache::Make(&backend_, Layout(3, 2), {.arena_bytes = kSlabBytes - 1});
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(cache.status().message()),
              testing::AllOf(testing::HasSubstr("arena_bytes is 131071"),
                             testing::HasSubstr("at least 131072")));
}

TEST_F(KvCacheTest, BadLayoutAndOptionsAreRefused) {
  const auto code = [&](KvLayout layout, KvCacheOptions options) {
    return KvCache::Make(&backend_, std::move(layout), options).status().code();
  };
  EXPECT_EQ(code(Layout(0, 2), {.arena_bytes = 1 << 20}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Layout(1, 1), {.arena_bytes = 1 << 20, .step_tokens = 0}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Layout(1, 1), {.arena_bytes = (int64_t{1} << 38) + 1}),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(Layout(1, 1), {.arena_bytes = -1}), absl::StatusCode::kResourceExhausted);
}

TEST_F(KvCacheTest, MemoryThatTheBackendLacksIsRefused) {
  const auto cache =
      KvCache::Make(&backend_, Layout(1, 1), {.arena_bytes = 4 * ReferenceBackend::kMemoryBytes});
  EXPECT_EQ(cache.status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(KvCacheTest, ArenaKeepsWholeSlabs) {
  const auto cache =
      KvCache::Make(&backend_, Layout(1, 1), {.arena_bytes = 3 * kSlabBytes - 1}).value();
  EXPECT_EQ(cache->Stats().arena_bytes, 2 * kSlabBytes);
}

TEST_F(KvCacheTest, PoolCapacityGrowsAheadOfNeedAndStays) {
  // Each of two units is estimated at 64 blocks.
  const auto cache = KvCache::Make(&backend_, Layout(1, 2),
                                   {.arena_bytes = 8 * kSlabBytes,
                                    .pool = {.preallocate = 0.5, .grow_at = 0.5, .grow_by = 0.25}})
                         .value();
  EXPECT_EQ(cache->Stats().pool_capacity_bytes, 64 * kBlockBytes);
  EXPECT_EQ(cache->Stats().pool_growths, 0);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 16 * 32));
  EXPECT_EQ(cache->Stats().pool_capacity_bytes, 64 * kBlockBytes);
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 1));
  EXPECT_EQ(cache->Stats().pool_capacity_bytes, 80 * kBlockBytes);
  EXPECT_EQ(cache->Stats().pool_growths, 2);
  cache->Release(sequence.get());
  EXPECT_EQ(cache->Stats().pool_capacity_bytes, 80 * kBlockBytes);
  EXPECT_EQ(cache->Stats().slab_bytes, 0);  // an account, not memory
}

// A unit of 8 sealed blocks in a cache of 4 slabs, of which one is kept for staging.
class KvStagingTest : public KvCacheTest {
 protected:
  static constexpr KvBlockFlags kFlags = kKvBias | kKvPosition | kKvCount;

  void SetUp() override {
    ASSERT_TRUE(Append(cache_.get(), sequence_.get(), 260));
    narrow_bytes_ = KvBlockBytes(KvFormat::kK4V4, cache_->layout().block, kFlags);
  }
  std::optional<KvStage> Stage(int32_t num_staged, int32_t unit = 0) {
    return cache_->TryStage(sequence_.get(), unit, 1, 5, KvFormat::kK4V4, kFlags, num_staged);
  }
  static std::vector<KvBlockRef> Filled(std::vector<KvBlockRef> blocks, uint16_t count) {
    for (KvBlockRef& block : blocks) block.count = count;
    return blocks;
  }
  const BlockTable& table(int32_t unit = 0) const { return sequence_->tables[unit]; }

  std::unique_ptr<KvCache> cache_ =
      KvCache::Make(&backend_, Layout(1, 2),
                    {.arena_bytes = 4 * kSlabBytes, .staging_bytes = kSlabBytes})
          .value();
  std::unique_ptr<KvSequence> sequence_ = cache_->Open();
  int64_t narrow_bytes_ = 0;
};

TEST_F(KvStagingTest, SwapReplacesTheRangeAndFreesTheRest) {
  std::optional<KvStage> stage = Stage(5);
  ASSERT_TRUE(stage.has_value());
  EXPECT_EQ(stage->blocks.size(), 5u);
  EXPECT_EQ(cache_->Stats().staging_bytes, 5 * narrow_bytes_);
  EXPECT_EQ(cache_->Stats().used_bytes, 18 * kBlockBytes);
  EXPECT_EQ(sequence_->tickets[0], stage->ticket);

  const std::vector<KvBlockRef> old(table().blocks().begin(), table().blocks().end());
  stage->blocks.resize(3);
  EXPECT_TRUE(cache_->Swap(stage->ticket, Filled(stage->blocks, 30)));
  EXPECT_EQ(sequence_->tickets[0], 0);
  ASSERT_EQ(table().blocks().size(), 7u);
  EXPECT_EQ(table().blocks()[0].offset_64, old[0].offset_64);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(table().blocks()[1 + i].offset_64, stage->blocks[i].offset_64);
    EXPECT_EQ(table().blocks()[1 + i].format, KvFormat::kK4V4);
    EXPECT_EQ(table().first_position(1 + i), 32);
  }
  EXPECT_EQ(table().blocks()[4].offset_64, old[6].offset_64);
  EXPECT_EQ(table().first_position(4), 6 * 32);
  EXPECT_EQ(table().committed_entries(), 260 - 160 + 90);
  const KvCacheStats stats = cache_->Stats();
  EXPECT_EQ(stats.staging_bytes, 0);
  EXPECT_EQ(stats.used_bytes, 13 * kBlockBytes + 3 * narrow_bytes_);
  EXPECT_EQ(stats.logical_tokens, 260);
  const KvHolding held = cache_->Held(*sequence_);
  EXPECT_EQ(held.bytes, stats.used_bytes);
  EXPECT_EQ(held.bytes_16bit, 18 * kBlockBytes);

  ASSERT_TRUE(Append(cache_.get(), sequence_.get(), 40));
  EXPECT_EQ(ListOf(cache_.get(), sequence_.get(), 0, 0).num_entries, 300 - 160 + 90);
  cache_->Release(sequence_.get());
  EXPECT_EQ(cache_->Stats().slab_bytes, 0);
}

TEST_F(KvStagingTest, UnstageLeavesTheFrontAsItWas) {
  const std::vector<KvBlockRef> old(table().blocks().begin(), table().blocks().end());
  const KvCacheStats before = cache_->Stats();
  const std::optional<KvStage> stage = Stage(5);
  cache_->Unstage(stage->ticket);
  EXPECT_EQ(cache_->Stats().slab_bytes, before.slab_bytes);
  EXPECT_EQ(cache_->Stats().used_bytes, before.used_bytes);
  for (size_t i = 0; i < old.size(); ++i) {
    EXPECT_EQ(table().blocks()[i].offset_64, old[i].offset_64);
  }
  EXPECT_TRUE(Stage(5).has_value());
}

TEST_F(KvStagingTest, AppendingGoesOnWhileAJobIsOut) {
  std::optional<KvStage> stage = Stage(5);
  ASSERT_TRUE(Append(cache_.get(), sequence_.get(), 100));
  EXPECT_TRUE(cache_->Swap(stage->ticket, Filled(stage->blocks, 32)));
  EXPECT_EQ(table().committed_entries(), 360);
}

TEST_F(KvStagingTest, AReleasedSequencesBlocksStayUntilTheJobIsBack) {
  const std::optional<KvStage> first = Stage(5, 0);
  const std::optional<KvStage> second = Stage(4, 1);
  cache_->Release(sequence_.get());
  EXPECT_TRUE(sequence_->empty());
  EXPECT_EQ(cache_->Stats().used_bytes, 0);
  EXPECT_EQ(cache_->Stats().staging_bytes, 18 * kBlockBytes + 9 * narrow_bytes_);
  EXPECT_FALSE(cache_->Swap(first->ticket, Filled(first->blocks, 32)));
  EXPECT_EQ(cache_->Stats().staging_bytes, 9 * kBlockBytes + 4 * narrow_bytes_);
  ASSERT_TRUE(Append(cache_.get(), sequence_.get(), 64));  // filled again meanwhile
  cache_->Unstage(second->ticket);
  EXPECT_EQ(cache_->Stats().staging_bytes, 0);
  EXPECT_EQ(table(1).committed_entries(), 64);
  cache_->Release(sequence_.get());
  EXPECT_EQ(cache_->Stats().slab_bytes, 0);
}

TEST_F(KvStagingTest, TheReserveIsNobodyElses) {
  // Three open slabs of 16 blocks, 9 blocks in each of the two units.
  EXPECT_EQ(cache_->max_sequence_tokens(), 24 * 32);
  EXPECT_TRUE(cache_->TryReserve(sequence_.get(), 24 * 32 - 260));
  EXPECT_FALSE(cache_->TryReserve(sequence_.get(), 24 * 32 - 260 + 1));
  EXPECT_FALSE(cache_->Fits(1, 0));
  EXPECT_TRUE(Stage(5).has_value());
}

TEST_F(KvStagingTest, StagingKeepsToItsReserve) {
  const int64_t most = kSlabBytes / narrow_bytes_;
  EXPECT_EQ(cache_->StageableBlocks(KvFormat::kK4V4, kFlags), most);
  EXPECT_FALSE(Stage(static_cast<int32_t>(most) + 1).has_value());
  EXPECT_EQ(sequence_->tickets[0], 0);
  ASSERT_TRUE(Stage(5).has_value());
  EXPECT_EQ(cache_->StageableBlocks(KvFormat::kK4V4, kFlags), most - 5);
  EXPECT_FALSE(Stage(static_cast<int32_t>(most) - 4, 1).has_value());
  EXPECT_TRUE(Stage(static_cast<int32_t>(most) - 5, 1).has_value());
}

TEST_F(KvStagingTest, UnitsOfASlidingWindowLayerAreNotStaged) {
  const auto cache = KvCache::Make(&backend_, Layout(2, 2, {0, 700}),
                                   {.arena_bytes = 16 * kSlabBytes, .staging_bytes = kSlabBytes})
                         .value();
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 260));
  for (const int32_t unit : {2, 3}) {
    EXPECT_DEATH(
        static_cast<void>(cache->TryStage(sequence.get(), unit, 1, 5, KvFormat::kK4V4, kFlags, 5)),
        "Check failed.*window");
  }
  EXPECT_TRUE(cache->TryStage(sequence.get(), 1, 1, 5, KvFormat::kK4V4, kFlags, 5).has_value());
}

TEST_F(KvStagingTest, WithoutAReserveNothingIsStaged) {
  const auto cache = MakeCache(Layout(1, 2), 4);
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 100));
  EXPECT_FALSE(cache->TryStage(sequence.get(), 0, 1, 1, KvFormat::kK4V4, 0, 1).has_value());
}

TEST_F(KvStagingTest, ACopyThatDoesNotFitLeavesNothing) {
  // The arena has room, the units' caps have not.
  const auto cache =
      KvCache::Make(&backend_, Layout(1, 2),
                    {.arena_bytes = 8 * kSlabBytes, .pool = {.cap_bytes = 6 * kBlockBytes}})
          .value();
  const auto sequence = cache->Open();
  ASSERT_TRUE(Append(cache.get(), sequence.get(), 100));
  const KvCacheStats before = cache->Stats();
  const auto copy = cache->Open();
  EXPECT_FALSE(cache->TryCopy(*sequence, copy.get()));
  EXPECT_TRUE(copy->empty());
  EXPECT_EQ(cache->Stats().used_bytes, before.used_bytes);
  EXPECT_EQ(cache->Stats().slab_bytes, before.slab_bytes);
  EXPECT_EQ(cache->Stats().logical_tokens, 100);
  EXPECT_EQ(cache->Stats().sequences, 1);
  cache->Release(sequence.get());
  ASSERT_TRUE(Append(cache.get(), copy.get(), 190));  // the cap itself
}

TEST_F(KvStagingTest, FreedBlocksArePoisonedOnlyWhereThatIsAskedFor) {
  for (const bool poison : {false, true}) {
    const auto cache =
        KvCache::Make(&backend_, Layout(1, 1), {.arena_bytes = kSlabBytes, .poison_freed = poison})
            .value();
    const auto sequence = cache->Open();
    ASSERT_TRUE(Append(cache.get(), sequence.get(), 40));
    const KvBlockRef block = sequence->tables[0].blocks()[0];
    std::byte* const data = cache->arena() + int64_t{block.offset_64} * 64;
    std::fill_n(data, kBlockBytes, std::byte{1});
    cache->Release(sequence.get());
    const std::byte expected = poison ? std::byte{0x7e} : std::byte{1};
    EXPECT_TRUE(std::all_of(data, data + kBlockBytes, [&](std::byte b) { return b == expected; }));
  }
}

TEST_F(KvStagingTest, ACopyHoldsTheSameBytesElsewhere) {
  const std::optional<KvStage> stage = Stage(4);
  ASSERT_TRUE(cache_->Swap(stage->ticket, Filled(stage->blocks, 25)));
  const auto data = [&](const KvBlockRef& block) {
    return cache_->arena() + int64_t{block.offset_64} * 64;
  };
  int fill = 0;
  for (const KvBlockRef& block : table().blocks()) {
    std::fill_n(data(block), cache_->BlockBytes(block), std::byte(++fill));
  }
  const auto copy = cache_->Open();
  ASSERT_TRUE(cache_->TryCopy(*sequence_, copy.get()));
  EXPECT_EQ(copy->committed_tokens, 260);
  EXPECT_EQ(copy->tables[0].committed_entries(), table().committed_entries());
  EXPECT_EQ(cache_->Stats().logical_tokens, 520);
  for (size_t i = 0; i < table().blocks().size(); ++i) {
    const KvBlockRef from = table().blocks()[i];
    const KvBlockRef to = copy->tables[0].blocks()[i];
    EXPECT_NE(from.offset_64, to.offset_64);
    EXPECT_EQ(from.count, to.count);
    EXPECT_EQ(from.format, to.format);
    EXPECT_TRUE(std::equal(data(from), data(from) + cache_->BlockBytes(from), data(to)));
  }
  ASSERT_TRUE(Append(cache_.get(), copy.get(), 10));
  const auto third = cache_->Open();
  EXPECT_FALSE(cache_->TryCopy(*copy, third.get()));  // the arena is full
  EXPECT_TRUE(third->empty());
  cache_->Release(copy.get());
  cache_->Release(sequence_.get());
  EXPECT_EQ(cache_->Stats().slab_bytes, 0);
  EXPECT_EQ(cache_->Stats().sequences, 0);
}

using KvCacheDeathTest = KvCacheTest;

TEST_F(KvCacheDeathTest, CommittingWhatIsNotReservedDies) {
  const auto cache = MakeCache(Layout(1, 1), 1);
  const auto sequence = cache->Open();
  EXPECT_DEATH(cache->Commit(sequence.get(), 1), "Check failed");
}

using KvStagingDeathTest = KvStagingTest;

TEST_F(KvStagingDeathTest, TwoJobsOfOneUnitDie) {
  ASSERT_TRUE(Stage(1).has_value());
  EXPECT_DEATH(Stage(1), "Check failed");
}

TEST_F(KvStagingDeathTest, SettlingATicketTwiceDies) {
  const std::optional<KvStage> stage = Stage(1);
  cache_->Unstage(stage->ticket);
  EXPECT_DEATH(cache_->Unstage(stage->ticket), "Check failed");
}

}  // namespace
}  // namespace condense
