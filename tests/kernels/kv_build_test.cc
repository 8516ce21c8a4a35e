#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "kernels/hadamard.h"
#include "kernels/kv_codes.h"
#include "tests/kernels/unit_arena.h"
#include "tests/support/fault_backend.h"
#include "tests/support/kv_lists.h"
#include "tests/support/reference_kv.h"

namespace condense {
namespace {

// A plan over `num_sources` entries that has every kind of entry: copies, pivots with folded
// members, averages at a position between their members.
struct Plan {
  std::vector<KvBuildMember> members;
  std::vector<KvBuildEntry> entries;
};
Plan MixedPlan(const UnitArena& arena, int num_sources, bool side_arrays) {
  std::vector<int64_t> positions;
  for (const KvBuildSource& source : arena.sources()) {
    for (int slot = 0; slot < source.block.count; ++slot) {
      const int64_t position = arena.Read(arena.image(), source.block, slot).position;
      positions.push_back(position >= 0 ? position : source.first_position + slot);
    }
  }
  Plan plan;
  for (int i = 0; i + 3 < num_sources; i += 4) {
    const auto add = [&](std::vector<KvBuildMember> members, float position) {
      plan.entries.push_back({static_cast<int32_t>(plan.members.size()),
                              static_cast<int32_t>(members.size()), position,
                              side_arrays ? 0.25f * static_cast<float>(members.size()) : 0.0f,
                              side_arrays ? static_cast<int32_t>(100 * members.size()) : 1});
      plan.members.insert(plan.members.end(), members.begin(), members.end());
    };
    add({{i, 1.0f, 1.0f}}, static_cast<float>(positions[i]));
    add({{i + 1, 0.0f, 0.25f}, {i, 1.0f, 0.5f}, {i + 2, 0.0f, 0.25f}},
        static_cast<float>(positions[i]));
    add({{i + 2, 0.5f, 0.5f}, {i + 3, 0.5f, 0.5f}},
        static_cast<float>(positions[i + 2] + positions[i + 3]) / 2.0f);
    add({{i + 3, 1.0f, 1.0f}}, static_cast<float>(positions[i + 3] + (i % 8 == 0 ? 3 : 0)));
  }
  return plan;
}

// Decoded keys and values of the blocks.
struct Decoded {
  std::vector<float> keys, values, side;
};
Decoded Decode(const UnitArena& arena, const std::vector<std::byte>& image,
               const std::vector<KvBlockRef>& blocks) {
  Decoded all;
  for (const KvBlockRef& block : blocks) {
    for (int slot = 0; slot < block.count; ++slot) {
      const ReferenceEntry entry = arena.Read(image, block, slot);
      all.keys.insert(all.keys.end(), entry.key.begin(), entry.key.end());
      all.values.insert(all.values.end(), entry.value.begin(), entry.value.end());
      all.side.push_back(static_cast<float>(entry.bias));
      all.side.push_back(static_cast<float>(entry.position));
      all.side.push_back(static_cast<float>(entry.count));
    }
  }
  return all;
}

class KvBuildTest : public BackendFixture {
 protected:
  // One element in a thousand may fall on the other side of the border between two codes.
  void ExpectMatch(UnitArena* arena, KvFormat format, KvBlockFlags flags) {
    int num_sources = 0;
    for (const KvBuildSource& source : arena->sources()) num_sources += source.block.count;
    const Plan plan = MixedPlan(*arena, num_sources, (flags & kKvBias) != 0);
    std::vector<KvBlockRef> blocks;
    for (int left = static_cast<int>(plan.entries.size()); left > 0; left -= blocks.back().count) {
      blocks.push_back(arena->AddBlock(format, flags, std::min(left, 29)));
    }
    const Decoded actual =
        Decode(*arena, arena->Build(backend(), plan.members, plan.entries, blocks), blocks);
    const Decoded expected =
        Decode(*arena, arena->Build(reference(), plan.members, plan.entries, blocks), blocks);
    const double key_limit = KvKeyBits(format) == 16 ? 1e-4 : 0.01;
    const double value_limit = KvValueBits(format) == 16 ? 1e-4 : 0.01;
    EXPECT_LE(NormalizedError(actual.keys, expected.keys), key_limit);
    EXPECT_LE(NormalizedError(actual.values, expected.values), value_limit);
    EXPECT_EQ(actual.side, expected.side);
  }
};

TEST_P(KvBuildTest, MatchesReferenceForEveryFormat) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    SCOPED_TRACE(KvFormatName(format));
    const KvBlockFlags centred = KvKeysRotated(format) ? kKvCentred : 0;
    for (const int flags :
         {0, int{kKvPosition} | centred, int{kEverything} ^ kKvCentred ^ centred}) {
      SCOPED_TRACE(testing::Message() << "flags " << flags);
      UnitArena arena({64, 32}, {32, 32, 7}, {});
      ExpectMatch(&arena, format, static_cast<KvBlockFlags>(flags));
    }
  }
}

TEST_P(KvBuildTest, MatchesReferenceForEveryHeadDimBlockSizeAndPairing) {
  for (const int head_dim : {8, 24, 32, 64, 80, 128, 256}) {
    for (const int block_tokens : {32, 64}) {
      for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
        SCOPED_TRACE(testing::Message() << "D " << head_dim << " B " << block_tokens);
        UnitArena arena({head_dim, block_tokens}, {32, 9}, {}, pairing);
        ExpectMatch(&arena, KvFormat::kK6V3, kEverything);
      }
    }
  }
}

TEST_P(KvBuildTest, MatchesReferenceWhenSourcesAreNarrowAlready) {
  for (const KvFormat format : {KvFormat::kK4V4, KvFormat::kK4V3, KvFormat::kK8V8}) {
    SCOPED_TRACE(KvFormatName(format));
    UnitArena arena({64, 32}, {32, 20, 32, 5},
                    {{KvFormat::kK4V4, kEverything},
                     {KvFormat::kK16V16, 0},
                     {KvFormat::kK6V4, kKvRun},
                     {KvFormat::kK8V8, kEverything}});
    ExpectMatch(&arena, format, kEverything);
  }
}

TEST_P(KvBuildTest, SurvivorsAreCopiedBitForBit) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    SCOPED_TRACE(KvFormatName(format));
    const KvBlockFlags flags = KvKeysRotated(format) ? kEverything : kKvBias | kKvPosition;
    UnitArena arena({80, 32}, {32, 32}, {{format, flags}});
    // Every third entry, in reverse: other slots, other neighbours.
    Plan plan;
    std::vector<std::pair<KvBlockRef, int>> from;
    for (int e = 63; e >= 0; e -= 3) {
      from.push_back({arena.list().blocks[e / 32], e % 32});
      const ReferenceEntry read = arena.Read(arena.image(), from.back().first, e % 32);
      plan.entries.push_back({static_cast<int32_t>(plan.members.size()), 1,
                              static_cast<float>(read.position), static_cast<float>(read.bias), 1});
      plan.members.push_back({e, 1.0f, 1.0f});
    }
    const KvBlockRef block = arena.AddBlock(format, flags, static_cast<int>(from.size()));
    const std::vector<std::byte> image =
        arena.Build(backend(), plan.members, plan.entries, {block});
    for (size_t slot = 0; slot < from.size(); ++slot) {
      const ReferenceEntry before = arena.Read(arena.image(), from[slot].first, from[slot].second);
      const ReferenceEntry after = arena.Read(image, block, static_cast<int>(slot));
      // Codes and scales, not only what they decode to.
      EXPECT_EQ(ReadStoredEntry(image.data(), block, arena.shape(), static_cast<int>(slot)),
                ReadStoredEntry(arena.image().data(), from[slot].first, arena.shape(),
                                from[slot].second));
      EXPECT_EQ(after.key, before.key);
      EXPECT_EQ(after.value, before.value);
      EXPECT_EQ(after.bias, before.bias);
      EXPECT_EQ(after.position, before.position);
    }
  }
}

TEST_P(KvBuildTest, ANewPositionEqualsFreshRope) {
  for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
    UnitArena arena({64, 32}, {32}, {}, pairing);
    const std::vector<float> key = RandomFloats(64, 41);
    arena.SetEntry(arena.list().blocks[0], 0, arena.Rotated(key, 100), key);
    for (const int position : {0, 93, 99, 101, 164, 2000}) {
      const KvBlockRef block = arena.AddBlock(KvFormat::kK16V16, kKvPosition, 1);
      const std::vector<std::byte> image = arena.Build(
          backend(), {{0, 1.0f, 1.0f}}, {{0, 1, static_cast<float>(position), 0.0f, 1}}, {block});
      const ReferenceEntry entry = arena.Read(image, block, 0);
      EXPECT_EQ(entry.position, position);
      EXPECT_LE(NormalizedError({entry.key.begin(), entry.key.end()}, arena.Rotated(key, position)),
                6e-4);
    }
  }
}

// Normalised error of keys (without the mean's share) and values after one build.
std::pair<double, double> BuildError(Backend* backend, UnitArena* arena, KvFormat format,
                                     KvBlockFlags flags) {
  Plan plan;
  for (int e = 0; e < 32; ++e) {
    plan.entries.push_back({e, 1, 100.0f + static_cast<float>(e), 0.0f, 1});
    plan.members.push_back({e, 1.0f, 1.0f});
  }
  const KvBlockRef block = arena->AddBlock(format, flags, 32);
  const std::vector<std::byte> image = arena->Build(backend, plan.members, plan.entries, {block});
  const Decoded after = Decode(*arena, image, {block});
  const Decoded before = Decode(*arena, arena->image(), {arena->list().blocks[0]});
  return {NormalizedError(after.keys, before.keys), NormalizedError(after.values, before.values)};
}

// Keys of which the mean holds most of the energy, and a dimension that is always large.
void FillWithStrongMean(UnitArena* unit) {
  UnitArena& arena = *unit;
  const int head_dim = arena.shape().head_dim;
  for (float& m : arena.mean()) m *= 2.0f;
  arena.mean()[3] = 12.0f;
  for (int e = 0; e < 32; ++e) {
    std::vector<float> key = RandomFloats(head_dim, 50 + e);
    for (int d = 0; d < head_dim; ++d) key[d] += arena.mean()[d];
    arena.SetEntry(arena.list().blocks[0], e, arena.Rotated(key, 100 + e),
                   RandomFloats(head_dim, 90 + e));
  }
}

TEST_P(KvBuildTest, CentringIsWorthABitWhereTheMeanIsStrong) {
  for (const int head_dim : {32, 64, 80, 128}) {
    SCOPED_TRACE(testing::Message() << "D " << head_dim);
    UnitArena arena({head_dim, 32}, {32}, {});
    FillWithStrongMean(&arena);
    const auto error = [&](KvFormat format, KvBlockFlags flags) {
      return BuildError(backend(), &arena, format, flags);
    };
    const double plain = error(KvFormat::kK4V4, 0).first;
    const double centred = error(KvFormat::kK4V4, kKvRun | kKvCentred).first;
    EXPECT_LT(centred, 0.55 * plain);
    EXPECT_LT(error(KvFormat::kK8V8, 0).first, 0.009);
    EXPECT_LT(error(KvFormat::kK8V8, 0).second, 0.009);
    EXPECT_LT(error(KvFormat::kK8V8, kKvRun | kKvCentred).first, 0.004);
    EXPECT_LT(error(KvFormat::kK6V3, kKvRun | kKvCentred).second, 0.22);
    EXPECT_LT(error(KvFormat::kK4V4, 0).second, 0.13);
  }
}

TEST_P(KvBuildTest, ZeroVectorsAndHugeOutliersSurvive) {
  for (const int head_dim : {32, 64, 80, 128}) {
    for (const KvFormat format : {KvFormat::kK8V8, KvFormat::kK6V4, KvFormat::kK4V3}) {
      SCOPED_TRACE(testing::Message() << "D " << head_dim << " " << KvFormatName(format));
      UnitArena arena({head_dim, 32}, {32}, {});
      for (int e = 0; e < 32; ++e) {
        std::vector<float> x(head_dim, 0.0f);
        if (e % 2 == 1) x[e % head_dim] = e % 4 == 1 ? 60000.0f : -60000.0f;
        arena.SetEntry(arena.list().blocks[0], e, x, x);
      }
      const auto [key_error, value_error] = BuildError(backend(), &arena, format, 0);
      // A lone outlier becomes equal magnitudes, which the outermost levels hit but for the cut;
      // where the transform has several runs, the zeros of the others are half a step off.
      const double limit = HadamardWidth(head_dim) == head_dim ? 0.16 : 0.3;
      EXPECT_LE(key_error, limit);
      EXPECT_LE(value_error, limit);
      const KvBlockRef block = arena.AddBlock(format, 0, 1);
      const std::vector<std::byte> image =
          arena.Build(backend(), {{0, 1.0f, 1.0f}}, {{0, 1, 100.0f, 0.0f, 1}}, {block});
      for (const double x : arena.Read(image, block, 0).key) EXPECT_EQ(x, 0.0);
      for (const double x : arena.Read(image, block, 0).value) EXPECT_EQ(x, 0.0);
    }
  }
}

TEST_P(KvBuildTest, DuplicatesMergedWithTheLogOfTheirNumberChangeNoOutput) {
  UnitArena arena({64, 32}, {32, 32, 32}, {});
  constexpr int kCopies = 4;
  Plan plan;
  for (int e = 0; e < 96; ++e) {
    arena.SetEntry(arena.list().blocks[e / 32], e % 32, RandomFloats(64, 200 + e / kCopies),
                   RandomFloats(64, 300 + e / kCopies));
    if (e % kCopies == 0) {
      plan.entries.push_back({e, kCopies, 100.0f + static_cast<float>(e),
                              std::log(static_cast<float>(kCopies)), kCopies});
    }
    plan.members.push_back({e, e % kCopies == 0 ? 1.0f : 0.0f, 1.0f / kCopies});
  }
  const KvBlockRef block = arena.AddBlock(KvFormat::kK16V16, kKvBias | kKvCount, 24);
  const std::vector<std::byte> image = arena.Build(backend(), plan.members, plan.entries, {block});
  const auto before = arena.Evaluate(backend(), image, arena.list(), 20, 3);
  const auto after = arena.Evaluate(backend(), image, {&block, 1, 24}, 20, 3);
  // All biases are equal, so that their rounding to f16 reaches the log-sum-exp alone.
  EXPECT_LE(NormalizedError(after.out, before.out), 2e-6);
  EXPECT_LE(NormalizedError(after.log_sum_exp, before.log_sum_exp), 2e-4);
}

INSTANTIATE_TEST_SUITE_P(Backends, KvBuildTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

class KvEvaluateTest : public BackendFixture {};

TEST_P(KvEvaluateTest, MatchesReferenceOverMixedFormats) {
  for (const int queries : {1, 20, 64}) {
    UnitArena arena({64, 32},
                    {32, 32, 5, 32, 32, 31, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 32, 9},
                    {{KvFormat::kK4V4, kEverything},
                     {KvFormat::kK4V3, kEverything},
                     {KvFormat::kK16V16, 0},
                     {KvFormat::kK8V8, kKvBias}});
    for (const int group : {1, 3}) {
      const auto actual = arena.Evaluate(backend(), arena.image(), arena.list(), queries, group);
      const auto expected =
          arena.Evaluate(reference(), arena.image(), arena.list(), queries, group);
      EXPECT_LE(NormalizedError(actual.out, expected.out), tolerance::kAttention);
      EXPECT_LE(NormalizedError(actual.log_sum_exp, expected.log_sum_exp), tolerance::kAttention);
      EXPECT_LE(NormalizedError(actual.mass, expected.mass), tolerance::kAttention);
    }
  }
}

TEST_P(KvEvaluateTest, MassOfAQueryIsOne) {
  const UnitArena arena({64, 32}, std::vector<int>(20, 30), {{KvFormat::kK4V4, kEverything}});
  const auto result = arena.Evaluate(backend(), arena.image(), arena.list(), 10, 3);
  for (int row = 0; row < 30; ++row) {
    double sum = 0.0;
    for (int e = 0; e < 600; ++e) sum += result.mass[row * 600 + e];
    EXPECT_NEAR(sum, 1.0, 1e-5);
  }
}

TEST_P(KvEvaluateTest, WithoutOutputsMassesAreTheSameAndValuesAreNotRead) {
  const std::vector<KvBlockKind> kinds = {
      {KvFormat::kK4V4, kEverything}, {KvFormat::kK16V16, 0}, {KvFormat::kK8V8, 0}};
  const UnitArena arena({64, 32}, std::vector<int>(37, 30), kinds);
  UnitArena poisoned({64, 32}, std::vector<int>(37, 30), kinds);
  poisoned.PoisonValues();
  for (const int queries : {1, 20, 64}) {
    const auto evaluate = [&](const UnitArena& unit, bool with_out) {
      return unit.Evaluate(backend(), unit.image(), unit.list(), queries, 3, with_out);
    };
    EXPECT_TRUE(std::isnan(evaluate(poisoned, true).out[0]));
    const auto both = evaluate(arena, true);
    const auto masses = evaluate(poisoned, false);
    EXPECT_TRUE(SameBits(masses.mass, both.mass));
    EXPECT_TRUE(SameBits(masses.log_sum_exp, both.log_sum_exp));
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, KvEvaluateTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

TEST(KvWorkerOpsTest, RunBesideTheOwnersOps) {
  BackendOptions options;
  options.num_threads = 2;
  const std::unique_ptr<Backend> backend = *MakeBackend(options);
  UnitArena arena({64, 32}, std::vector<int>(40, 32), {});
  const KvBlockRef block = arena.AddBlock(KvFormat::kK4V4, kKvRun | kKvCentred, 32);
  Plan plan;
  for (int e = 0; e < 32; ++e) {
    plan.entries.push_back({e, 1, 100.0f + static_cast<float>(e), 0.0f, 1});
    plan.members.push_back({e, 1.0f, 1.0f});
  }
  const auto build = [&] {
    return arena.Build(backend.get(), plan.members, plan.entries, {block});
  };
  const auto evaluate = [&] {
    return arena.Evaluate(backend.get(), arena.image(), arena.list(), 20, 3).mass;
  };
  const auto read = [&] { return arena.ReadAll(backend.get()).keys; };
  const std::vector<std::byte> image = build();
  const std::vector<float> mass = evaluate();
  const std::vector<float> keys = read();
  std::thread worker([&] {
    for (int i = 0; i < 10; ++i) {
      EXPECT_TRUE(build() == image);
      EXPECT_TRUE(SameBits(evaluate(), mass));
      EXPECT_TRUE(SameBits(read(), keys));
    }
  });
  const KvLists lists({64, 32}, 2, {{BlockCounts(600, 32), 40}}, 3);
  const DeviceArray<std::byte> other(backend.get(), lists.image());
  const DeviceArray<float> q(backend.get(), RandomFloats(40 * 4 * 64, 1));
  const DeviceArray<float> out(backend.get(), 40 * 4 * 64);
  AttentionArgs args;
  args.q = q.get();
  args.arena = other.get();
  args.shape = lists.shape();
  args.num_heads = 4;
  args.num_kv_heads = 2;
  args.num_sequences = 1;
  args.sequences = lists.sequences();
  args.scale = 0.125f;
  args.out = out.get();
  backend->Attention(args);
  const std::vector<float> first = out.Read();
  for (int i = 0; i < 30; ++i) {
    backend->Attention(args);
    EXPECT_TRUE(SameBits(out.Read(), first));
  }
  worker.join();
}

TEST(KvWorkerOpsTest, InjectedFailureIsReturnedOnceAndLeavesTheOwnerHealthy) {
  FaultBackend backend(std::make_unique<ReferenceBackend>());
  backend.FailWorkerOp(1);
  KvBuildArgs build;
  EXPECT_TRUE(backend.KvBuild(build).ok());
  EXPECT_EQ(backend.KvEvaluate({}).code(), absl::StatusCode::kInternal);
  EXPECT_TRUE(backend.KvBuild(build).ok());
  EXPECT_TRUE(backend.Synchronize().ok());
  EXPECT_EQ(backend.num_worker_ops(), 3);
}

}  // namespace
}  // namespace condense
