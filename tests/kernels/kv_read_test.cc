#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/kernels/unit_arena.h"
#include "tests/support/fault_backend.h"

namespace condense {
namespace {

class KvReadTest : public BackendFixture {
 protected:
  void ExpectMatch(const UnitArena& arena, bool keys_are_exact) {
    const UnitArena::Contents actual = arena.ReadAll(backend());
    const UnitArena::Contents expected = arena.ReadAll(reference());
    if (keys_are_exact) {
      EXPECT_TRUE(SameBits(actual.keys, expected.keys));
    } else {
      EXPECT_LE(NormalizedError(actual.keys, expected.keys), tolerance::kElementwise);
    }
    EXPECT_LE(NormalizedError(actual.values, expected.values), tolerance::kElementwise);
    EXPECT_EQ(actual.biases, expected.biases);
    EXPECT_EQ(actual.positions, expected.positions);
    EXPECT_EQ(actual.counts, expected.counts);
  }
};

TEST_P(KvReadTest, MatchesReferenceForEveryFormatAndFlags) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    for (int flags = 0; flags < 32; ++flags) {
      const bool placed = (flags & (kKvPosition | kKvRun)) != 0;
      if ((flags & kKvPosition) != 0 && (flags & kKvRun) != 0) continue;
      if ((flags & kKvCentred) != 0 && !(placed && KvKeysRotated(format))) continue;
      SCOPED_TRACE(testing::Message() << KvFormatName(format) << " flags " << flags);
      const UnitArena arena({64, 32}, {32, 9}, {{format, static_cast<KvBlockFlags>(flags)}});
      ExpectMatch(arena, !KvKeysRotated(format));
    }
  }
}

TEST_P(KvReadTest, MatchesReferenceForEveryHeadDimBlockSizeAndPairing) {
  for (const int head_dim : {8, 24, 32, 64, 80, 128, 256}) {
    for (const int block_tokens : {32, 64}) {
      for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
        SCOPED_TRACE(testing::Message() << "D " << head_dim << " B " << block_tokens);
        const UnitArena arena({head_dim, block_tokens}, {block_tokens, 17, 1, 0, 31},
                              {{KvFormat::kK16V16, 0},
                               {KvFormat::kK4V4, kEverything},
                               {KvFormat::kK6V3, kKvRun | kKvCentred},
                               {KvFormat::kK8V8, kKvBias}},
                              pairing);
        ExpectMatch(arena, false);
      }
    }
  }
}

TEST_P(KvReadTest, PositionsOfPlainBlocksFollowTheirFirst) {
  const UnitArena arena({64, 32}, {32, 5}, {});
  const UnitArena::Contents contents = arena.ReadAll(backend());
  for (int e = 0; e < 37; ++e) {
    EXPECT_EQ(contents.positions[e], 100 + e);
    EXPECT_EQ(contents.biases[e], 0.0f);
    EXPECT_EQ(contents.counts[e], 1);
  }
}

TEST_P(KvReadTest, OutputsThatNobodyWantsAreLeftOut) {
  const UnitArena arena({64, 32}, {32, 5}, {{KvFormat::kK4V4, kKvBias | kKvPosition | kKvCount}});
  const UnitArena::Contents all = arena.ReadAll(backend());
  const DeviceArray<std::byte> device(backend(), arena.image());
  KvReadArgs args;
  args.arena = device.get();
  args.shape = arena.shape();
  args.sources = arena.sources().data();
  args.num_sources = 2;
  ASSERT_TRUE(backend()->KvRead(args).ok());
  std::vector<float> values(37 * 64);
  args.values = values.data();
  ASSERT_TRUE(backend()->KvRead(args).ok());
  EXPECT_TRUE(SameBits(values, all.values));
}

INSTANTIATE_TEST_SUITE_P(Backends, KvReadTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

TEST(KvReadFaultTest, InjectedFailureIsReturned) {
  FaultBackend backend(std::make_unique<ReferenceBackend>());
  backend.FailWorkerOp(0);
  EXPECT_EQ(backend.KvRead({}).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(backend.KvRead({}).ok());
  EXPECT_EQ(backend.num_worker_ops(), 2);
}

class DiscardTest : public BackendFixture {};

TEST_P(DiscardTest, LeavesWhatIsAroundAndTakesNewContents) {
  for (const int64_t size : {int64_t{300}, int64_t{3} << 20}) {
    const DeviceArray<float> array(backend(), RandomFloats(size, 1));
    std::vector<float> expected = array.Read();
    const int64_t from = size / 10;
    const int64_t floats = size / 2;
    std::byte* const middle = reinterpret_cast<std::byte*>(array.get() + from);
    backend()->Discard(middle, floats * 4);
    backend()->Discard(middle, 0);
    const std::vector<float> after = array.Read();
    EXPECT_TRUE(SameBits({after.begin(), after.begin() + from},
                         {expected.begin(), expected.begin() + from}));
    EXPECT_TRUE(SameBits({after.begin() + from + floats, after.end()},
                         {expected.begin() + from + floats, expected.end()}));
    backend()->CopyToDevice(middle, reinterpret_cast<const std::byte*>(expected.data() + from),
                            floats * 4);
    EXPECT_TRUE(SameBits(array.Read(), expected));
  }
}

TEST(CpuDiscardTest, PagesGoBackToTheMachine) {
  BackendOptions options;
  options.num_threads = 1;
  const std::unique_ptr<Backend> backend = *MakeBackend(options);
  constexpr int64_t kBytes = int64_t{8} << 20;
  const int64_t page = sysconf(_SC_PAGESIZE);
  const Buffer buffer = *backend->Allocate(kBytes);
  std::fill_n(buffer.data(), kBytes, std::byte{1});
  // All but half a page at either end.
  backend->Discard(buffer.data() + page / 2, kBytes - page);
  std::vector<unsigned char> resident(kBytes / page);
  ASSERT_EQ(mincore(buffer.data(), kBytes, resident.data()), 0);
  int64_t pages = 0;
  for (const unsigned char flags : resident) pages += flags & 1;
  EXPECT_EQ(pages, 2);
  EXPECT_EQ(buffer.data()[page / 2 - 1], std::byte{1});
  EXPECT_EQ(buffer.data()[kBytes - page / 2], std::byte{1});
}

INSTANTIATE_TEST_SUITE_P(Backends, DiscardTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

}  // namespace
}  // namespace condense
