#include "cache/kv_layout.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace condense {
namespace {

KvLayout SmallLayout() {
  return {.num_layers = 30, .num_kv_heads = 3, .block = {.head_dim = 64, .block_tokens = 32}};
}

// The message of the refusal; empty if the layout is accepted.
std::string Refusal(const KvLayout& layout) {
  const absl::Status status = layout.Validate();
  if (status.ok()) return "";
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(KvLayoutTest, NumbersUnitsLayerByLayer) {
  const KvLayout layout = SmallLayout();
  EXPECT_EQ(layout.num_units(), 90);
  EXPECT_EQ(layout.unit(0, 0), 0);
  EXPECT_EQ(layout.unit(1, 0), 3);
  EXPECT_EQ(layout.unit(29, 2), 89);
}

TEST(KvLayoutTest, CountsBytesOfATokenInSixteenBits) {
  EXPECT_EQ(SmallLayout().bytes_per_token_16bit(), 30 * 3 * 64 * 2 * 2);
}

TEST(KvLayoutTest, SlabHoldsSixteenBlocksOrSixtyFourKibibytes) {
  KvLayout layout = SmallLayout();
  EXPECT_EQ(layout.slab_bytes(), 16 * 8192);
  layout.block.head_dim = 8;
  EXPECT_EQ(layout.slab_bytes(), 65536);
  layout.block = {.head_dim = 256, .block_tokens = 64};
  EXPECT_EQ(layout.slab_bytes(), 16 * 65536);
}

TEST(KvLayoutTest, BlocksAndSlabsAreMultiplesOfSixtyFourBytes) {
  KvLayout layout = SmallLayout();
  for (layout.block.head_dim = 8; layout.block.head_dim <= 1024; layout.block.head_dim += 8) {
    for (int32_t block_tokens : {32, 64}) {
      layout.block.block_tokens = block_tokens;
      EXPECT_EQ(KvBlockBytes(KvFormat::kK16V16, layout.block),
                4 * block_tokens * layout.block.head_dim);
      EXPECT_EQ(layout.slab_bytes() % 64, 0);
    }
  }
}

TEST(KvLayoutTest, NoWindowsMeansFullAttentionEverywhere) {
  KvLayout layout = SmallLayout();
  EXPECT_EQ(layout.window(29), 0);
  layout.layer_window.assign(30, 512);
  layout.layer_window[5] = 0;
  EXPECT_EQ(layout.window(4), 512);
  EXPECT_EQ(layout.window(5), 0);
  EXPECT_EQ(Refusal(layout), "");
}

TEST(KvLayoutTest, AcceptsItsLimits) {
  KvLayout layout = SmallLayout();
  EXPECT_EQ(Refusal(layout), "");
  layout = {.num_layers = 1, .num_kv_heads = 1, .block = {.head_dim = 8, .block_tokens = 64}};
  EXPECT_EQ(Refusal(layout), "");
  layout = {
      .num_layers = 4096, .num_kv_heads = 4096, .block = {.head_dim = 1024, .block_tokens = 64}};
  EXPECT_EQ(Refusal(layout), "");
}

TEST(KvLayoutTest, RefusalNamesDimensionValueAndLimit) {
  using testing::AllOf;
  using testing::HasSubstr;
  KvLayout layout = SmallLayout();
  layout.num_layers = 0;
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("num_layers is 0"), HasSubstr("4096")));
  layout = SmallLayout();
  layout.num_kv_heads = 4097;
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("num_kv_heads is 4097"), HasSubstr("4096")));
  layout = SmallLayout();
  layout.block.head_dim = 1032;
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("head_dim is 1032"), HasSubstr("1024")));
  layout.block.head_dim = 60;
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("head_dim is 60"), HasSubstr("multiple of 8")));
  layout = SmallLayout();
  layout.block.block_tokens = 48;
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("block_tokens is 48"), HasSubstr("32 or 64")));
  layout = SmallLayout();
  layout.layer_window = {1, 2};
  EXPECT_THAT(Refusal(layout), AllOf(HasSubstr("layer_window has 2"), HasSubstr("30 layers")));
  layout.layer_window.assign(30, 0);
  layout.layer_window[7] = -1;
  EXPECT_THAT(Refusal(layout), HasSubstr("layer_window of layer 7 is -1"));
}

}  // namespace
}  // namespace condense
