#include "engine/quality/confidence.h"

#include <gtest/gtest.h>

#include <cmath>

namespace condense {
namespace {

// P(at most k of n), term by term.
double NaiveBinomial(int64_t k, int64_t n, double p) {
  double sum = 0;
  for (int64_t i = 0; i <= k; ++i) {
    const double log_ways = std::lgamma(static_cast<double>(n + 1)) -
                            std::lgamma(static_cast<double>(i + 1)) -
                            std::lgamma(static_cast<double>(n - i + 1));
    sum += std::exp(log_ways + static_cast<double>(i) * std::log(p) +
                    static_cast<double>(n - i) * std::log1p(-p));
  }
  return sum;
}

TEST(ConfidenceTest, StudentQuantilesAreThoseOfTheTables) {
  struct Row {
    double probability, degrees, t;
  };
  // One degree of freedom is tan(pi (p - 1/2)), two are (2p - 1) sqrt(2 / (4p (1 - p))).
  const Row rows[] = {{0.95, 1, 6.313751515},  {0.95, 2, 2.919985580},  {0.975, 5, 2.570581836},
                      {0.95, 10, 1.812461123}, {0.99, 30, 2.457261542}, {0.95, 1e6, 1.644867},
                      {0.995, 4, 4.604094871}, {0.05, 10, -1.812461123}};
  for (const Row& row : rows) {
    EXPECT_NEAR(StudentQuantile(row.probability, row.degrees), row.t, 3e-5)
        << row.probability << " of " << row.degrees;
  }
  EXPECT_NEAR(StudentQuantile(0.5, 7), 0, 1e-9);
  EXPECT_GT(StudentQuantile(0.95, 1.5), StudentQuantile(0.95, 2));
}

TEST(ConfidenceTest, IncompleteBetaIsTheTailOfTheBinomial) {
  for (const int64_t n : {1, 7, 60, 1000}) {
    for (const double p : {0.01, 0.3, 0.5, 0.95}) {
      for (const int64_t k : {int64_t{0}, n / 3, n / 2, n - 1}) {
        EXPECT_NEAR(IncompleteBeta(static_cast<double>(n - k), static_cast<double>(k + 1), 1 - p),
                    NaiveBinomial(k, n, p), 1e-10)
            << k << " of " << n << " at " << p;
      }
    }
  }
}

TEST(ConfidenceTest, ShareBoundsLeaveTheStatedTail) {
  for (const double successes : {0.0, 3.0, 17.0, 19.0}) {
    const double upper = ShareUpperBound(successes, 20, 0.95);
    EXPECT_NEAR(NaiveBinomial(static_cast<int64_t>(successes), 20, upper), 0.05, 1e-9);
  }
  for (const double successes : {1.0, 3.0, 20.0}) {
    const double lower = ShareLowerBound(successes, 20, 0.95);
    EXPECT_NEAR(1 - NaiveBinomial(static_cast<int64_t>(successes) - 1, 20, lower), 0.05, 1e-9);
  }
  EXPECT_EQ(ShareUpperBound(20, 20, 0.95), 1);
  EXPECT_EQ(ShareLowerBound(0, 20, 0.95), 0);
  EXPECT_NEAR(ShareUpperBound(0, 4, 0.95), 1 - std::pow(0.05, 0.25), 1e-12);
  // Between whole successes it lies between their bounds.
  const double between = ShareUpperBound(3.5, 20, 0.95);
  EXPECT_GT(between, ShareUpperBound(3, 20, 0.95));
  EXPECT_LT(between, ShareUpperBound(4, 20, 0.95));
}

TEST(ConfidenceTest, QuantileRanksAreTheLastThatHold) {
  for (const int64_t n : {2, 20, 100, 1000}) {
    for (const double level : {0.05, 0.5, 0.99}) {
      const int64_t rank = QuantileLowerRank(n, level, 0.95);
      if (rank > 0) {
        EXPECT_LE(NaiveBinomial(rank - 1, n, level), 0.05) << n << ' ' << level;
      }
      if (rank < n) {
        EXPECT_GT(NaiveBinomial(rank, n, level), 0.05) << n << ' ' << level;
      }
    }
  }
  EXPECT_EQ(QuantileLowerRank(2, 0.05, 0.95), 0);    // two samples say nothing from below
  EXPECT_EQ(QuantileUpperRank(2, 0.05, 0.95), 2);    // the larger one does from above
  EXPECT_EQ(QuantileUpperRank(100, 0.99, 0.95), 0);  // 0.99^100 = 0.37: the largest may be too low
  EXPECT_EQ(QuantileUpperRank(300, 0.99, 0.95), 300);
}

TEST(ConfidenceTest, LargeCountsAreComputed) {
  const int64_t rank = QuantileLowerRank(1000000, 0.99, 0.95);
  // Normal approximation: n p - z sqrt(n p (1 - p)).
  EXPECT_NEAR(static_cast<double>(rank), 990000 - 1.6449 * std::sqrt(9900.0), 3);
}

}  // namespace
}  // namespace condense
