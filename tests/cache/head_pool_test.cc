#include "cache/head_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int64_t kSlabBytes = 4096;
constexpr int64_t kBlockBytes = 1024;  // 4 in a slab

class HeadPoolTest : public testing::Test {
 protected:
  static std::vector<KvBlockRef> AllocateMany(HeadPool* pool, int count) {
    std::vector<KvBlockRef> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(pool->TryAllocate().value());
    return blocks;
  }
  static int64_t SlabOf(KvBlockRef block) { return block.offset_64 * 64 / kSlabBytes; }

  ReferenceBackend backend_;
  Arena arena_{backend_.Allocate(8 * kSlabBytes).value(), kSlabBytes};
  HeadPool pool_{&arena_, KvFormat::kK16V16, kBlockBytes};
};

TEST_F(HeadPoolTest, CarvesBlocksThatDoNotOverlap) {
  std::set<uint32_t> offsets;
  for (const KvBlockRef& block : AllocateMany(&pool_, 32)) {
    EXPECT_EQ(block.offset_64 * 64 % kBlockBytes, 0u);
    EXPECT_LT(block.offset_64 * 64, 8 * kSlabBytes);
    EXPECT_EQ(block.format, KvFormat::kK16V16);
    EXPECT_EQ(block.count, 0);
    EXPECT_TRUE(offsets.insert(block.offset_64).second);
  }
  EXPECT_FALSE(pool_.TryAllocate().has_value());
}

TEST_F(HeadPoolTest, TakesASlabOnlyWhenItsOwnAreFull) {
  std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 4);
  EXPECT_EQ(arena_.free_slabs(), 7);
  pool_.Free(blocks[2]);
  EXPECT_EQ(pool_.TryAllocate()->offset_64, blocks[2].offset_64);
  EXPECT_EQ(arena_.free_slabs(), 7);
  EXPECT_TRUE(pool_.TryAllocate().has_value());
  EXPECT_EQ(arena_.free_slabs(), 6);
}

TEST_F(HeadPoolTest, ReturnsASlabWithItsLastBlock) {
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 8);
  EXPECT_EQ(arena_.free_slabs(), 6);
  for (int i : {0, 2, 3}) pool_.Free(blocks[i]);
  EXPECT_EQ(arena_.free_slabs(), 6);
  pool_.Free(blocks[1]);
  EXPECT_EQ(arena_.free_slabs(), 7);
  for (int i = 4; i < 8; ++i) pool_.Free(blocks[i]);
  EXPECT_EQ(arena_.free_slabs(), 8);
  EXPECT_EQ(pool_.slab_bytes(), 0);
}

TEST_F(HeadPoolTest, FillsTheFullerSlabFirstSoThatTheEmptierDrains) {
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 8);
  for (int i : {0, 1, 2}) pool_.Free(blocks[i]);
  pool_.Free(blocks[5]);
  EXPECT_EQ(SlabOf(pool_.TryAllocate().value()), SlabOf(blocks[5]));
  pool_.Free(blocks[3]);
  EXPECT_EQ(arena_.free_slabs(), 7);
}

TEST_F(HeadPoolTest, AnotherPoolUsesReturnedSlabs) {
  HeadPool other(&arena_, KvFormat::kK16V16, kBlockBytes);
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 32);
  EXPECT_FALSE(other.TryAllocate().has_value());
  for (int i = 8; i < 12; ++i) pool_.Free(blocks[i]);
  EXPECT_EQ(SlabOf(other.TryAllocate().value()), SlabOf(blocks[8]));
  EXPECT_FALSE(pool_.TryAllocate().has_value());
}

TEST_F(HeadPoolTest, CountsUsedAndTakenBytes) {
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 5);
  EXPECT_EQ(pool_.used_bytes(), 5 * kBlockBytes);
  EXPECT_EQ(pool_.slab_bytes(), 2 * kSlabBytes);
  pool_.Free(blocks[0]);
  EXPECT_EQ(pool_.used_bytes(), 4 * kBlockBytes);
  EXPECT_EQ(pool_.slab_bytes(), 2 * kSlabBytes);
}

TEST_F(HeadPoolTest, SaysHowManySlabsMoreBlocksNeed) {
  EXPECT_EQ(pool_.SlabsFor(0), 0);
  EXPECT_EQ(pool_.SlabsFor(1), 1);
  EXPECT_EQ(pool_.SlabsFor(4), 1);
  EXPECT_EQ(pool_.SlabsFor(5), 2);
  AllocateMany(&pool_, 3);
  EXPECT_EQ(pool_.SlabsFor(1), 0);
  EXPECT_EQ(pool_.SlabsFor(2), 1);
  EXPECT_EQ(pool_.SlabsFor(6), 2);
}

TEST_F(HeadPoolTest, LeavesTheRestOfASlabThatBlocksDoNotFill) {
  HeadPool pool(&arena_, KvFormat::kK16V16, 1536);
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool, 3);
  EXPECT_EQ(SlabOf(blocks[0]), SlabOf(blocks[1]));
  EXPECT_NE(SlabOf(blocks[0]), SlabOf(blocks[2]));
}

TEST_F(HeadPoolTest, CarvesSixtyFourBlocksAtMost) {
  HeadPool pool(&arena_, KvFormat::kK16V16, 64);
  std::vector<KvBlockRef> blocks = AllocateMany(&pool, 64);
  EXPECT_EQ(pool.slab_bytes(), kSlabBytes);
  blocks.push_back(pool.TryAllocate().value());
  EXPECT_EQ(pool.slab_bytes(), 2 * kSlabBytes);
  for (const KvBlockRef& block : blocks) pool.Free(block);
  EXPECT_EQ(arena_.free_slabs(), 8);
}

using HeadPoolDeathTest = HeadPoolTest;

TEST_F(HeadPoolDeathTest, FreeingTwiceDies) {
  const std::vector<KvBlockRef> blocks = AllocateMany(&pool_, 2);
  pool_.Free(blocks[0]);
  EXPECT_DEATH(pool_.Free(blocks[0]), "Check failed");
  pool_.Free(blocks[1]);
  EXPECT_DEATH(pool_.Free(blocks[1]), "Check failed");
}

TEST_F(HeadPoolDeathTest, FreeingAnotherPoolsBlockDies) {
  HeadPool other(&arena_, KvFormat::kK16V16, kBlockBytes);
  const KvBlockRef block = other.TryAllocate().value();
  AllocateMany(&pool_, 1);
  EXPECT_DEATH(pool_.Free(block), "Check failed");
}

}  // namespace
}  // namespace condense
