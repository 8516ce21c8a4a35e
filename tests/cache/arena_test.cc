#include "cache/arena.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>

#include "tests/support/reference_backend.h"

namespace condense {
namespace {

constexpr int64_t kSlabBytes = 4096;

class ArenaTest : public testing::Test {
 protected:
  Arena MakeArena(int64_t size_bytes) {
    return Arena(&backend_, backend_.Allocate(size_bytes).value(), kSlabBytes);
  }

  ReferenceBackend backend_;
};

TEST_F(ArenaTest, HandsOutEverySlabOnceAndThenNothing) {
  Arena arena = MakeArena(3 * kSlabBytes);
  std::set<int64_t> slabs;
  for (int i = 0; i < 3; ++i) slabs.insert(arena.TryTake().value());
  EXPECT_EQ(slabs, (std::set<int64_t>{0, kSlabBytes, 2 * kSlabBytes}));
  EXPECT_EQ(arena.TryTake(), std::nullopt);
  EXPECT_EQ(arena.free_slabs(), 0);
}

TEST_F(ArenaTest, TakesBackWhatItHandedOut) {
  Arena arena = MakeArena(2 * kSlabBytes);
  const int64_t first = arena.TryTake().value();
  const int64_t second = arena.TryTake().value();
  arena.Return(first);
  EXPECT_EQ(arena.free_slabs(), 1);
  EXPECT_EQ(arena.TryTake(), first);
  arena.Return(second);
  arena.Return(first);
  EXPECT_EQ(arena.free_slabs(), 2);
}

TEST_F(ArenaTest, HandsOutTheNewestReturnedSlabFirst) {
  Arena arena = MakeArena(4 * kSlabBytes);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(arena.TryTake().has_value());
  for (int64_t slab : {1, 0, 2}) arena.Return(slab * kSlabBytes);
  for (int64_t slab : {2, 0, 1, 3}) EXPECT_EQ(arena.TryTake(), slab * kSlabBytes);
}

TEST_F(ArenaTest, ReusesReturnedSlabsBeforeUntouchedOnes) {
  Arena arena = MakeArena(100 * kSlabBytes);
  int64_t highest = 0;
  for (int round = 0; round < 50; ++round) {
    const int64_t first = arena.TryTake().value();
    const int64_t second = arena.TryTake().value();
    highest = std::max({highest, first, second});
    arena.Return(round % 2 == 0 ? first : second);
    arena.Return(round % 2 == 0 ? second : first);
  }
  EXPECT_EQ(highest, kSlabBytes);
}

TEST_F(ArenaTest, CountsWholeSlabsOnly) {
  const Arena arena = MakeArena(3 * kSlabBytes - 64);
  EXPECT_EQ(arena.num_slabs(), 2);
  EXPECT_EQ(arena.free_slabs(), 2);
  EXPECT_EQ(arena.size_bytes(), 2 * kSlabBytes);
}

TEST_F(ArenaTest, DiscardsWhatWasReturnedFirstAndOnce) {
  Arena arena = MakeArena(4 * kSlabBytes);
  for (int i = 0; i < 4; ++i) ASSERT_EQ(arena.TryTake(), i * kSlabBytes);
  std::fill_n(arena.data(), 4 * kSlabBytes, std::byte{1});
  for (const int64_t slab : {2, 0, 3}) arena.Return(slab * kSlabBytes);
  const auto discarded = [&](int64_t slab) {
    return arena.data()[slab * kSlabBytes] != std::byte{1};  // the reference backend poisons
  };
  arena.Discard(/*keep=*/1, /*at_most=*/1);
  EXPECT_TRUE(discarded(2));
  EXPECT_FALSE(discarded(0));
  arena.Discard(/*keep=*/1, /*at_most=*/5);
  EXPECT_TRUE(discarded(0));
  EXPECT_FALSE(discarded(3));
  EXPECT_FALSE(discarded(1));
  std::fill_n(arena.data(), 4 * kSlabBytes, std::byte{1});
  arena.Discard(/*keep=*/1, /*at_most=*/5);
  EXPECT_FALSE(discarded(2) || discarded(0));
  EXPECT_EQ(arena.TryTake(), 3 * kSlabBytes);
  EXPECT_EQ(arena.TryTake(), 0);
  arena.Return(0);
  arena.Discard(/*keep=*/0, /*at_most=*/5);
  EXPECT_TRUE(discarded(0));
}

using ArenaDeathTest = ArenaTest;

TEST_F(ArenaDeathTest, ReturningWhatWasNeverTakenDies) {
  Arena arena = MakeArena(2 * kSlabBytes);
  EXPECT_DEATH(arena.Return(0), "Check failed");
  const int64_t slab = arena.TryTake().value();
  EXPECT_DEATH(arena.Return(kSlabBytes), "Check failed");
  EXPECT_DEATH(arena.Return(slab + 64), "Check failed");
}

TEST_F(ArenaDeathTest, ReturningMoreThanWasTakenDies) {
  Arena arena = MakeArena(2 * kSlabBytes);
  const int64_t slab = arena.TryTake().value();
  arena.Return(slab);
  EXPECT_DEATH(arena.Return(slab), "Check failed");
}

TEST_F(ArenaDeathTest, BufferSmallerThanASlabDies) {
  EXPECT_DEATH(MakeArena(kSlabBytes - 64), "Check failed");
}

}  // namespace
}  // namespace condense
