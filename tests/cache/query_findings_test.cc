#include "cache/query_findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cache/unit_ops.h"
#include "cache/validator.h"
#include "tests/support/compaction_unit.h"
#include "tests/support/reference_backend.h"

namespace condense {
namespace {

using testing::FloatEq;
using testing::Pointwise;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

TEST(QueryFindingsTest, RestWeighsWhatItsSumOfExponentialsSays) {
  const float ln2 = std::log(2.0f);
  // Of exp-sums 4 and 12, then 2^100 and 2^100: both are far beyond a float when added up.
  QueryFindings part = {.head_dim = 2,
                        .num_entries = 2,
                        .out = {1.0f, 2.0f, 0.0f, 4.0f},
                        .log_sum_exp = {2 * ln2, 200 * ln2},
                        .mass = {0.25f, 0.75f, 1.0f, 0.0f}};
  const QueryFindings rest = {.head_dim = 2,
                              .num_entries = 700,
                              .out = {-1.0f, 2.0f, 8.0f, 0.0f},
                              .log_sum_exp = {std::log(12.0f), 200 * ln2}};
  AddAsOneEntry(rest, &part);
  EXPECT_EQ(part.num_entries, 3);
  const std::vector<float> out = {-0.5f, 2.0f, 4.0f, 2.0f};
  const std::vector<float> log_sum_exp = {4 * ln2, 201 * ln2};
  const std::vector<float> mass = {0.0625f, 0.1875f, 0.75f, 0.5f, 0.0f, 0.5f};
  EXPECT_THAT(part.out, Pointwise(FloatEq(), out));
  EXPECT_THAT(part.log_sum_exp, Pointwise(FloatEq(), log_sum_exp));
  EXPECT_THAT(part.mass, Pointwise(FloatEq(), mass));
}

TEST(QueryFindingsTest, AnEmptyPartLeavesTheRest) {
  QueryFindings part = {.head_dim = 1, .out = {0.0f}, .log_sum_exp = {-kInfinity}};
  AddAsOneEntry({.head_dim = 1, .num_entries = 9, .out = {3.0f}, .log_sum_exp = {-70.0f}}, &part);
  EXPECT_EQ(part.num_entries, 1);
  EXPECT_EQ(part.out[0], 3.0f);
  EXPECT_EQ(part.log_sum_exp[0], -70.0f);
  EXPECT_EQ(part.mass[0], 1.0f);
}

TEST(QueryFindingsTest, NumbersThatAreNotFiniteStay) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), kInfinity}) {
    for (const bool in_rest : {false, true}) {
      QueryFindings part = {.head_dim = 1,
                            .num_entries = 1,
                            .out = {1.0f},
                            .log_sum_exp = {in_rest ? 0.0f : bad},
                            .mass = {1.0f}};
      AddAsOneEntry(
          {.head_dim = 1, .num_entries = 1, .out = {1.0f}, .log_sum_exp = {in_rest ? bad : 0.0f}},
          &part);
      EXPECT_TRUE(std::isnan(part.out[0])) << bad;
      EXPECT_TRUE(std::isnan(part.log_sum_exp[0])) << bad;
      EXPECT_TRUE(std::isnan(part.mass[0])) << bad;
    }
  }
}

// A list in two pieces against the same list in one.
TEST(QueryFindingsTest, PiecesSayWhatTheWholeSays) {
  ReferenceBackend backend;
  const CompactionUnit unit(&backend, {.num_entries = 150});
  UnitOps ops(&backend, &unit.model(), 1, 1);
  std::vector<KvBlockRef> blocks;
  for (const KvBuildSource& source : unit.front()) blocks.push_back(source.block);
  const QuerySamples queries = unit.HeldOut(10, 3);
  QueryFindings whole, part, rest, nothing;
  const auto find = [&](std::span<const KvBlockRef> list, QueryFindings* findings) {
    return ops.Evaluate(list, queries.q.data(), 10, UnitOps::kOutAndMasses, findings);
  };
  ASSERT_TRUE(find(blocks, &whole).ok());
  ASSERT_TRUE(find(std::span(blocks).first(2), &part).ok());
  ASSERT_TRUE(find(std::span(blocks).subspan(2), &rest).ok());
  ASSERT_TRUE(find({}, &nothing).ok());
  AddAsOneEntry(rest, &part);
  AddAsOneEntry(whole, &nothing);
  EXPECT_THAT(nothing.out, Pointwise(FloatEq(), whole.out));
  for (int32_t row = 0; row < whole.num_rows(); ++row) {
    EXPECT_NEAR(part.log_sum_exp[row], whole.log_sum_exp[row], 1e-6);
    for (int32_t d = 0; d < 64; ++d) {
      EXPECT_NEAR(part.out_of(row)[d], whole.out_of(row)[d], 2e-6);
    }
    for (int32_t e = 0; e < 64; ++e) {
      EXPECT_NEAR(part.mass_of(row)[e], whole.mass_of(row)[e], 1e-6);
    }
    double behind = 0.0;
    for (int32_t e = 64; e < 150; ++e) behind += whole.mass_of(row)[e];
    EXPECT_NEAR(part.mass_of(row)[64], behind, 1e-6);
  }
}

// Entries that stay as one, against entries that stay one by one.
TEST(QueryFindingsTest, AHitRatioNeedsNoMassOfWhatStays) {
  // Entry 0 is dropped, 1 and 2 stay, in the second account as one.
  const MergePlan plan = {.num_entries = 1, .drops = {0}};
  const QueryFindings front = {.head_dim = 1,
                               .num_entries = 3,
                               .out = {1.0f},
                               .log_sum_exp = {0.0f},
                               .mass = {0.5f, 0.375f, 0.125f}};
  const QueryFindings back = {.head_dim = 1,
                              .num_entries = 2,
                              .out = {1.0f},
                              .log_sum_exp = {0.0f},
                              .mass = {0.75f, 0.25f}};
  Validator apart(MakeSwapMap(plan, 0, 3));
  apart.Add(front, back);
  QueryFindings front_as_one = front, back_as_one = back;
  front_as_one.num_entries = 2;
  front_as_one.mass = {0.5f, 0.5f};
  back_as_one.num_entries = 1;
  back_as_one.mass = {1.0f};
  Validator as_one(MakeSwapMap(plan, 0, 2));
  as_one.Add(front_as_one, back_as_one);
  EXPECT_EQ(as_one.Quality().hit_ratio, apart.Quality().hit_ratio);
  EXPECT_EQ(apart.Quality().hit_ratio, 0.5);
}

}  // namespace
}  // namespace condense
