#include "cache/block_table.h"

#include <gtest/gtest.h>

#include <vector>

namespace condense {
namespace {

constexpr int32_t kBlockTokens = 32;

class BlockTableTest : public testing::Test {
 protected:
  // Blocks are numbered in the order in which they are appended.
  void AppendBlocks(int count) {
    for (int i = 0; i < count; ++i) table_.Append({.offset_64 = next_block_++});
  }
  void Fill(int32_t tokens) {
    AppendBlocks(static_cast<int>(table_.BlocksFor(tokens)));
    table_.Commit(tokens);
  }
  static std::vector<int> Counts(const KvList& list) {
    std::vector<int> counts;
    for (int i = 0; i < list.num_blocks; ++i) counts.push_back(list.blocks[i].count);
    return counts;
  }
  static std::vector<int> Ids(const KvList& list) {
    std::vector<int> ids;
    for (int i = 0; i < list.num_blocks; ++i) ids.push_back(list.blocks[i].offset_64);
    return ids;
  }

  BlockTable table_{kBlockTokens};
  uint32_t next_block_ = 0;
};

using Ints = std::vector<int>;

TEST_F(BlockTableTest, StartsEmpty) {
  const KvList list = table_.List(0);
  EXPECT_EQ(list.num_blocks, 0);
  EXPECT_EQ(list.num_entries, 0);
  EXPECT_EQ(table_.BlocksFor(0), 0);
  EXPECT_EQ(table_.NumDroppable(0), 0);
}

TEST_F(BlockTableTest, AsksForBlocksOnlyPastTheRoomThatIsThere) {
  EXPECT_EQ(table_.BlocksFor(1), 1);
  EXPECT_EQ(table_.BlocksFor(32), 1);
  EXPECT_EQ(table_.BlocksFor(33), 2);
  AppendBlocks(1);
  EXPECT_EQ(table_.BlocksFor(32), 0);
  EXPECT_EQ(table_.BlocksFor(33), 1);
  table_.Commit(20);
  EXPECT_EQ(table_.BlocksFor(12), 0);
  EXPECT_EQ(table_.BlocksFor(13), 1);
  EXPECT_EQ(table_.BlocksFor(int64_t{1} << 31), int64_t{1} << 26);
}

TEST_F(BlockTableTest, ListEndsWithTheNewEntries) {
  AppendBlocks(4);
  table_.Commit(40);
  const KvList list = table_.List(30);
  EXPECT_EQ(list.num_entries, 70);
  EXPECT_EQ(Counts(list), (Ints{32, 32, 6}));
  EXPECT_EQ(Ids(list), (Ints{0, 1, 2}));
}

TEST_F(BlockTableTest, ListTruncatesRoomThatIsNotUsed) {
  AppendBlocks(8);
  EXPECT_EQ(Counts(table_.List(200)), (Ints{32, 32, 32, 32, 32, 32, 8}));
  EXPECT_EQ(Counts(table_.List(5)), (Ints{5}));
  table_.Commit(5);
  EXPECT_EQ(Counts(table_.List(0)), (Ints{5}));
  EXPECT_EQ(Counts(table_.List(27)), (Ints{32}));
  EXPECT_EQ(Counts(table_.List(28)), (Ints{32, 1}));
  EXPECT_EQ(table_.List(28).num_entries, 33);
}

TEST_F(BlockTableTest, CommitSealsFullBlocksWhateverTheLastListSaid) {
  AppendBlocks(3);
  EXPECT_EQ(Counts(table_.List(3)), (Ints{3}));
  table_.Commit(70);
  EXPECT_EQ(Counts(table_.List(1)), (Ints{32, 32, 7}));
}

TEST_F(BlockTableTest, CommittingToABlocksEndLeavesNoOpenBlock) {
  Fill(64);
  EXPECT_EQ(Counts(table_.List(0)), (Ints{32, 32}));
  EXPECT_EQ(table_.BlocksFor(1), 1);
}

TEST_F(BlockTableTest, ListPointsIntoTheTable) {
  AppendBlocks(2);
  EXPECT_EQ(table_.List(40).blocks, table_.blocks().data());
}

TEST_F(BlockTableTest, DropsOnlySealedBlocksAndKeepsEnoughEntries) {
  Fill(100);  // 32 32 32 4
  EXPECT_EQ(table_.NumDroppable(100), 0);
  EXPECT_EQ(table_.NumDroppable(69), 0);
  EXPECT_EQ(table_.NumDroppable(68), 1);
  EXPECT_EQ(table_.NumDroppable(37), 1);
  EXPECT_EQ(table_.NumDroppable(36), 2);
  EXPECT_EQ(table_.NumDroppable(4), 3);
  EXPECT_EQ(table_.NumDroppable(0), 3);
}

TEST_F(BlockTableTest, GoesOnBehindDroppedBlocks) {
  Fill(100);
  table_.DropFront(2);
  KvList list = table_.List(0);
  EXPECT_EQ(Ids(list), (Ints{2, 3}));
  EXPECT_EQ(list.num_entries, 36);
  Fill(30);
  list = table_.List(0);
  EXPECT_EQ(Ids(list), (Ints{2, 3, 4}));
  EXPECT_EQ(Counts(list), (Ints{32, 32, 2}));
  EXPECT_EQ(list.num_entries, 66);
}

TEST_F(BlockTableTest, DroppingLeavesReservedRoomUntouched) {
  AppendBlocks(6);
  table_.Commit(64);
  table_.DropFront(2);
  EXPECT_EQ(table_.BlocksFor(128), 0);
  EXPECT_EQ(Ids(table_.List(128)), (Ints{2, 3, 4, 5}));
}

TEST_F(BlockTableTest, ClearForgetsEverything) {
  Fill(100);
  table_.Clear();
  EXPECT_TRUE(table_.blocks().empty());
  EXPECT_EQ(table_.List(0).num_entries, 0);
  EXPECT_EQ(table_.BlocksFor(33), 2);
}

using BlockTableDeathTest = BlockTableTest;

TEST_F(BlockTableDeathTest, CommittingMoreThanReservedDies) {
  AppendBlocks(1);
  EXPECT_DEATH(table_.Commit(33), "Check failed");
}

TEST_F(BlockTableDeathTest, DroppingABlockThatIsNotSealedDies) {
  Fill(40);
  EXPECT_DEATH(table_.DropFront(2), "Check failed");
}

}  // namespace
}  // namespace condense
