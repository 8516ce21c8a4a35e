#include "engine/probe/token_drift.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace condense {
namespace {

constexpr int kVocab = 50;
constexpr int kHead = 20;

using Distribution = std::vector<double>;

// What the Sample op reports of this distribution.
SampleResult Report(const Distribution& probabilities, TokenId token, int num_top) {
  std::vector<TokenId> ranked(probabilities.size());
  std::iota(ranked.begin(), ranked.end(), 0);
  std::stable_sort(ranked.begin(), ranked.end(),
                   [&](TokenId a, TokenId b) { return probabilities[a] > probabilities[b]; });
  const auto logprob = [&](TokenId id) { return static_cast<float>(std::log(probabilities[id])); };
  SampleResult result;
  result.token = token;
  result.logprob = logprob(token);
  for (int i = 0; i < num_top; ++i) result.top[i] = {ranked[i], logprob(ranked[i])};
  return result;
}

TokenDrift Compare(const Distribution& live, const Distribution& reference, TokenId token,
                   int num_top = kHead) {
  return CompareTokens(Report(live, token, num_top), Report(reference, token, num_top), num_top);
}

double Divergence(const Distribution& live, const Distribution& reference) {
  double kl = 0.0;
  for (size_t i = 0; i < live.size(); ++i) kl += reference[i] * std::log(reference[i] / live[i]);
  return kl;
}

Distribution Softmax(const std::vector<double>& logits) {
  Distribution probabilities;
  for (const double logit : logits) probabilities.push_back(std::exp(logit));
  const double sum = std::accumulate(probabilities.begin(), probabilities.end(), 0.0);
  for (double& probability : probabilities) probability /= sum;
  return probabilities;
}

// Random logits, and the same with an error.
class Pair {
 public:
  Pair(std::mt19937* random, int vocab, double spread, double error) {
    std::normal_distribution<double> normal;
    std::vector<double> logits(vocab), disturbed(vocab);
    for (int i = 0; i < vocab; ++i) {
      logits[i] = spread * normal(*random);
      disturbed[i] = logits[i] + error * normal(*random);
    }
    reference_ = Softmax(logits);
    live_ = Softmax(disturbed);
    token_ = static_cast<TokenId>((*random)() % vocab);
  }

  const Distribution& live() const { return live_; }
  const Distribution& reference() const { return reference_; }
  TokenId token() const { return token_; }
  // The least mass that either head covers.
  double Covered() const { return std::min(Covered(live_), Covered(reference_)); }

 private:
  static double Covered(Distribution probabilities) {
    std::sort(probabilities.rbegin(), probabilities.rend());
    return std::accumulate(probabilities.begin(), probabilities.begin() + kHead, 0.0);
  }

  Distribution live_, reference_;
  TokenId token_ = 0;  // any: often outside both heads
};

TEST(TokenDriftTest, EqualDistributionsDoNotDrift) {
  std::mt19937 random(1);
  for (int i = 0; i < 200; ++i) {
    const Pair pair(&random, kVocab, 0.2 * (i % 20), 0.0);
    const TokenDrift drift = Compare(pair.live(), pair.live(), pair.token());
    EXPECT_EQ(drift.kl, 0.0);
    EXPECT_EQ(drift.nll_delta, 0.0);
    EXPECT_TRUE(drift.top1_agrees);
  }
}

TEST(TokenDriftTest, IsNeverMoreThanTheExactDivergence) {
  std::mt19937 random(2);
  for (int i = 0; i < 4000; ++i) {
    const double spread = 0.25 * (i % 16), error = 0.01 * std::pow(2.0, i % 10);
    const Pair pair(&random, kVocab, spread, error);
    const TokenDrift drift = Compare(pair.live(), pair.reference(), pair.token());
    ASSERT_GE(drift.kl, 0.0);
    // Logprobs are floats.
    ASSERT_LE(drift.kl, Divergence(pair.live(), pair.reference()) + 2e-6)
        << "spread " << spread << ", error " << error;
  }
}

TEST(TokenDriftTest, IsMostOfItWhereTheHeadsCoverMostMass) {
  std::mt19937 random(3);
  double drift = 0.0, exact = 0.0;
  int covered = 0;
  for (int i = 0; i < 4000; ++i) {
    const Pair pair(&random, kVocab, 3.0, 0.02 * (1 + i % 40));
    if (pair.Covered() < 0.98) continue;
    ++covered;
    const double kl = Compare(pair.live(), pair.reference(), pair.token()).kl;
    const double all = Divergence(pair.live(), pair.reference());
    EXPECT_GE(kl, 0.5 * all - 1e-6);
    drift += kl;
    exact += all;
  }
  EXPECT_GT(covered, 1000);
  EXPECT_GT(drift, 0.95 * exact);
}

// All mass but a hundredth on tokens that the other head does not hold.
TEST(TokenDriftTest, DisjointHeadsAreFarApart) {
  Distribution live(kVocab), reference(kVocab);
  for (int i = 0; i < kVocab; ++i) {
    live[i] = i < kHead ? 0.99 / kHead : 0.01 / (kVocab - kHead);
    reference[kVocab - 1 - i] = live[i];
  }
  const double exact = Divergence(live, reference);
  for (const TokenId token : {0, kHead + 5, kVocab - 1}) {
    const TokenDrift drift = Compare(live, reference, token);
    EXPECT_GT(drift.kl, 3.5);
    EXPECT_LE(drift.kl, exact + 1e-6);
    EXPECT_FALSE(drift.top1_agrees);
  }
}

// Nothing but the chosen token's own logprob tells these two apart.
TEST(TokenDriftTest, TheChosenTokenCountsOutsideBothHeads) {
  constexpr TokenId kChosen = kHead, kOther = kHead + 1;
  Distribution reference(kHead + 2, 0.96 / kHead), live = reference;
  reference[kChosen] = 0.03;
  reference[kOther] = 0.01;
  live[kChosen] = 0.01;
  live[kOther] = 0.03;
  const TokenDrift drift = Compare(live, reference, kChosen);
  EXPECT_NEAR(drift.kl, Divergence(live, reference), 1e-6);
  EXPECT_NEAR(drift.nll_delta, std::log(3.0), 1e-6);
  // Where another one was chosen the tails look the same.
  EXPECT_NEAR(Compare(live, reference, 0).kl, 0.0, 1e-6);
}

TEST(TokenDriftTest, TheDeltaIsPositiveWhereTheLiveCacheIsLessSure) {
  const Distribution sure = {0.8, 0.1, 0.1}, unsure = {0.4, 0.3, 0.3};
  EXPECT_NEAR(Compare(unsure, sure, 0, 3).nll_delta, std::log(2.0), 1e-6);
  EXPECT_NEAR(Compare(sure, unsure, 0, 3).nll_delta, -std::log(2.0), 1e-6);
  EXPECT_NEAR(Compare(unsure, sure, 1, 3).nll_delta, -std::log(3.0), 1e-6);
}

TEST(TokenDriftTest, TheLikeliestTokensAreComparedWhateverWasChosen) {
  const Distribution a = {0.5, 0.3, 0.2}, b = {0.4, 0.35, 0.25}, c = {0.3, 0.5, 0.2};
  for (const TokenId token : {0, 1, 2}) {
    EXPECT_TRUE(Compare(a, b, token, 3).top1_agrees);
    EXPECT_FALSE(Compare(a, c, token, 3).top1_agrees);
  }
}

TEST(TokenDriftTest, AHeadThatIsAllOfTheVocabularyIsExact) {
  std::mt19937 random(4);
  for (int vocab = 2; vocab <= kHead; ++vocab) {
    for (int i = 0; i < 50; ++i) {
      const Pair pair(&random, vocab, 2.0, 0.02 * (1 + i));
      EXPECT_NEAR(Compare(pair.live(), pair.reference(), pair.token(), vocab).kl,
                  Divergence(pair.live(), pair.reference()), 5e-6);
    }
  }
}

TEST(TokenDriftTest, AHeadOfOneTokenStillCounts) {
  const TokenDrift drift = Compare({0.5, 0.3, 0.2}, {0.9, 0.06, 0.04}, 0, 1);
  const double exact = 0.9 * std::log(0.9 / 0.5) + 0.1 * std::log(0.1 / 0.5);
  EXPECT_NEAR(drift.kl, exact, 1e-6);
}

// Heads whose masses, rounded, add up to more than 1, and tokens without any.
TEST(TokenDriftTest, RoundingGivesNoNegativeNumberAndNoNan) {
  std::mt19937 random(5);
  const auto disturb = [&](SampleResult* result) {
    const auto error = [&] { return 1e-6f * static_cast<float>(random() % 1000) / 1000.0f; };
    for (TokenLogprob& entry : result->top) entry.logprob += error();
    result->logprob += error();
  };
  for (int i = 0; i < 2000; ++i) {
    const int vocab = i % 2 == 0 ? kHead : kVocab;
    const Pair pair(&random, vocab, static_cast<double>(i % 40), 0.0);
    SampleResult live = Report(pair.live(), pair.token(), kHead);
    SampleResult reference = live;
    disturb(&live);
    disturb(&reference);
    const TokenDrift drift = CompareTokens(live, reference, kHead);
    ASSERT_TRUE(std::isfinite(drift.kl) && std::isfinite(drift.nll_delta)) << i;
    ASSERT_GE(drift.kl, 0.0);
    ASSERT_LT(drift.kl, 5e-5);
  }
}

TEST(TokenDriftTest, CertaintyIsFinite) {
  SampleResult sure, other;
  for (int i = 0; i < kHead; ++i) {
    sure.top[i] = {i, i == 0 ? 0.0f : -200.0f};
    other.top[i] = {kHead + i, i == 0 ? 0.0f : -200.0f};
  }
  sure.token = other.token = 0;
  sure.logprob = 0.0f;
  other.logprob = -200.0f;
  EXPECT_EQ(CompareTokens(sure, sure, kHead).kl, 0.0);
  EXPECT_NEAR(CompareTokens(other, sure, kHead).kl, 200.0, 1e-3);
  const TokenDrift back = CompareTokens(sure, other, kHead);
  EXPECT_TRUE(std::isfinite(back.kl));
  EXPECT_GT(back.kl, 10.0);
  EXPECT_EQ(back.nll_delta, -200.0);
}

}  // namespace
}  // namespace condense
