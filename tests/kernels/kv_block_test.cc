#include "kernels/kv_block.h"

#include <gtest/gtest.h>

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
      const KvBlockShape shape = {head_dim, block_tokens};
      EXPECT_EQ(KvValuesOffset(KvFormat::kK16V16, shape) % 64, 0);
      EXPECT_EQ(KvBlockBytes(KvFormat::kK16V16, shape) % 64, 0);
    }
  }
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
