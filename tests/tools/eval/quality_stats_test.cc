#include "tools/eval/quality_stats.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace condense {
namespace {

std::vector<float> RandomRow(int32_t vocab, float spread, std::mt19937_64* random) {
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> row(vocab);
  for (float& logit : row) logit = normal(*random);
  return row;
}

std::vector<double> Softmax(const std::vector<float>& row) {
  double sum = 0;
  std::vector<double> p;
  for (const float logit : row) p.push_back(std::exp(double{logit}));
  for (const double e : p) sum += e;
  for (double& e : p) e /= sum;
  return p;
}

TEST(QualityStatsTest, AgreesWithTheDefinitions) {
  std::mt19937_64 random(7);
  for (const int32_t vocab : {1, 2, 15, 16, 17, 333, 4099}) {
    QualityStats stats(vocab);
    double kld = 0, nll = 0, delta = 0;
    constexpr int kTokens = 50;
    for (int i = 0; i < kTokens; ++i) {
      const std::vector<float> reference = RandomRow(vocab, 3.0f, &random);
      std::vector<float> cell = reference;
      const std::vector<float> noise = RandomRow(vocab, 0.3f, &random);
      for (int32_t v = 0; v < vocab; ++v) cell[v] += noise[v];
      const TokenId target = static_cast<TokenId>(random() % vocab);
      ASSERT_TRUE(stats.Add(reference.data(), cell.data(), target));
      const std::vector<double> p = Softmax(reference), q = Softmax(cell);
      for (int32_t v = 0; v < vocab; ++v) kld += p[v] * std::log(p[v] / q[v]);
      nll -= std::log(q[target]);
      delta += std::log(p[target]) - std::log(q[target]);
    }
    const Quality quality = stats.Summary();
    EXPECT_EQ(quality.tokens, kTokens);
    EXPECT_NEAR(quality.kld_mean, kld / kTokens, 1e-6) << vocab;
    EXPECT_NEAR(quality.ppl, std::exp(nll / kTokens), 1e-5 * std::exp(nll / kTokens)) << vocab;
    EXPECT_NEAR(quality.ppl_delta_pct, 100.0 * std::expm1(delta / kTokens), 1e-3) << vocab;
  }
}

TEST(QualityStatsTest, EqualRowsDifferByNothingAtAll) {
  std::mt19937_64 random(8);
  QualityStats stats(501);
  for (int i = 0; i < 40; ++i) {
    const std::vector<float> row = RandomRow(501, 5.0f, &random);
    ASSERT_TRUE(stats.Add(row.data(), std::vector<float>(row).data(), i));
  }
  const Quality quality = stats.Summary();
  EXPECT_EQ(quality.kld_mean, 0.0);
  EXPECT_EQ(quality.kld_p99, 0.0);
  EXPECT_EQ(quality.ppl_delta_pct, 0.0);
  EXPECT_EQ(quality.ppl_delta_ci.low, 0.0);
  EXPECT_EQ(quality.ppl_delta_ci.high, 0.0);
  EXPECT_EQ(quality.top1, 1.0);
}

TEST(QualityStatsTest, KnowsADivergenceByHand) {
  // (1/2, 1/2) against (3/4, 1/4): ln(2/3)/2 + ln(2)/2.
  const float reference[] = {0.0f, 0.0f}, cell[] = {std::log(3.0f), 0.0f};
  QualityStats stats(2);
  ASSERT_TRUE(stats.Add(reference, cell, 1));
  const Quality quality = stats.Summary();
  EXPECT_NEAR(quality.kld_mean, 0.5 * std::log(2.0 / 3.0) + 0.5 * std::log(2.0), 1e-6);
  EXPECT_NEAR(quality.ppl, 4.0, 1e-5);
  EXPECT_NEAR(quality.ppl_delta_pct, 100.0, 1e-4);
}

TEST(QualityStatsTest, LogitsFarFromZeroAreAsGoodAsOthers) {
  const float low[] = {-1000.0f, -1001.0f, -2000.0f}, high[] = {3000.0f, 2999.0f, 2000.0f};
  QualityStats stats(3);
  ASSERT_TRUE(stats.Add(low, high, 0));
  EXPECT_NEAR(stats.Summary().kld_mean, 0.0, 1e-6);
  EXPECT_NEAR(stats.Summary().ppl, 1.0 + std::exp(-1.0), 1e-5);
}

TEST(QualityStatsTest, TopOneIsTheLowestOfEquals) {
  QualityStats stats(3);
  const float first[] = {1, 0, 0}, tie[] = {1, 1, 0}, second[] = {0, 1, 0};
  ASSERT_TRUE(stats.Add(first, tie, 0));
  EXPECT_EQ(stats.Summary().top1, 1.0);
  ASSERT_TRUE(stats.Add(first, second, 0));
  EXPECT_EQ(stats.Summary().top1, 0.5);
}

TEST(QualityStatsTest, RowsThatAreNotFiniteAreRefusedAndNotCounted) {
  for (const int32_t place : {0, 5, 16, 18}) {
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), INFINITY, -INFINITY}) {
      std::vector<float> good(19, 0.5f), broken(19, 0.5f);
      broken[place] = bad;
      QualityStats stats(19);
      EXPECT_FALSE(stats.Add(good.data(), broken.data(), 0)) << place << " " << bad;
      EXPECT_FALSE(stats.Add(broken.data(), good.data(), 0)) << place << " " << bad;
      EXPECT_EQ(stats.Summary().tokens, 0);
    }
  }
}

// Adds one token whose NLL the cell makes larger by `delta`.
void AddDelta(double delta, QualityStats* stats) {
  const double p = 0.5 * std::exp(-delta);
  const float reference[] = {0.0f, 0.0f};
  const float cell[] = {static_cast<float>(std::log(p / (1.0 - p))), 0.0f};
  ASSERT_TRUE(stats->Add(reference, cell, 0));
}

TEST(QualityStatsTest, TheIntervalOfAConstantIsThatConstant) {
  QualityStats stats(2);
  stats.StartDocument();
  for (int i = 0; i < 100; ++i) AddDelta(0.1, &stats);
  const Quality quality = stats.Summary();
  EXPECT_NEAR(quality.ppl_delta_ci.low, 100.0 * std::expm1(0.1), 1e-3);
  EXPECT_NEAR(quality.ppl_delta_ci.high, 100.0 * std::expm1(0.1), 1e-3);
}

TEST(QualityStatsTest, TheIntervalIsAsWideAsTheMeanIsUncertain) {
  std::mt19937_64 random(9);
  std::normal_distribution<double> normal(0.02, 0.1);
  QualityStats stats(2);
  for (int document = 0; document < 4; ++document) {
    stats.StartDocument();
    for (int i = 0; i < 1024; ++i) AddDelta(normal(random), &stats);
  }
  const Quality quality = stats.Summary();
  // 4096 independent draws: a standard error of 0.156%, 1.96 of them to either side.
  EXPECT_LT(quality.ppl_delta_ci.low, quality.ppl_delta_pct);
  EXPECT_GT(quality.ppl_delta_ci.high, quality.ppl_delta_pct);
  EXPECT_NEAR(quality.ppl_delta_ci.high - quality.ppl_delta_ci.low, 2 * 1.96 * 0.159, 0.15);
  const Quality again = stats.Summary();
  EXPECT_EQ(again.ppl_delta_ci.low, quality.ppl_delta_ci.low);
}

TEST(QualityStatsTest, NeighboursCountTogether) {
  // The same values in runs of 32 and alternating: in blocks, alternation averages out.
  QualityStats runs(2), alternating(2);
  for (int i = 0; i < 1024; ++i) {
    AddDelta(i / 32 % 2 == 0 ? 0.2 : 0.0, &runs);
    AddDelta(i % 2 == 0 ? 0.2 : 0.0, &alternating);
  }
  const Interval wide = runs.Summary().ppl_delta_ci, narrow = alternating.Summary().ppl_delta_ci;
  EXPECT_GT(wide.high - wide.low, 5.0);
  EXPECT_LT(narrow.high - narrow.low, 0.01);
}

TEST(QualityStatsTest, ADocumentEndsABlock) {
  // Documents of 16 tokens, alternately with and without a difference. Blocks across documents
  // would all be alike.
  QualityStats stats(2);
  for (int document = 0; document < 32; ++document) {
    stats.StartDocument();
    for (int i = 0; i < 16; ++i) AddDelta(document % 2 == 0 ? 0.2 : 0.0, &stats);
  }
  const Interval interval = stats.Summary().ppl_delta_ci;
  EXPECT_GT(interval.high - interval.low, 5.0);
}

TEST(QualityStatsTest, NothingScoredIsAllZero) {
  const Quality quality = QualityStats(4).Summary();
  EXPECT_EQ(quality.tokens, 0);
  EXPECT_EQ(quality.ppl, 0.0);
}

TEST(DistinctShareTest, CountsRunsOfTokens) {
  EXPECT_EQ(DistinctShare(std::vector<TokenId>{1, 2, 3, 4, 5}, 3), 1.0);
  EXPECT_EQ(DistinctShare(std::vector<TokenId>{1, 1, 1, 1, 1, 1}, 3), 0.25);
  EXPECT_EQ(DistinctShare(std::vector<TokenId>{1, 2, 1, 2, 1, 2}, 3), 0.5);
  EXPECT_EQ(DistinctShare(std::vector<TokenId>{1, 2}, 3), 1.0);
}

TEST(ArgMaxTest, TakesTheLowestOfTheLargest) {
  EXPECT_EQ(ArgMax(std::vector<float>{0.0f, 2.0f, -1.0f, 2.0f}), 1);
}

}  // namespace
}  // namespace condense
