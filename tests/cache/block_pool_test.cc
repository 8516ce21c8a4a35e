#include "cache/block_pool.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int64_t kSlabBytes = 4096;
constexpr int64_t kBlockBytes = 1024;  // 4 in a slab

class BlockPoolTest : public testing::Test {
 protected:
  static std::vector<int64_t> AllocateMany(BlockPool* pool, int count) {
    std::vector<int64_t> blocks;
    for (int i = 0; i < count; ++i) blocks.push_back(pool->TryAllocate().value());
    return blocks;
  }
  static int64_t SlabOf(int64_t block) { return block / kSlabBytes; }

  ReferenceBackend backend_;
  Arena arena_{&backend_, backend_.Allocate(8 * kSlabBytes).value(), kSlabBytes};
  BlockPool pool_{&arena_, kBlockBytes};
};

TEST_F(BlockPoolTest, CarvesBlocksThatDoNotOverlap) {
  std::set<int64_t> offsets;
  for (const int64_t block : AllocateMany(&pool_, 32)) {
    EXPECT_EQ(block % kBlockBytes, 0);
    EXPECT_LT(block, 8 * kSlabBytes);
    EXPECT_TRUE(offsets.insert(block).second);
  }
  EXPECT_FALSE(pool_.TryAllocate().has_value());
}

TEST_F(BlockPoolTest, TakesASlabOnlyWhenItsOwnAreFull) {
  std::vector<int64_t> blocks = AllocateMany(&pool_, 4);
  EXPECT_EQ(arena_.free_slabs(), 7);
  pool_.Free(blocks[2]);
  EXPECT_EQ(pool_.TryAllocate(), blocks[2]);
  EXPECT_EQ(arena_.free_slabs(), 7);
  EXPECT_TRUE(pool_.TryAllocate().has_value());
  EXPECT_EQ(arena_.free_slabs(), 6);
}

TEST_F(BlockPoolTest, ReturnsASlabWithItsLastBlock) {
  const std::vector<int64_t> blocks = AllocateMany(&pool_, 8);
  EXPECT_EQ(arena_.free_slabs(), 6);
  for (int i : {0, 2, 3}) pool_.Free(blocks[i]);
  EXPECT_EQ(arena_.free_slabs(), 6);
  pool_.Free(blocks[1]);
  EXPECT_EQ(arena_.free_slabs(), 7);
  for (int i = 4; i < 8; ++i) pool_.Free(blocks[i]);
  EXPECT_EQ(arena_.free_slabs(), 8);
  EXPECT_EQ(pool_.slab_bytes(), 0);
}

TEST_F(BlockPoolTest, FillsTheFullerSlabFirstSoThatTheEmptierDrains) {
  const std::vector<int64_t> blocks = AllocateMany(&pool_, 8);
  for (int i : {0, 1, 2}) pool_.Free(blocks[i]);
  pool_.Free(blocks[5]);
  EXPECT_EQ(SlabOf(pool_.TryAllocate().value()), SlabOf(blocks[5]));
  pool_.Free(blocks[3]);
  EXPECT_EQ(arena_.free_slabs(), 7);
}

TEST_F(BlockPoolTest, AnotherPoolUsesReturnedSlabs) {
  BlockPool other(&arena_, kBlockBytes);
  const std::vector<int64_t> blocks = AllocateMany(&pool_, 32);
  EXPECT_FALSE(other.TryAllocate().has_value());
  for (int i = 8; i < 12; ++i) pool_.Free(blocks[i]);
  EXPECT_EQ(SlabOf(other.TryAllocate().value()), SlabOf(blocks[8]));
  EXPECT_FALSE(pool_.TryAllocate().has_value());
}

TEST_F(BlockPoolTest, CountsUsedAndTakenBytes) {
  const std::vector<int64_t> blocks = AllocateMany(&pool_, 5);
  EXPECT_EQ(pool_.used_bytes(), 5 * kBlockBytes);
  EXPECT_EQ(pool_.slab_bytes(), 2 * kSlabBytes);
  pool_.Free(blocks[0]);
  EXPECT_EQ(pool_.used_bytes(), 4 * kBlockBytes);
  EXPECT_EQ(pool_.slab_bytes(), 2 * kSlabBytes);
}

TEST_F(BlockPoolTest, SaysHowManySlabsMoreBlocksNeed) {
  EXPECT_EQ(pool_.SlabsFor(0), 0);
  EXPECT_EQ(pool_.SlabsFor(1), 1);
  EXPECT_EQ(pool_.SlabsFor(4), 1);
  EXPECT_EQ(pool_.SlabsFor(5), 2);
  AllocateMany(&pool_, 3);
  EXPECT_EQ(pool_.SlabsFor(1), 0);
  EXPECT_EQ(pool_.SlabsFor(2), 1);
  EXPECT_EQ(pool_.SlabsFor(6), 2);
}

TEST_F(BlockPoolTest, LeavesTheRestOfASlabThatBlocksDoNotFill) {
  BlockPool pool(&arena_, 1536);
  const std::vector<int64_t> blocks = AllocateMany(&pool, 3);
  EXPECT_EQ(SlabOf(blocks[0]), SlabOf(blocks[1]));
  EXPECT_NE(SlabOf(blocks[0]), SlabOf(blocks[2]));
}

TEST_F(BlockPoolTest, CarvesAsManyBlocksAsASlabHolds) {
  BlockPool pool(&arena_, 64);
  std::vector<int64_t> blocks = AllocateMany(&pool, 64);
  EXPECT_EQ(pool.slab_bytes(), kSlabBytes);
  blocks.push_back(pool.TryAllocate().value());
  EXPECT_EQ(pool.slab_bytes(), 2 * kSlabBytes);
  for (const int64_t block : blocks) pool.Free(block);
  EXPECT_EQ(arena_.free_slabs(), 8);
}

TEST_F(BlockPoolTest, CarvesTwoHundredAndFiftySixBlocksAtMost) {
  Arena arena(&backend_, backend_.Allocate(2 * 32768).value(),
              32768);  // 512 blocks of 64 bytes in a slab
  BlockPool pool(&arena, 64);
  std::set<int64_t> offsets;
  for (const int64_t block : AllocateMany(&pool, 512)) EXPECT_TRUE(offsets.insert(block).second);
  EXPECT_EQ(pool.slab_bytes(), 2 * 32768);
  EXPECT_FALSE(pool.TryAllocate().has_value());
  for (const int64_t block : offsets) pool.Free(block);
  EXPECT_EQ(arena.free_slabs(), 2);
}

using BlockPoolDeathTest = BlockPoolTest;

TEST_F(BlockPoolDeathTest, FreeingTwiceDies) {
  const std::vector<int64_t> blocks = AllocateMany(&pool_, 2);
  pool_.Free(blocks[0]);
  EXPECT_DEATH(pool_.Free(blocks[0]), "Check failed");
  pool_.Free(blocks[1]);
  EXPECT_DEATH(pool_.Free(blocks[1]), "Check failed");
}

TEST_F(BlockPoolDeathTest, FreeingAnotherPoolsBlockDies) {
  BlockPool other(&arena_, kBlockBytes);
  const int64_t block = other.TryAllocate().value();
  AllocateMany(&pool_, 1);
  EXPECT_DEATH(pool_.Free(block), "Check failed");
}

}  // namespace
}  // namespace condense
