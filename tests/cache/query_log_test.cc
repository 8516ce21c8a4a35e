#include "cache/query_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

namespace condense {
namespace {

constexpr int32_t kGroup = 2;
constexpr int32_t kDim = 8;
const KvLayout kLayout = {
    .num_layers = 2, .num_kv_heads = 3, .block = {.head_dim = kDim, .block_tokens = 32}};

// What stands in component d of query head h at a position and layer: exact in a float.
float Component(int64_t position, int32_t layer, int32_t head, int32_t d) {
  return static_cast<float>(position * 1024 + layer * 512 + head * 32 + d);
}

// Asks for every position of a prompt and of what is generated after it, and fills in what is kept.
QueryLog Record(int64_t prompt, int64_t generated) {
  QueryLog log(kLayout, kGroup, prompt);
  EXPECT_EQ(log.row_size(), 3 * kGroup * kDim);
  for (int64_t position = 0; position < prompt + generated; ++position) {
    const int32_t slot = log.SlotFor(position);
    EXPECT_LT(slot, QueryLog::kEven + QueryLog::kRecent);
    for (int32_t layer = 0; slot >= 0 && layer < kLayout.num_layers; ++layer) {
      for (int32_t i = 0; i < log.row_size(); ++i) {
        log.Row(slot, layer)[i] = Component(position, layer, i / kDim, i % kDim);
      }
    }
  }
  return log;
}

// Positions of samples of a unit, each checked to be that position's queries of that unit alone.
std::vector<int64_t> Positions(const QuerySamples& samples, int32_t layer, int32_t kv_head) {
  std::vector<int64_t> positions;
  EXPECT_EQ(samples.q.size(), samples.visible.size() * kGroup * kDim);
  for (int32_t n = 0; n < samples.size(); ++n) {
    const float* q = &samples.q[n * kGroup * kDim];
    positions.push_back(static_cast<int64_t>(q[0]) / 1024);
    for (int32_t i = 0; i < kGroup * kDim; ++i) {
      EXPECT_EQ(q[i], Component(positions.back(), layer, kv_head * kGroup + i / kDim, i % kDim));
    }
  }
  return positions;
}

struct Gathered {
  QuerySamples evidence, held_out;
};
Gathered Gather(const QueryLog& log, int32_t front_entries, int32_t first_entry, bool plain) {
  Gathered gathered;
  log.Gather(1, 2, front_entries, first_entry, plain, &gathered.evidence, &gathered.held_out);
  return gathered;
}

std::vector<int64_t> AllKept(const QueryLog& log) {
  const Gathered gathered = Gather(log, 1 << 20, 0, /*plain=*/true);
  std::vector<int64_t> kept = Positions(gathered.evidence, 1, 2);
  const std::vector<int64_t> held_out = Positions(gathered.held_out, 1, 2);
  kept.insert(kept.end(), held_out.begin(), held_out.end());
  std::sort(kept.begin(), kept.end());
  return kept;
}

// The last row of each of 24 equal parts of the prompt before its newest 32 rows, where there are
// so many rows; and the newest 32 rows of all.
std::vector<int64_t> ExpectedKept(int64_t prompt, int64_t generated) {
  std::vector<int64_t> kept;
  const int64_t before = prompt - 32;
  for (int64_t part = 1; before >= 24 && part <= 24; ++part) {
    int64_t last = 0;
    while ((last + 1) * 24 < part * before) ++last;
    kept.push_back(last);
  }
  for (int64_t p = std::max<int64_t>(0, prompt + generated - 32); p < prompt + generated; ++p) {
    kept.push_back(p);
  }
  return kept;
}

class QueryLogTest : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Prompts, QueryLogTest, ::testing::Values(1, 31, 32, 33, 55, 56, 100, 5000),
                         [](const auto& info) { return std::to_string(info.param); });

TEST_P(QueryLogTest, KeepsTheNewestRowsAndEvenOnesOfThePrompt) {
  for (const int64_t generated : {0, 1, 7, 31, 32, 33, 500}) {
    EXPECT_EQ(AllKept(Record(GetParam(), generated)), ExpectedKept(GetParam(), generated))
        << generated << " generated";
  }
}

TEST_P(QueryLogTest, EveryFourthOfTheRecentIsHeldOutInOrder) {
  const QueryLog log = Record(GetParam(), 45);
  const int64_t end = GetParam() + 45;
  const Gathered gathered = Gather(log, 7, 0, /*plain=*/false);
  std::vector<int64_t> evidence, held_out;
  for (int64_t i = 0; i < 32; ++i) {
    (i % 4 == 3 ? held_out : evidence).push_back(end - 32 + i);
  }
  EXPECT_EQ(Positions(gathered.evidence, 1, 2), evidence);
  EXPECT_EQ(Positions(gathered.held_out, 1, 2), held_out);
  // Recent ones see the whole front.
  EXPECT_EQ(gathered.evidence.visible, std::vector<int32_t>(24, 7));
  EXPECT_EQ(gathered.held_out.visible, std::vector<int32_t>(8, 7));
}

TEST(QueryLogGatherTest, EvenOnesComeFirstAndSeeWhatTheySaw) {
  const QueryLog log = Record(5000, 20);
  const Gathered gathered = Gather(log, 4096, 0, /*plain=*/true);
  const std::vector<int64_t> positions = Positions(gathered.evidence, 1, 2);
  EXPECT_TRUE(std::is_sorted(positions.begin(), positions.end()));
  EXPECT_TRUE(std::is_sorted(gathered.evidence.visible.begin(), gathered.evidence.visible.end()));
  int even = 0;
  for (size_t i = 0; i < positions.size(); ++i) {
    const bool recent = positions[i] >= 5020 - 32;
    even += !recent;
    EXPECT_EQ(gathered.evidence.visible[i], recent ? 4096 : positions[i] + 1);
  }
  // Those that saw more than the front are left out: 24 parts of 207 rows, 19 end within 4096.
  EXPECT_EQ(even, 19);
  EXPECT_EQ(gathered.held_out.size(), 8);
}

TEST(QueryLogGatherTest, EvenOnesBeforeTheRangeAreLeftOut) {
  const QueryLog log = Record(5000, 20);
  const Gathered gathered = Gather(log, 4096, 2000, /*plain=*/true);
  const std::vector<int64_t> positions = Positions(gathered.evidence, 1, 2);
  std::vector<int64_t> expected;
  for (const int64_t p : ExpectedKept(5000, 20)) {
    if (p >= 2000 && p < 4096) expected.push_back(p);
  }
  ASSERT_FALSE(expected.empty());
  ASSERT_EQ(positions.size(), expected.size() + 24);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), positions.begin()));
}

TEST(QueryLogGatherTest, OverACompactedFrontOnlyRecentOnesCount) {
  const QueryLog log = Record(5000, 20);
  EXPECT_EQ(Gather(log, 4096, 0, /*plain=*/false).evidence.size(), 24);
}

TEST(QueryLogGatherTest, AnEmptyLogGathersNothing) {
  const QueryLog log(kLayout, kGroup, 100);
  const Gathered gathered = Gather(log, 64, 0, /*plain=*/true);
  EXPECT_EQ(gathered.evidence.size(), 0);
  EXPECT_EQ(gathered.held_out.size(), 0);
}

TEST(QueryLogGatherTest, ACopyGathersTheSameAndGoesItsOwnWay) {
  const QueryLog log = Record(300, 5);
  QueryLog copy(kLayout, kGroup, 300);
  copy.CopyFrom(log);
  EXPECT_EQ(AllKept(copy), AllKept(log));
  EXPECT_GE(copy.SlotFor(305), 0);
  EXPECT_EQ(Gather(log, 64, 0, false).evidence.visible,
            Gather(copy, 64, 0, false).evidence.visible);
  EXPECT_EQ(AllKept(log), ExpectedKept(300, 5));
}

}  // namespace
}  // namespace condense
