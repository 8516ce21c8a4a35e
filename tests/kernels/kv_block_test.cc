#include "kernels/kv_block.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <vector>

#include "tests/kernels/backend_fixture.h"
#include "tests/support/kv_lists.h"

namespace condense {
namespace {

TEST(KvBlockTest, SixteenBitBlockHoldsKeysThenValues) {
  const KvBlockShape shape = {64, 32};
  EXPECT_EQ(KvValuesOffset(KvFormat::kK16V16, shape), 2 * 64 * 32);
  EXPECT_EQ(KvBlockBytes(KvFormat::kK16V16, shape), 2 * 2 * 64 * 32);
}

TEST(KvBlockTest, EveryPieceStartsAtAMultipleOf64Bytes) {
  for (int head_dim = 8; head_dim <= 256; head_dim += 8) {
    for (const int block_tokens : {32, 64}) {
      for (int format = 0; format < kNumKvFormats; ++format) {
        const KvBlockPieces pieces =
            KvPieces(static_cast<KvFormat>(format), 31, {head_dim, block_tokens});
        for (const int64_t piece :
             {pieces.keys, pieces.key_upper, pieces.key_scales, pieces.values, pieces.value_upper,
              pieces.value_scales, pieces.bias, pieces.bytes}) {
          EXPECT_EQ(piece % 64, 0);
        }
        EXPECT_EQ(pieces.base % 4, 0);
      }
    }
  }
}

TEST(KvBlockTest, FormatsNameTheirWidths) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    EXPECT_EQ(MakeKvFormat(KvKeyBits(format), KvValueBits(format)), format);
    EXPECT_EQ(ParseKvFormat(KvFormatName(format)), format);
  }
  EXPECT_EQ(KvFormatName(KvFormat::kK4V3), "k4v3");
  EXPECT_EQ(MakeKvFormat(6, 4), KvFormat::kK6V4);
  EXPECT_EQ(MakeKvFormat(3, 4), std::nullopt);
  EXPECT_EQ(ParseKvFormat("k5v4"), std::nullopt);
}

TEST(KvBlockTest, BytesOfAnEntryAreCodesScalesAndSideArrays) {
  const KvBlockShape shape = {64, 32};
  EXPECT_EQ(KvBlockBytes(KvFormat::kK8V8, shape), 32 * (64 + 2 + 64 + 2));
  EXPECT_EQ(KvBlockBytes(KvFormat::kK6V4, shape), 32 * (48 + 2 + 32 + 2));
  EXPECT_EQ(KvBlockBytes(KvFormat::kK4V4, shape), 32 * (32 + 2 + 32 + 2));
  EXPECT_EQ(KvBlockBytes(KvFormat::kK4V3, shape), 32 * (32 + 2 + 24 + 2));
  EXPECT_EQ(KvBlockBytes(KvFormat::kK4V4, shape, kKvRun | kKvCentred), 32 * 68 + 64);
  EXPECT_EQ(KvBlockBytes(KvFormat::kK4V4, shape, kKvBias | kKvPosition | kKvCount | kKvCentred),
            32 * (68 + 2 + 2 + 1) + 4 + 28);
}

TEST(KvBlockTest, PositionIsBasePlusDistanceOrPlusIndex) {
  const KvBlockShape shape = {8, 32};
  KvBlockRef ref = {0, KvFormat::kK4V4, kKvPosition | kKvBias, 32};
  const KvBlockPieces pieces = KvPieces(ref.format, ref.flags, shape);
  std::vector<std::byte> block(pieces.bytes);
  const uint32_t base = 70000;
  const uint16_t distance = 60001;
  std::memcpy(block.data() + pieces.base, &base, 4);
  std::memcpy(block.data() + pieces.distances + 2 * 31, &distance, 2);
  EXPECT_EQ(KvPositionOf(block.data(), ref, shape, 31), 130001);
  EXPECT_EQ(KvPositionOf(block.data(), ref, shape, 30), 70000);
  ref.flags = kKvRun;
  std::memcpy(block.data() + KvPieces(ref.format, ref.flags, shape).base, &base, 4);
  EXPECT_EQ(KvPositionOf(block.data(), ref, shape, 31), 70031);
}

class KvAppendTest : public BackendFixture {};

std::vector<uint8_t> AppendAndRead(Backend* backend, const KvLists& lists) {
  const int64_t size = int64_t{lists.num_rows()} * lists.num_kv_heads() * lists.shape().head_dim;
  const DeviceArray<float> k(backend, RandomFloats(size, 1));
  const DeviceArray<float> v(backend, RandomFloats(size, 2));
  const DeviceArray<std::byte> arena(backend, lists.image());
  KvAppendArgs args;
  args.k = k.get();
  args.v = v.get();
  args.arena = arena.get();
  args.shape = lists.shape();
  args.num_kv_heads = lists.num_kv_heads();
  args.num_sequences = lists.num_sequences();
  args.sequences = lists.sequences();
  backend->KvAppend(args);
  const std::vector<std::byte> bytes = arena.Read();
  const uint8_t* begin = reinterpret_cast<const uint8_t*>(bytes.data());
  return {begin, begin + bytes.size()};
}

TEST_P(KvAppendTest, WritesTheBytesOfTheReferenceAndNoOthers) {
  for (const int head_dim : {8, 64, 80, 256}) {
    for (const int block_tokens : {32, 64}) {
      SCOPED_TRACE(testing::Message() << "D " << head_dim << " B " << block_tokens);
      // A step that starts inside a block, one that fills several, a first one, and one behind a
      // short block.
      const KvLists lists({head_dim, block_tokens}, 3,
                          {{BlockCounts(75, block_tokens), 1},
                           {BlockCounts(200, block_tokens), 170},
                           {BlockCounts(1, block_tokens), 1},
                           {{5, 9, 3}, 7}},
                          3);
      EXPECT_EQ(AppendAndRead(backend(), lists), AppendAndRead(reference(), lists));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KvAppendTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

}  // namespace
}  // namespace condense
