#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/backend_fixture.h"
#include "tests/support/kv_lists.h"

namespace condense {
namespace {

struct AttentionResult {
  std::vector<float> out;
  std::vector<float> log_sum_exp;
  std::vector<float> evidence;
};

// The angles of plain RoPE, kept per size because every run needs them.
const std::vector<float>& Angles(int head_dim, bool sine) {
  static std::map<std::pair<int, bool>, std::vector<float>> tables;
  std::vector<float>& values = tables[{head_dim, sine}];
  for (int p = 0;
       p < KvLists::kNumPositions && values.size() < size_t{KvLists::kNumPositions} * head_dim / 2;
       ++p) {
    for (int i = 0; i < head_dim / 2; ++i) {
      const double angle = p * std::pow(10000.0, -2.0 * i / head_dim);
      values.push_back(static_cast<float>(sine ? std::sin(angle) : std::cos(angle)));
    }
  }
  return values;
}

// Mean keys of which one out of `one_in` pairs of neighbours is not zero, in both halves alike, so
// that whole frequency pairs are zero whatever the pairing; 0: all are zero.
std::vector<float> MeanKeys(const KvLists& lists, int one_in) {
  const int head_dim = lists.shape().head_dim;
  std::vector<float> mean = RandomFloats(int64_t{lists.num_kv_heads()} * head_dim, 5);
  for (size_t i = 0; i < mean.size(); ++i) {
    const int neighbours = static_cast<int>(i % head_dim % (head_dim / 2) / 2);
    if (one_in == 0 || neighbours % one_in != one_in - 1) mean[i] = 0.0f;
  }
  return mean;
}

// Means of the keys, and the angles.
struct MeanAndPositions {
  MeanAndPositions(Backend* backend, const KvLists& lists, int one_in)
      : mean(backend, MeanKeys(lists, one_in)),
        cos(backend, Angles(lists.shape().head_dim, false)),
        sin(backend, Angles(lists.shape().head_dim, true)) {}

  DeviceArray<float> mean;
  DeviceArray<float> cos;
  DeviceArray<float> sin;
};

struct AttentionCase {
  int num_heads = 0;
  int window = 0;
  bool evidence = true;
  RopePairing pairing = RopePairing::kAdjacent;
  int mean_one_in = 1;  // see MeanKeys
};

AttentionArgs MakeArgs(const KvLists& lists, const AttentionCase& attention) {
  AttentionArgs args;
  args.shape = lists.shape();
  args.num_heads = attention.num_heads;
  args.num_kv_heads = lists.num_kv_heads();
  args.num_sequences = lists.num_sequences();
  args.sequences = lists.sequences();
  args.scale = 1.0f / std::sqrt(static_cast<float>(lists.shape().head_dim));
  args.window = attention.window;
  args.positions.pairing = attention.pairing;
  return args;
}

AttentionResult RunAttention(Backend* backend, const KvLists& lists, AttentionArgs args,
                             const std::vector<float>& q, bool evidence, int mean_one_in = 1) {
  const int head_dim = args.shape.head_dim;
  const DeviceArray<std::byte> arena(backend, lists.image());
  const DeviceArray<float> q_device(backend, q);
  const DeviceArray<float> out(backend, static_cast<int64_t>(q.size()));
  const DeviceArray<float> log_sum_exp(backend, static_cast<int64_t>(q.size()) / head_dim);
  // Stale values must not survive.
  const DeviceArray<float> evidence_device(backend,
                                           std::vector<float>(lists.evidence_size(), 7.0f));
  const MeanAndPositions mean(backend, lists, mean_one_in);
  args.key_mean = mean.mean.get();
  args.positions.cos = mean.cos.get();
  args.positions.sin = mean.sin.get();
  args.positions.num_positions = KvLists::kNumPositions;
  args.q = q_device.get();
  args.arena = arena.get();
  args.out = out.get();
  args.log_sum_exp = log_sum_exp.get();
  if (evidence) {
    args.evidence = evidence_device.get();
    args.evidence_offset = lists.evidence_offset().data();
  }
  backend->Attention(args);
  AttentionResult result = {out.Read(), log_sum_exp.Read(), {}};
  if (evidence) result.evidence = evidence_device.Read();
  return result;
}

std::vector<float> QueriesFor(const KvLists& lists, int num_heads) {
  return RandomFloats(int64_t{lists.num_rows()} * num_heads * lists.shape().head_dim, 17);
}

// Rows [first, first + count) of an array of `row_size` floats each.
std::vector<float> RowsOf(const std::vector<float>& values, int first, int count,
                          int64_t row_size) {
  return {values.begin() + first * row_size, values.begin() + (first + count) * row_size};
}

class AttentionTest : public BackendFixture {
 protected:
  AttentionResult Run(Backend* on, const KvLists& lists, const AttentionCase& attention) {
    return RunAttention(on, lists, MakeArgs(lists, attention),
                        QueriesFor(lists, attention.num_heads), attention.evidence,
                        attention.mean_one_in);
  }

  void ExpectMatch(const KvLists& lists, const AttentionCase& attention) {
    const AttentionResult actual = Run(backend(), lists, attention);
    const AttentionResult expected = Run(reference(), lists, attention);
    EXPECT_LE(NormalizedError(actual.out, expected.out), tolerance::kAttention);
    EXPECT_LE(NormalizedError(actual.log_sum_exp, expected.log_sum_exp), tolerance::kAttention);
    EXPECT_LE(NormalizedError(actual.evidence, expected.evidence), tolerance::kAttention);
  }

  void ExpectBatchEqualsSingles(const KvLists& lists) {
    const AttentionCase attention = {.num_heads = 9};
    const AttentionResult batch = Run(backend(), lists, attention);
    const int64_t row_size = int64_t{9} * lists.shape().head_dim;
    const std::vector<float> q = QueriesFor(lists, 9);
    for (int s = 0; s < lists.num_sequences(); ++s) {
      SCOPED_TRACE(testing::Message() << "sequence " << s);
      KvSequenceArgs sequence = lists.sequence(s);
      const int first_row = std::exchange(sequence.first_row, 0);
      AttentionArgs args = MakeArgs(lists, attention);
      args.num_sequences = 1;
      args.sequences = &sequence;
      const AttentionResult single = RunAttention(
          backend(), lists, args, RowsOf(q, first_row, sequence.num_tokens, row_size), false);
      EXPECT_TRUE(
          SameBits(single.out, RowsOf(batch.out, first_row, sequence.num_tokens, row_size)));
      EXPECT_TRUE(SameBits(single.log_sum_exp,
                           RowsOf(batch.log_sum_exp, first_row, sequence.num_tokens, 9)));
    }
  }
};

TEST_P(AttentionTest, MatchesReferenceForEveryHeadDimAndBlockSize) {
  for (const int head_dim : {8, 24, 32, 64, 80, 96, 128, 256}) {
    for (const int block_tokens : {32, 64}) {
      SCOPED_TRACE(testing::Message() << "D " << head_dim << " B " << block_tokens);
      const KvLists lists({head_dim, block_tokens}, 2,
                          {{BlockCounts(75, block_tokens), 1}, {BlockCounts(20, block_tokens), 20}},
                          1);
      ExpectMatch(lists, {.num_heads = 6});
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceForEveryGroupSize) {
  for (const int group : {1, 2, 3, 4, 5, 7, 8, 9, 16, 60}) {
    SCOPED_TRACE(testing::Message() << "H / G " << group);
    const KvLists lists({64, 32}, 2, {{BlockCounts(100, 32), 1}, {BlockCounts(70, 32), 9}}, 2);
    ExpectMatch(lists, {.num_heads = 2 * group});
  }
}

TEST_P(AttentionTest, MatchesReferenceAcrossManyParts) {
  const KvLists lists({64, 32}, 3,
                      {{BlockCounts(1700, 32), 1},
                       {BlockCounts(513, 32), 1},
                       {BlockCounts(512, 32), 1},
                       {BlockCounts(1, 32), 1},
                       {BlockCounts(700, 32), 33}},
                      3);
  ExpectMatch(lists, {.num_heads = 9});
}

TEST_P(AttentionTest, MatchesReferenceForAPromptOfManyTiles) {
  const KvLists lists({32, 32}, 1, {{BlockCounts(650, 32), 150}, {BlockCounts(90, 32), 90}}, 4);
  ExpectMatch(lists, {.num_heads = 3});
}

TEST_P(AttentionTest, MatchesReferenceOverCompactedBlocks) {
  // Blocks that hold fewer entries than they could, so that some straddle the cut between two
  // parts.
  std::vector<int> counts;
  for (int i = 0; i < 60; ++i) counts.push_back(1 + i * 7 % 32);
  const KvLists lists({64, 32}, 2, {{counts, 1}, {counts, 40}}, 5);
  ExpectMatch(lists, {.num_heads = 4});
}

TEST_P(AttentionTest, MatchesReferenceWithinAWindow) {
  for (const int window : {1, 5, 64, 512, 600, 5000}) {
    SCOPED_TRACE(testing::Message() << "window " << window);
    const KvLists lists({64, 32}, 2, {{BlockCounts(1300, 32), 1}, {BlockCounts(600, 32), 100}}, 6);
    ExpectMatch(lists, {.num_heads = 4, .window = window});
  }
}

constexpr KvBlockFlags kEverything = kKvBias | kKvPosition | kKvCount | kKvCentred;

TEST_P(AttentionTest, MatchesReferenceForEveryFormat) {
  for (int i = 0; i < kNumKvFormats; ++i) {
    const KvFormat format = static_cast<KvFormat>(i);
    SCOPED_TRACE(KvFormatName(format));
    const KvBlockFlags centred = KvKeysRotated(format) ? kKvCentred : 0;
    for (const KvBlockFlags flags :
         {KvBlockFlags{0}, kKvBias, static_cast<KvBlockFlags>(kKvRun | centred),
          static_cast<KvBlockFlags>(kKvBias | kKvPosition | kKvCount | centred)}) {
      SCOPED_TRACE(testing::Message() << "flags " << int{flags});
      const KvLists lists({64, 32}, 2,
                          {{BlockCounts(75, 32), 1, {{format, flags}}},
                           {BlockCounts(20, 32), 20, {{format, flags}}}},
                          21);
      ExpectMatch(lists, {.num_heads = 6});
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceOverNarrowBlocksOfEveryShapeAndGroup) {
  const std::vector<KvBlockKind> kinds = {{KvFormat::kK6V3, kEverything},
                                          {KvFormat::kK8V8, kKvRun | kKvCentred},
                                          {KvFormat::kK4V4, kEverything}};
  for (const int head_dim : {8, 24, 32, 64, 80, 96, 128, 256}) {
    for (const int block_tokens : {32, 64}) {
      for (const int group : {1, 2, 3, 4, 5, 6, 7, 8, 11}) {
        if (group > 3 && (head_dim != 64 || block_tokens != 32)) continue;
        if (group < 3 && head_dim % 32 == 0 && block_tokens != 32) continue;
        SCOPED_TRACE(testing::Message()
                     << "D " << head_dim << " B " << block_tokens << " H / G " << group);
        const KvLists lists(
            {head_dim, block_tokens}, 2,
            {{BlockCounts(150, block_tokens), 1, kinds}, {BlockCounts(70, block_tokens), 9, kinds}},
            22);
        ExpectMatch(lists, {.num_heads = 2 * group, .pairing = RopePairing::kHalfSplit});
      }
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceWhereTheMeanIsZeroInPart) {
  const std::vector<KvBlockKind> kinds = {{KvFormat::kK4V4, kEverything},
                                          {KvFormat::kK8V8, kKvRun | kKvCentred}};
  for (const int head_dim : {8, 24, 64, 80, 128}) {
    const KvLists lists({head_dim, 64}, 2, {{BlockCounts(150, 64), 1, kinds}}, 25);
    for (const RopePairing pairing : {RopePairing::kAdjacent, RopePairing::kHalfSplit}) {
      for (const int one_in : {0, 2, 3, 5}) {
        SCOPED_TRACE(testing::Message() << "D " << head_dim << " one in " << one_in);
        ExpectMatch(lists, {.num_heads = 6, .pairing = pairing, .mean_one_in = one_in});
      }
    }
  }
}

TEST_P(AttentionTest, MatchesReferenceWhereEntriesLieFarApart) {
  for (const uint32_t gap : {15u, 16u, 17u, 31u, 32u, 33u, 45u}) {
    SCOPED_TRACE(testing::Message() << "gap " << gap);
    const KvLists lists({64, 32}, 2,
                        {{BlockCounts(150, 32), 1, {{KvFormat::kK4V4, kEverything, gap}}}}, 26);
    ExpectMatch(lists, {.num_heads = 6, .mean_one_in = 2});
  }
}

// Compacted blocks of all kinds, short ones among them, then 16-bit blocks.
std::vector<KvBlockKind> MixedKinds() {
  return {{KvFormat::kK4V3, kEverything, 33},
          {KvFormat::kK16V16, kKvBias},
          {KvFormat::kK4V4, kKvRun | kKvCentred},
          {KvFormat::kK16V16, 0},
          {KvFormat::kK8V8, 0},
          {KvFormat::kK6V4, kKvRun | kKvCentred},
          {KvFormat::kK16V4, kKvBias}};
}

TEST_P(AttentionTest, MatchesReferenceOverMixedFormatsAcrossManyParts) {
  std::vector<int> counts;
  for (int i = 0; i < 60; ++i) counts.push_back(1 + i * 7 % 32);
  const KvLists lists({64, 32}, 2,
                      {{counts, 1, MixedKinds()},
                       {counts, 40, MixedKinds()},
                       {BlockCounts(1300, 32), 150, MixedKinds()},
                       {BlockCounts(600, 32), 1}},
                      23);
  for (const int window : {0, 600}) ExpectMatch(lists, {.num_heads = 6, .window = window});
}

TEST_P(AttentionTest, MixedFormatsInABatchEqualSingleSequencesBitForBit) {
  const KvLists lists({80, 32}, 3,
                      {{BlockCounts(1100, 32), 1, MixedKinds()},
                       {BlockCounts(77, 32), 1},
                       {BlockCounts(600, 32), 130, MixedKinds()}},
                      24);
  ExpectBatchEqualsSingles(lists);
}

TEST_P(AttentionTest, EvidenceDoesNotChangeTheResult) {
  const KvLists lists({64, 32}, 3, {{BlockCounts(1700, 32), 1}, {BlockCounts(700, 32), 120}}, 7);
  const AttentionResult with = Run(backend(), lists, {.num_heads = 9, .evidence = true});
  const AttentionResult without = Run(backend(), lists, {.num_heads = 9, .evidence = false});
  EXPECT_TRUE(SameBits(with.out, without.out));
  EXPECT_TRUE(SameBits(with.log_sum_exp, without.log_sum_exp));
}

TEST_P(AttentionTest, BatchEqualsSingleSequencesBitForBit) {
  const KvLists lists(
      {64, 32}, 3,
      {{BlockCounts(1100, 32), 1}, {BlockCounts(77, 32), 1}, {BlockCounts(600, 32), 130}}, 8);
  ExpectBatchEqualsSingles(lists);
}

// Runs the one sequence of `lists` in chunks of the given sizes and returns all rows.
std::vector<float> RunChunked(Backend* backend, const KvLists& lists,
                              const AttentionCase& attention, int chunk) {
  const KvSequenceArgs& whole = lists.sequence(0);
  const std::vector<float> q = QueriesFor(lists, attention.num_heads);
  const int64_t row_size = int64_t{attention.num_heads} * lists.shape().head_dim;
  std::vector<float> out;
  for (int first = 0; first < whole.num_tokens; first += chunk) {
    const int count = std::min(chunk, whole.num_tokens - first);
    const int entries = whole.lists[0].num_entries - whole.num_tokens + first + count;
    const KvListPrefix prefix(whole, lists.num_kv_heads(), entries, 0, count);
    AttentionArgs args = MakeArgs(lists, attention);
    args.sequences = &prefix.sequence();
    const AttentionResult part =
        RunAttention(backend, lists, args, RowsOf(q, first, count, row_size), false);
    out.insert(out.end(), part.out.begin(), part.out.end());
  }
  return out;
}

TEST_P(AttentionTest, ChunkedPromptEqualsWholePromptBitForBit) {
  for (const int window : {0, 50, 530}) {
    for (const int head_dim : {64, 80}) {
      const KvLists lists(
          {head_dim, 32}, 2,
          {{BlockCounts(700, 32), 640, head_dim == 80 ? MixedKinds() : std::vector<KvBlockKind>{}}},
          9);
      const AttentionCase attention = {.num_heads = 6, .window = window};
      const std::vector<float> whole = RunChunked(backend(), lists, attention, 640);
      for (const int chunk : {1, 7, 64, 333}) {
        if (GetParam().name == "reference" && chunk < 64)
          continue;  // slow, and rows are computed one by one anyway
        SCOPED_TRACE(testing::Message()
                     << "window " << window << " D " << head_dim << " chunk " << chunk);
        EXPECT_TRUE(SameBits(RunChunked(backend(), lists, attention, chunk), whole));
      }
    }
  }
}

TEST_P(AttentionTest, AnInfiniteValueOfALaterTokenDoesNotReachEarlierRows) {
  KvLists lists({64, 32}, 1, {{BlockCounts(20, 32), 20}}, 10);
  std::vector<std::byte> image = lists.image();
  Half* values =
      reinterpret_cast<Half*>(image.data() + KvValuesOffset(KvFormat::kK16V16, lists.shape()));
  values[19 * 64] = {0x7c00};
  const DeviceArray<std::byte> arena(backend(), image);
  const DeviceArray<float> q(backend(), QueriesFor(lists, 2));
  const DeviceArray<float> out(backend(), 20 * 2 * 64);
  AttentionArgs args = MakeArgs(lists, {.num_heads = 2});
  args.q = q.get();
  args.arena = arena.get();
  args.out = out.get();
  backend()->Attention(args);
  const std::vector<float> rows = out.Read();
  const auto finite = [](float x) { return std::isfinite(x); };
  EXPECT_TRUE(std::all_of(rows.begin(), rows.begin() + 19 * 2 * 64, finite));
  EXPECT_FALSE(std::isfinite(rows[19 * 2 * 64]));
}

INSTANTIATE_TEST_SUITE_P(Backends, AttentionTest, testing::ValuesIn(TestedBackends()),
                         BackendInstanceName);

TEST(AttentionThreadsTest, NumberOfThreadsDoesNotChangeABit) {
  const KvLists lists({64, 32}, 3,
                      {{BlockCounts(1700, 32), 1, MixedKinds()},
                       {BlockCounts(700, 32), 200, MixedKinds()},
                       {BlockCounts(90, 32), 1}},
                      11);
  std::vector<AttentionResult> results;
  for (const int threads : {1, 2, 3, 7}) {
    BackendOptions options;
    options.num_threads = threads;
    absl::StatusOr<std::unique_ptr<Backend>> backend = MakeBackend(options);
    ASSERT_TRUE(backend.ok()) << backend.status();
    results.push_back(RunAttention(backend->get(), lists, MakeArgs(lists, {.num_heads = 9}),
                                   QueriesFor(lists, 9), true));
  }
  for (const AttentionResult& result : results) {
    EXPECT_TRUE(SameBits(result.out, results[0].out));
    EXPECT_TRUE(SameBits(result.log_sum_exp, results[0].log_sum_exp));
    EXPECT_TRUE(SameBits(result.evidence, results[0].evidence));
  }
}

}  // namespace
}  // namespace condense
