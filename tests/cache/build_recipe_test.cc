#include "cache/build_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace condense {
namespace {

using testing::HasSubstr;

constexpr KvBlockFlags kEverything = kKvBias | kKvPosition | kKvCount;

// `n` entries that stay as they are, at positions from 100 on.
MergePlan Kept(int32_t n) {
  MergePlan plan{.num_entries = n};
  for (int32_t e = 0; e < n; ++e) {
    plan.groups.push_back({.first_member = e, .num_members = 1, .position = 100 + e, .count = 1});
    plan.members.push_back({e, 1, 1});
  }
  return plan;
}

std::vector<KvBlockRef> Blocks(int32_t num, KvBlockFlags flags) {
  std::vector<KvBlockRef> blocks;
  for (int32_t i = 0; i < num; ++i) {
    blocks.push_back({static_cast<uint32_t>(10 + i), KvFormat::kK4V4, flags, 0});
  }
  return blocks;
}

std::string ErrorOf(const MergePlan& plan, KvBlockFlags flags) {
  const auto recipe = MakeBuildRecipe(plan, Blocks(3, flags), 32);
  EXPECT_EQ(recipe.status().code(), absl::StatusCode::kInternal);
  return std::string(recipe.status().message());
}

TEST(BuildRecipeTest, FillsBlocksInOrder) {
  const BuildRecipe recipe = *MakeBuildRecipe(Kept(70), Blocks(5, kKvRun), 32);
  ASSERT_EQ(recipe.blocks.size(), 3u);
  EXPECT_EQ(recipe.blocks[0].count, 32);
  EXPECT_EQ(recipe.blocks[1].count, 32);
  EXPECT_EQ(recipe.blocks[2].count, 6);
  EXPECT_EQ(recipe.blocks[2].offset_64, 12u);
  EXPECT_EQ(recipe.blocks[2].flags, kKvRun);
  ASSERT_EQ(recipe.entries.size(), 70u);
  EXPECT_EQ(recipe.entries[69].position, 169.0f);
  EXPECT_EQ(recipe.entries[69].first_member, 69);
}

TEST(BuildRecipeTest, TakesWeightsBiasesAndCountsOver) {
  MergePlan plan = Kept(3);
  plan.groups = {{.first_member = 0, .num_members = 2, .position = 101, .bias = 0.5f, .count = 2},
                 plan.groups[2]};
  plan.members = {{1, 1, 0.75f}, {0, 0, 0.25f}, {2, 1, 1}};
  const BuildRecipe recipe = *MakeBuildRecipe(plan, Blocks(1, kEverything), 32);
  ASSERT_EQ(recipe.entries.size(), 2u);
  EXPECT_EQ(recipe.entries[0].num_members, 2);
  EXPECT_EQ(recipe.entries[0].bias, 0.5f);
  EXPECT_EQ(recipe.entries[0].count, 2);
  EXPECT_EQ(recipe.members[1].source, 0);
  EXPECT_EQ(recipe.members[1].key_weight, 0.0f);
  EXPECT_EQ(recipe.members[1].value_weight, 0.25f);
  EXPECT_EQ(recipe.blocks[0].count, 2);
}

TEST(BuildRecipeTest, NothingLeftNeedsNoBlock) {
  const BuildRecipe recipe = *MakeBuildRecipe({.num_entries = 4, .drops = {0, 1, 2, 3}}, {}, 32);
  EXPECT_TRUE(recipe.blocks.empty());
}

TEST(BuildRecipeTest, RefusesWhatBlocksCannotHold) {
  MergePlan plan = Kept(64);
  EXPECT_THAT(std::string(MakeBuildRecipe(plan, Blocks(1, kKvRun), 32).status().message()),
              HasSubstr("64 entries need 2 blocks, there are 1"));
  plan.groups[40].bias = 0.5f;
  EXPECT_THAT(ErrorOf(plan, kKvRun | kKvCount), HasSubstr("bias 0.5"));
  plan = Kept(64);
  plan.groups[40].count = 2;
  EXPECT_THAT(ErrorOf(plan, kKvRun | kKvBias), HasSubstr("2 tokens"));
  // A gap inside a block; between blocks it is none.
  plan = Kept(64);
  for (int e = 32; e < 64; ++e) plan.groups[e].position += 5;
  EXPECT_TRUE(MakeBuildRecipe(plan, Blocks(2, kKvRun), 32).ok());
  EXPECT_TRUE(MakeBuildRecipe(plan, Blocks(2, 0), 32).ok());
  for (int e = 33; e < 64; ++e) plan.groups[e].position += 70000;
  EXPECT_THAT(ErrorOf(plan, kKvRun), HasSubstr("entry 1 of a block without positions"));
  EXPECT_THAT(ErrorOf(plan, 0), HasSubstr("entry 1 of a block without positions"));
  EXPECT_THAT(ErrorOf(plan, kEverything), HasSubstr("at most 65535"));
}

}  // namespace
}  // namespace condense
